"""The base class of all encodings: what follows from the blanks that a class fills, and how it shows itself."""

from __future__ import annotations

import functools
import inspect
import operator
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from torch import nn

from poscli.equation.blanks import BLANKS, TIERS, Blanks
from poscli.equation.operands import Positions, columns_of, raster
from poscli.system.errors import UsageError
from poscli.system.notebook import html_table


class Unsupported(Exception):
    """An input for which an encoding is not defined, such as a position beyond the end of a learned table."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a model that an encoding may depend on."""

    width: int  # W
    heads: int  # H
    layers: int
    length: int  # tokens in a training window, L
    vocab: int = 257  # different tokens: 256 bytes and the end of a document

    @property
    def head_width(self) -> int:
        """D, the numbers per head."""
        return self.width // self.heads


N = TypeVar("N", int, float)
TOKENS = "tokens"
# The type of an option that is a distance or a number of tokens, such as `far: Length[int] = 128`: specs can give it in
# units of the training length, too (`far=0.5L`).
Length = Annotated[N, TOKENS]


@dataclass(frozen=True)
class Option:
    """An option of an encoding's spec: the default, and the type that the constructor declares."""

    default: Any
    kind: Any
    is_length: bool = False  # a distance or a number of tokens


def _is_length(declared: Any) -> bool:
    """Whether a type is `Length[int]` or `Length[float]`, or one of them or None."""
    return any(TOKENS in getattr(each, "__metadata__", ()) for each in (declared, *typing.get_args(declared)))


def formula(cls: type) -> str:
    """The formula of an encoding: the first paragraph of the docstring of its class, on one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


class Encoding(Blanks):
    """An encoding without any position information. Subclasses override the blanks that their paper touches.

    The blanks that a class fills are computed from the methods it overrides. The keyword-only parameters of the
    constructor, with their defaults and types, are the options of its spec; a constructor raises ValueError for a value
    out of range. The attributes below declare properties that cannot be computed from the methods.
    """

    spec: str = ""  # with the options that differ from their defaults; set when it is built from a spec
    name: ClassVar[str]
    paper: ClassVar[str]
    family: ClassVar[str]
    shared: ClassVar[bool] = False  # True: all layers use one instance; False: each layer has its own weights
    relative: bool = True  # True: scores depend on positions by their differences only
    rescales: bool = False  # True: the output for a token changes, by definition, when the text after it grows
    # True: `key` gives a token a key that does not depend on the tokens after it, unless the encoding `rescales`. Not
    # inherited: a subclass that changes the keys must say so itself.
    steady_keys: ClassVar[bool] = False
    kernel_gradient: ClassVar[bool] = False  # True: the tensors of `kernel_form` have gradients, and so has its form
    axes: int = 1  # 1: positions are numbers; 2: positions are rows and columns of a grid
    feature_width: int = 0  # F, the numbers per token and head that `features` returns
    mixed_tokens: int = 1  # the last tokens, itself among them, that `mix` mixes into a token
    evaluations: int = 0  # the number of losses that `search` may measure on a trained model
    after: ClassVar[tuple[str, ...]] = ()  # names of encodings whose trained models this one can be evaluated on
    wraps: ClassVar[bool] = False  # True: it can be composed with the encoding of any trained model
    inert_alone: ClassVar[bool] = False  # True: it changes nothing unless a certain other encoding is beside it
    facts: ClassVar[tuple[str, ...]] = ()  # encodings that it equals, and under which condition
    # The lengths among the paper's options as shares of the length that the paper's models were trained on.
    proportions: ClassVar[Mapping[str, float]] = {}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        if not hasattr(type(self), "name"):
            self.name = type(self).__name__  # type: ignore[misc]  # a class of one's own that was not registered
        self.shape = shape
        self.blanks = frozenset(blank for blank in BLANKS if self.replaces(blank))

    @property
    def scale(self) -> float:
        """The factor on q . k."""
        return self.shape.head_width**-0.5

    @property
    def tier(self) -> str:
        """The highest tier that this encoding touches."""
        return max((BLANKS[blank].tier for blank in self.blanks), key=TIERS.index, default="token")

    @property
    def keys_are_steady(self) -> bool:
        """Whether the keys of a text stay as they are when it grows, so that a cache can hold them."""
        declared = "key" not in self.blanks or ("steady_keys" in vars(type(self)) and self.steady_keys)
        return declared and "positions" not in self.blanks and not self.rescales

    @property
    def has_kernel_form(self) -> bool:
        """Whether compiled kernels know a form of all blanks that `kernel_form` is for."""
        return type(self).kernel_form is not Blanks.kernel_form

    @property
    def kernel_form_has_gradient(self) -> bool:
        """Whether compiled kernels compute the gradients of that form, too."""
        return self.has_kernel_form and self.kernel_gradient

    def leave(self, blank: str) -> None:
        """Leave a blank empty that the class fills, for an option that switches it off."""
        assert blank in self.blanks
        self.blanks -= {blank}

    def tie(self, first: Encoding) -> None:
        """Share some weights with `first`, the instance on the first layer. (`shared` shares all of them.)"""

    def take_over(self, trained: Encoding) -> None:
        """Use the weights of `trained`, the encoding of a trained model that this one replaces.

        What this one does not learn, such as a threshold that an option fixes, stays as it is.
        """
        own = self.state_dict()
        fixed = {name: own[name] for name, weight in self.named_parameters() if not weight.requires_grad}
        self.load_state_dict(trained.state_dict() | fixed)

    def begin_step(self, progress: float, draw: torch.Generator) -> None:
        """Prepare a training step, such as by drawing random positions. `progress` is the share of the steps done."""

    def search(
        self, loss: Callable[[], float], evaluations: int, draw: torch.Generator, factor: float | None = None
    ) -> float:
        """Search for the constants with the smallest loss on a trained model; returns that loss in nats per token.

        `loss` measures the model with the current state of this encoding, on texts `factor` times as long as the
        training windows; it may be called `evaluations` times.
        """
        raise NotImplementedError

    def longest(self, dtype: torch.dtype) -> int | None:
        """The longest input, in tokens, for which the formula stays finite in a dtype; None if there is no limit."""

    def locate(self, tokens: int, device: torch.device, columns: int | None = None) -> Positions:
        """The positions of the first `tokens` tokens of a sequence, as this encoding sees them.

        With two axes the tokens predict the cells of a grid of `columns` columns row by row; without `columns` that is
        the whole grid of `grid_shape(tokens)`. The first token shows no cell: as a key it stands where the cell before
        the first one would be, at (-1, columns - 1).
        """
        index = torch.arange(tokens, device=device)
        if self.axes == 1:
            return Positions.spaced(self.positions(index)) if "positions" in self.blanks else Positions(pos=index)
        columns = columns or columns_of(tokens)
        pos, shown = raster(index, columns), raster(index - 1, columns)
        if "positions" in self.blanks:
            return Positions(pos=self.positions(pos), shown=self.positions(shown), step=None)
        return Positions(pos=pos, shown=shown, step=None, columns=columns)

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options of the spec, in order: the constructor's keyword-only parameters.

        For a constructor with `**options`, the parameters of the parent's constructor follow.
        """
        options: dict[str, Option] = {}
        for owner in cls.__mro__:
            if "__init__" not in vars(owner):
                continue
            constructor: Callable[..., None] = vars(owner)["__init__"]
            parameters, kinds = inspect.signature(constructor).parameters.values(), typing.get_type_hints(constructor)
            declared = typing.get_type_hints(constructor, include_extras=True)
            for p in parameters:
                if p.kind is inspect.Parameter.KEYWORD_ONLY:
                    kind = kinds.get(p.name, str)
                    if typing.get_origin(kind) is typing.Union:  # what is left of `Length[int] | None`
                        kind = functools.reduce(operator.or_, typing.get_args(kind))
                    options.setdefault(p.name, Option(p.default, kind, _is_length(declared.get(p.name))))
            if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
                break
        return options

    @property
    def formula(self) -> str:
        """The formula, from the docstring of the class."""
        return formula(type(self))

    def __repr__(self) -> str:
        blanks, learned = self._filled_and_learned()
        return f"{self.spec or self.name}: {self.formula} (fills {blanks}; {learned})"

    def _repr_html_(self) -> str:
        (blanks, learned), shape = self._filled_and_learned(), self.shape
        options = ", ".join(f"{name}={option.default}" for name, option in self.options().items())
        rows = {
            "formula": self.formula,
            "fills": blanks,
            "options, with defaults": options or "none",
            "learns": learned,
            "built for": f"width {shape.width}, {shape.heads} heads, training length {shape.length}",
            "paper": getattr(self, "paper", ""),
        }
        return html_table(self.spec or self.name, [row for row in rows.items() if row[1]])

    def _filled_and_learned(self) -> tuple[str, str]:
        """The blanks that it fills, and the parameters that it learns, in words."""
        learned = {name: p for name, p in self.named_parameters() if p.requires_grad}
        count = sum(p.numel() for p in learned.values())
        names = ", ".join(f"{name} {list(p.shape)}" for name, p in learned.items())
        blanks = ", ".join(sorted(self.blanks)) or "no blank"
        return blanks, f"{count:,} parameters: {names}" if learned else "no parameters"


def begin_step(module: nn.Module, progress: float, draw: torch.Generator) -> None:
    """Prepare every encoding in a module for a training step, those of compositions among them, each once.

    `progress` is the share of the steps that are done, from 0 to below 1; random positions are taken from `draw`.
    UsageError for any other share.
    """
    if not 0 <= progress < 1:
        raise UsageError(
            f"progress = {progress:g}: must be at least 0 and below 1; give the steps done before, divided by all steps"
        )
    for each in module.modules():
        if isinstance(each, Encoding):
            each.begin_step(progress, draw)
