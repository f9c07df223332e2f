"""How an encoding shows itself: one line in a terminal, a table in a notebook."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from torch import nn

from poscli.system.notebook import html_table


def formula(cls: type) -> str:
    """The formula of an encoding: the first paragraph of the docstring of its class, on one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


class Shown(nn.Module):
    """What an encoding says about itself: its spec, its formula, the blanks it fills, its options and parameters."""

    spec: str = ""  # with the options that differ from their defaults; set when it is built from a spec
    name: ClassVar[str]
    blanks: frozenset[str]
    shape: Any

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The options of the spec by name, each with its default."""
        raise NotImplementedError

    @property
    def formula(self) -> str:
        """The formula, from the docstring of the class."""
        return formula(type(self))

    def __repr__(self) -> str:
        return f"{self._title}: {self.formula} (fills {self._filled}; {self._learned})"

    def _repr_html_(self) -> str:
        options, shape = self.options(), self.shape
        rows = {
            "formula": self.formula,
            "fills": self._filled,
            "options, with defaults": ", ".join(f"{key}={option.default}" for key, option in options.items()) or "none",
            "learns": self._learned,
            "built for": f"width {shape.width}, {shape.heads} heads, training length {shape.length}",
            "paper": getattr(self, "paper", ""),
        }
        return html_table(self._title, [row for row in rows.items() if row[1]])

    @property
    def _title(self) -> str:
        return self.spec or self.name

    @property
    def _filled(self) -> str:
        return ", ".join(sorted(self.blanks)) or "no blank"

    @property
    def _learned(self) -> str:
        learned = {name: p for name, p in self.named_parameters() if p.requires_grad}
        if not learned:
            return "no parameters"
        count = sum(p.numel() for p in learned.values())
        each = ", ".join(f"{name} {list(p.shape)}" for name, p in learned.items())
        return f"{count:,} parameters: {each}"
