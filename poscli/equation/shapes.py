"""Compare what every filled blank returns with the shape that its declaration in blanks.py states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poscli.equation.blanks import BLANKS
from poscli.equation.encoding import Encoding, Shape
from poscli.equation.operands import Operands, Positions, columns_of, raster
from poscli.equation.reference import operands

TOKENS, BATCH = 16, 2  # of the input on which an encoding is tried


@dataclass(frozen=True, eq=False)
class BlankInputs:
    """What the blanks of one layer are given: the layer's input, its queries or values, and the ids of the tokens."""

    x_BTW: Tensor
    q_BHTD: Tensor
    ids_BT: Tensor

    @classmethod
    def of(cls, shape: Shape, dtype: torch.dtype = torch.float32) -> BlankInputs:
        """Ordinary numbers for a model's shape, at most TOKENS tokens long."""
        tokens = min(TOKENS, shape.length)
        x = torch.linspace(-1, 1, BATCH * tokens * shape.width).view(BATCH, tokens, shape.width)
        ids = torch.arange(BATCH * tokens).view(BATCH, tokens) % shape.vocab
        return cls(x, x.unflatten(2, (shape.heads, -1)).transpose(1, 2).to(dtype), ids)

    @property
    def tokens(self) -> int:
        """T."""
        return self.q_BHTD.shape[2]


@torch.no_grad()
def wrong_shapes(encoding: Encoding, given: BlankInputs) -> str:
    """A sentence on the first blank whose shape or dtype is wrong; '' if all are right."""
    argument, dtype = _arguments(encoding, given), given.q_BHTD.dtype
    for name, blank in BLANKS.items():
        if name not in encoding.blanks or not blank.shape:
            continue
        value = getattr(encoding, name)(*(argument[each]() for each in blank.takes))
        if not isinstance(value, Tensor):
            return f"{name} returns a {type(value).__name__}, not a tensor"
        allowed = _sizes(encoding, given, blank.shape, value.shape[-1] if value.ndim else 0)
        if list(value.shape) not in allowed:
            return f"{name} returns {list(value.shape)}, not {' or '.join(map(str, allowed))}"
        if blank.takes[1:] == ("pos",) and value.dtype != dtype:
            return f"{name} turns {dtype} into {value.dtype}"
    if {"query", "key"} & encoding.blanks:
        pos = argument["pos"]()
        q, k = encoding.query(given.q_BHTD, pos), encoding.key(given.q_BHTD, pos)
        if q.shape[-1] != k.shape[-1]:
            return f"query and key come back with {q.shape[-1]} and {k.shape[-1]} channels"
    return ""


def _sizes(encoding: Encoding, given: BlankInputs, stated: str, width: int) -> list[list[int]]:
    """The sizes that a declared shape such as `[1, n] or [H, n]` allows; `width` stands for `*`."""
    batch, heads, tokens, head_width = given.q_BHTD.shape
    letters = {"1": 1, "B": batch, "H": heads, "T": tokens, "S": tokens, "n": tokens, "D": head_width, "*": width}
    letters |= {"W": given.x_BTW.shape[2], "F": encoding.feature_width}
    if "R" in stated:
        letters["R"] = encoding.relative_query(given.q_BHTD, encoding.features(given.x_BTW)).shape[-1]
    sizes = {letter: [size] for letter, size in letters.items()} | {"...": [2] if encoding.axes == 2 else []}
    shapes = [shape.strip("[]").split(", ") for shape in stated.split(" or ")]
    return [[size for letter in shape for size in sizes[letter]] for shape in shapes]


def _arguments(encoding: Encoding, given: BlankInputs) -> dict[str, Callable[[], Any]]:
    """What blanks are called with, by the names of their arguments; each is made when it is needed."""
    x_BTW, q_BHTD, index = given.x_BTW, given.q_BHTD, torch.arange(given.tokens)

    def positions() -> Positions:
        return encoding.locate(given.tokens, q_BHTD.device)

    def inputs() -> Operands:
        return operands(encoding, q_BHTD, q_BHTD, q_BHTD, positions(), encoding.features(x_BTW))

    def scores() -> Tensor:
        return (q_BHTD @ q_BHTD.mT * encoding.scale).masked_fill(~inputs().visible(), -torch.inf)

    of_heads = dict.fromkeys(("q_BHTD", "k_BHSD", "v_BHSD", "o_BHTD"), lambda: q_BHTD)
    features = dict.fromkeys(("f_BHSF", "f_i", "f_j"), lambda: encoding.features(x_BTW))
    places = dict.fromkeys(("pos", "i", "j"), lambda: positions().pos)
    return of_heads | features | places | {
        "index": lambda: index if encoding.axes == 1 else raster(index, columns_of(given.tokens)),
        "d": lambda: index if encoding.axes == 1 else positions().pos,
        "n": lambda: index + 1,
        "x_BTW": lambda: x_BTW,
        "ids_BT": lambda: given.ids_BT,
        "x": inputs,
        "s_BHTS": scores,
        "p_BHTS": lambda: scores().softmax(dim=-1),
        "d_TS": lambda: inputs().distances(),
    }  # fmt: skip
