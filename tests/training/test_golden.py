"""Losses of short runs are those in golden/, within what another CPU's rounding may do."""

from __future__ import annotations

import golden
import pytest
from torch import Tensor
from toys import first

from poscli.encodings import get


class Steeper(get("alibi")):
    """ALiBi with slopes 1 % too steep."""

    def distance_bias(self, d: Tensor) -> Tensor:
        return 1.01 * super().distance_bias(d)


def beyond(measured: dict[str, float], spec: str) -> list[str]:
    """A line for every loss that lies beyond its limit."""
    known = golden.read(spec)
    assert measured.keys() == known.keys()
    return [
        f"{name}: {measured[name]:.7f}, not {loss:.7f} within {limit:.1e}"
        for name, (loss, limit) in known.items()
        if not abs(measured[name] - loss) <= limit
    ]


@pytest.mark.parametrize("spec", first(2, [*golden.SPECS]))
def test_losses_are_golden(spec: str) -> None:
    assert beyond(golden.measure(spec), spec) == []


def test_a_formula_slightly_off_is_noticed() -> None:
    assert len(beyond(golden.measure("test_golden:Steeper"), "alibi")) > 5


def test_every_golden_file_belongs_to_an_encoding() -> None:
    assert {path.stem for path in golden.FOLDER.iterdir()} == set(golden.SPECS)
