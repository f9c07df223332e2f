"""Oracles of encodings that turn queries and keys by angles of the tokens' own."""

from __future__ import annotations

import torch
from torch import Tensor

from oracles import Content
from oracles.layer import Part, part
from poscli.encodings import Encoding


def up_to(c: Content) -> Tensor:
    """1 where token l is not after token i, else 0: `[i, l]`."""
    order = torch.arange(len(c.pos))
    return (order <= order[:, None]).double()


def wavelengths(base: float, channels: int) -> Tensor:
    """theta_m of every pair of a head's channels."""
    return torch.tensor([base ** (-2 * m / channels) for m in range(channels // 2)], dtype=torch.float64)


@part("selective-rope", "selective-rope(rank=3, tokens=2, base=50, bias=true)", "selective-rope(tokens=1)",
      against="the authors' formula")  # fmt: skip
def selective_rope(e: Encoding) -> Part:
    """The convolution and the sum, pair by pair of tokens."""

    def phase(c: Content) -> Tensor:
        heads, width = c.q.shape[1], c.q.shape[3]
        x = torch.cat([h / torch.sqrt((h**2).sum(-1, keepdim=True) + 1e-6) for h in c.x.split(width, dim=-1)], dim=-1)
        y = torch.einsum("hpr,rw,btw->bhtp", e.up.weight.view(heads, -1, e.down.weight.shape[0]), e.down.weight, x)
        taps = torch.zeros(len(c.pos), len(c.pos), *e.w.shape[1:], dtype=torch.float64)  # of token l in token i
        for k in range(min(len(e.w), len(c.pos))):
            for i in range(k, len(c.pos)):
                taps[i, i - k] = e.w[k]
        omega = torch.einsum("ilhop,bhlp->bhip", taps, y)
        omega = omega if e.b is None else omega + torch.exp(e.b)
        return torch.einsum("il,bhlp->bhip", up_to(c), omega) * wavelengths(e.base, width)

    return Part(phase=phase)


@part("carope")
def carope(e: Encoding) -> Part:
    def phase(c: Content) -> Tensor:
        f = 1 / (1 + torch.log(1 + torch.exp(torch.einsum("hw,btw->bht", e.w, c.x))))
        powers = torch.stack([f ** (m + 1) for m in range(c.q.shape[3] // 2)], dim=-1)
        return torch.einsum("il,bhlp->bhip", up_to(c), powers)

    return Part(phase=phase)


@part("repo", "repo(rank=3, base=50)")
def repo(e: Encoding) -> Part:
    def phase(c: Content) -> Tensor:
        gate, content = (torch.einsum("rw,btw->btr", m.weight, c.x) for m in (e.gate, e.content))
        z = torch.einsum("hr,btr->bht", e.w, gate / (1 + torch.exp(-gate)) * content)
        return z[..., None] * wavelengths(e.base, c.q.shape[3])

    return Part(phase=phase)
