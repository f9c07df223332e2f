"""A sample of random command lines; tests/torture/commands.py draws as many as one likes."""

from __future__ import annotations

import random

import pytest
from torture.commands import command_line, commands, torture


@pytest.mark.parametrize("seed", range(4))
def test_no_command_line_ends_in_a_way_that_is_not_documented(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSCLI_QUIET", "")  # restored afterwards: --quiet sets it
    lines = torture(seed, 10)
    assert len({words[0] for words in lines}) > 3


def test_every_command_is_drawn() -> None:
    draw = random.Random(0)
    drawn = [command_line(draw) for _ in range(1000)]
    assert all(any(words[: len(path)] == list(path) for words in drawn) for path in commands())
