"""Oracles of encodings that mix neighbouring tokens before the projections."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv1d

from oracles.layer import Part, part
from poscli.encodings import Encoding


@part("smear", "smear(tokens=1)", "smear(tokens=7)", against="the authors' formula", gives="mixture")
def smear(e: Encoding) -> Part:
    """A convolution per channel, whose kernel lists its taps from the earliest token on, and the token itself."""

    def mix(x: Tensor) -> Tensor:
        before = torch.zeros(x.shape[0], len(e.w) - 1, x.shape[2], dtype=x.dtype)
        return x + conv1d(torch.cat([before, x], dim=1).mT, e.w.flip(0).mT[:, None], groups=x.shape[2]).mT

    return Part(mix=mix)
