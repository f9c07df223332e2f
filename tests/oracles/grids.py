"""Oracles of the encodings of rows and columns; positions are `[T, 2]`."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from oracles import FLOAT32, Content, dots, oracle
from oracles import libraries as lib
from oracles.biases import slopes
from oracles.rotary import turned
from poscli.encodings import Encoding
from poscli.equation import Unsupported

SIDE = 4  # of the training grid


def apart(c: Content) -> tuple[Tensor, Tensor]:
    """Distances of rows and of columns, each `[T, T]`, as whole numbers."""
    pos = c.pos.round().long()
    down, right = (pos[:, None] - pos[None, :]).unbind(-1)
    return down, right


def sides(c: Content) -> tuple[Tensor, Tensor]:
    """Rows and columns `[T]` as whole numbers."""
    rows, columns = c.pos.round().long().unbind(-1)
    return rows, columns


# sinusoidal-2d


@oracle("sinusoidal-2d(base=20)", gives="embedding")
def sinusoidal(e: Encoding, c: Content) -> Tensor:
    half, rows = c.x.shape[-1] // 2, []
    for place in c.pos:
        angles = [k / 20.0 ** (2 * m / half) for k in place for m in range(half // 2)]
        rows.append(torch.stack([f(a) for a in angles for f in (torch.sin, torch.cos)]))
    return c.x + torch.stack(rows)


@oracle("sinusoidal-2d", against="transformers DETR", gives="embedding", unit=FLOAT32)
def sinusoidal_detr(e: Encoding, c: Content) -> Tensor:
    """DETR counts the cells of its mask, so a first row (or column) of zeros makes it count from 0."""
    rows, columns = sides(c)
    size, half = int(c.pos.max().round()) + 1, c.x.shape[-1] // 2
    theirs = lib.detr.DetrSinePositionEmbedding(half, 10000)
    mask = torch.ones(1, size, size)
    mask[:, 0] = 0
    of_rows = theirs(mask, mask)[0, :half, rows, columns]
    of_columns = theirs(mask, mask.mT)[0, half:, rows, columns]
    return c.x + torch.cat([of_rows, of_columns]).T


# learned-2d


@oracle("learned-2d", gives="embedding")
def learned(e: Encoding, c: Content) -> Tensor:
    rows, columns = sides(c)
    if int(c.pos.max().round()) >= SIDE:
        raise Unsupported("no entry")
    return c.x + torch.stack([torch.cat([e.rows[r], e.columns[k]]) for r, k in zip(rows, columns, strict=True)])


@oracle("learned-2d(beyond=interpolate)", gives="embedding")
def interpolated(e: Encoding, c: Content) -> Tensor:
    def read(table: Tensor, k: float, last: float) -> Tensor:
        at = min(k, k * (SIDE - 1) / last) if last > SIDE - 1 else k
        low = min(math.floor(at), SIDE - 2)
        return (1 - (at - low)) * table[low] + (at - low) * table[low + 1]

    rows, columns = sides(c)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    found = [torch.cat([read(e.rows, r, int(rows.max())), read(e.columns, k, int(columns.max()))]) for r, k in pairs]
    return c.x + torch.stack(found)


# t5-2d


@oracle("t5-2d(buckets=8, far=11)", against="transformers T5, causal for rows, bidirectional for columns")
def t5(e: Encoding, c: Content) -> Tensor:
    bucket = lib.t5.T5Attention._relative_position_bucket
    down, right = apart(c)
    of_rows = bucket(-down, bidirectional=False, num_buckets=8, max_distance=11)
    of_columns = bucket(-right, bidirectional=True, num_buckets=8, max_distance=11)
    return dots(c) + e.rows[:, of_rows] + e.columns[:, of_columns]


# swin-2d


@oracle("swin-2d", against="transformers Swin")
def swin(e: Encoding, c: Content) -> Tensor:
    """Swin's index of all pairs of a window; distances beyond the window, which Swin does not have, are clipped."""
    theirs = lib.swin.SwinSelfAttention(lib.transformers.SwinConfig(), 3, 3, SIDE).relative_position_index
    most = SIDE - 1
    flat = torch.zeros(3, (2 * SIDE - 1) ** 2, dtype=torch.float64)
    flat = torch.cat([flat[:, : most * (2 * SIDE - 1)], e.table.flatten(1)], dim=1)  # keys below come first
    down, right = apart(c)
    of_pair = theirs.view(SIDE, SIDE, SIDE, SIDE)
    r, k = down.clamp(-most, most), right.clamp(-most, most)
    # A query and a key that are r rows and k columns apart, anywhere in the window.
    index = of_pair[r.clamp(min=0), k.clamp(min=0), (-r).clamp(min=0), (-k).clamp(min=0)]
    return dots(c) + flat[:, index]


@oracle("swin-2d(window=3)", against="the definition")
def swin_narrow(e: Encoding, c: Content) -> Tensor:
    down, right = apart(c)
    pairs = zip(down.flatten().tolist(), right.flatten().tolist(), strict=True)
    found = [e.table[:, max(0, min(r, 2)), max(-2, min(k, 2)) + 2] for r, k in pairs]
    return dots(c) + torch.stack(found, dim=1).unflatten(1, down.shape)


# alibi-2d

M = torch.tensor(slopes(3), dtype=torch.float64)[:, None, None]


@oracle("alibi-2d", against="CROMA's formula")
def alibi(e: Encoding, c: Content) -> Tensor:
    away = c.pos[:, None] - c.pos[None]
    hidden = torch.eye(len(c.pos), dtype=torch.bool)
    return dots(c) - M * torch.where(hidden, 0, torch.hypot(*away.unbind(-1)))


@oracle("alibi-2d(distance=manhattan)", against="the definition")
def alibi_manhattan(e: Encoding, c: Content) -> Tensor:
    return dots(c) - M * (c.pos[:, None] - c.pos[None]).abs().sum(-1)


# rope-2d


@oracle("rope-2d", against="transformers Qwen2-VL's vision model", unit=FLOAT32)
def rope(e: Encoding, c: Content) -> Tensor:
    rows, columns = sides(c)
    width = c.q.shape[-1]
    freqs = lib.qwen2_vl.VisionRotaryEmbedding(width // 2, 100.0)(int(c.pos.max().round()) + 1)
    angle = torch.cat([freqs[rows], freqs[columns]], dim=-1)
    angle = torch.cat([angle, angle], dim=-1).double()

    def rotate(x: Tensor) -> Tensor:
        return x * angle.cos() + lib.qwen2_vl.rotate_half(x) * angle.sin()

    return dots(replace(c, q=rotate(c.q), k=rotate(c.k)))


@oracle("rope-2d(base=50, layout=interleaved)")
def rope_axial(e: Encoding, c: Content) -> Tensor:
    pairs = c.q.shape[-1] // 2
    theta = torch.tensor([50.0 ** (-2 * m / pairs) for m in range(pairs // 2)], dtype=torch.float64)
    angle = torch.cat([c.pos[:, :1] * theta, c.pos[:, 1:] * theta], dim=-1)
    return rotated(c, angle)


@oracle("rope-2d(layout=interleaved, mixed=true)")
def rope_mixed(e: Encoding, c: Content) -> Tensor:
    down, right = e.frequencies  # [H, pairs] each
    return rotated(c, c.pos[:, 0, None] * down[:, None] + c.pos[:, 1, None] * right[:, None])


def rotated(c: Content, angle: Tensor) -> Tensor:
    return dots(replace(c, q=turned(c.q, angle, "interleaved"), k=turned(c.k, angle, "interleaved")))
