"""Attention of an encoding at positions of any place, to see what a shift of all positions changes."""

from __future__ import annotations

import torch
from torch import Tensor

from poscli.equation import Encoding
from poscli.equation.operands import columns_of, raster
from poscli.verify.probe import attend_at, embedded
from poscli.verify.subject import LENGTH, Subject

FAR = 16 * LENGTH  # tokens, or rows and columns
# Shifts of positions, of a number of tokens for one axis, of rows and of columns for two.
SHIFTS = {
    1: (torch.tensor(LENGTH // 2), torch.tensor(1), torch.tensor(FAR)),
    2: tuple(torch.tensor(shift) for shift in ((1, 0), (0, 1), (FAR, 0), (0, FAR))),
}


def shown(shift: Tensor) -> str:
    """A shift in words."""
    if shift.ndim == 0:
        return f"{int(shift)} token{'s' * (int(shift) > 1)}"
    rows, columns = shift.tolist()
    return f"{rows} rows" if rows else f"{columns} columns"


def shifted(encoding: Encoding, subject: Subject, shift: Tensor) -> Tensor:
    """Attention of a few tokens that begin `shift` tokens, or rows and columns, after the first position.

    An embedding is used as q, k and v. On a line the tokens are spread, as `shifted_positions` says.
    """
    count = LENGTH // 2
    pos = shifted_positions(encoding, count, shift, apart=2 if encoding.axes == 1 else 1)
    given = embedded(encoding, subject.inputs(count, count, torch.float32), pos, subject.text(count))
    return attend_at(encoding, given, pos)


def shifted_positions(encoding: Encoding, count: int, shift: Tensor, apart: int = 1) -> Tensor:
    """The positions of `count` tokens that begin `shift` tokens, or rows and columns `[2]`, after the first position.

    On a line each is one of the last `count * apart` tokens of a text, every `apart`-th, so that a border within a
    training window lies between some of them; on a grid they are a grid of their own.
    """
    if encoding.axes == 2:
        return encoding.positions(raster(torch.arange(count), columns_of(count)) + shift)
    return encoding.locate(int(shift) + count * apart, shift.device).pos[int(shift) :: apart]
