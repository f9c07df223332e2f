"""Attention of an encoding at positions of any place, to see what a shift of all positions changes."""

from __future__ import annotations

import torch
from torch import Tensor

from poscli.attention import ENGINES, attend
from poscli.equation import Encoding, Positions
from poscli.equation.grids import columns_of, raster
from poscli.verify.subject import HEADS, LENGTH, Subject

FAR = 16 * LENGTH  # tokens, or rows and columns
REFERENCE = ENGINES["reference"]
# Shifts of positions, of a number of tokens for one axis, of rows and of columns for two.
SHIFTS = {
    1: (torch.tensor(LENGTH // 2), torch.tensor(FAR)),
    2: tuple(torch.tensor(shift) for shift in ((1, 0), (0, 1), (FAR, 0), (0, FAR))),
}


def attended(encoding: Encoding, given: dict[str, Tensor], pos: Tensor) -> Tensor:
    """Attention of the reference engine at positions `[T]` of any spacing."""
    with torch.no_grad():
        features = encoding.features(given["x"]) if "features" in encoding.blanks else None
        at = Positions(pos=pos, step=None)
        return attend(REFERENCE, encoding, given["q"], given["k"], given["v"], at, features)


def shown(shift: Tensor) -> str:
    """A shift in words."""
    if shift.ndim == 0:
        return f"{int(shift)} tokens"
    rows, columns = shift.tolist()
    return f"{rows} rows" if rows else f"{columns} columns"


def shifted(encoding: Encoding, subject: Subject, shift: Tensor) -> Tensor:
    """Attention of a few tokens that begin `shift` tokens, or rows and columns, after the first position.

    An embedding is used as q, k and v.
    """
    count = LENGTH // 2
    if encoding.axes == 2:
        pos = encoding.positions(raster(torch.arange(count), columns_of(count)) + shift)
    else:
        pos = encoding.positions(torch.arange(int(shift) + count))[int(shift) :]
    given = subject.inputs(count, count, torch.float32)
    if "embed" in encoding.blanks:
        x_BTW = encoding.embed(given["x"], pos, subject.text(count))
        heads = x_BTW.unflatten(2, (HEADS, -1)).transpose(1, 2)
        given |= {"q": heads, "k": heads, "v": heads}
    return attended(encoding, given, pos)
