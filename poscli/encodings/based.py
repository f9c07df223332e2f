"""Encodings that act on another one, which the option `base` names: `urpe(base=rope)`."""

from __future__ import annotations

from poscli.encodings.registry import get
from poscli.equation import Encoding, Shape
from poscli.equation.composed import Composed
from poscli.system.errors import UsageError


class Based(Composed):
    """The encoding that `base` names, with its default options, composed with parts that act on it."""

    def __init__(self, shape: Shape, base: str, *added: Encoding) -> None:
        try:
            base_encoding = get(base)(shape)
        except UsageError as error:
            raise ValueError(f"base: {error}") from error
        super().__init__([base_encoding, *added])
        self.name = type(self).name  # type: ignore[misc]

    def tie(self, first: Encoding) -> None:
        assert isinstance(first, Based)
        for n, (part, first_part) in enumerate(zip(self.parts, first.parts, strict=True)):
            part.tie(first_part)
            self.parts[n] = first_part if part.shared else part
