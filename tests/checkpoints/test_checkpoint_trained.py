"""A checkpoint that transformers' own code really trains: what breaks and what mends it are seen by every command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runner import document
from trained_checkpoint import LENGTH, train

pytestmark = pytest.mark.slow

OPTIONS = ("--tokens", 2048, "--stride", 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("trained") / "llama", steps=250)


def at(rows: list[dict[str, Any]], name: str, length: int, variant: str = "full") -> dict[str, Any]:
    [row] = [
        row
        for row in rows
        if (row["encoding"], row["length"], row["variant"]) == (name, length, variant) and row["protocol"] == "fixed"
    ]
    return row


def test_rope_breaks_and_yarn_and_self_extend_mend_most_of_it(folder: Path) -> None:
    asked = ("--as", "yarn", "--as", "self-extend", "--as", "rope-linear(factor=4)")
    rows = document(
        "extrapolate", "--model", folder, "--max-len", "4x", *OPTIONS, *asked, "--out", folder.parent / "out"
    )
    own, far = at(rows, "llama", LENGTH), at(rows, "llama", 4 * LENGTH)
    assert own["nll"] < own["unigram"] - 1  # it has learned something: a nat below guessing by frequency
    assert far["gain_high"] < -0.1  # nats per token
    for mended in ("llama as yarn", "llama as self-extend"):
        assert at(rows, mended, 4 * LENGTH)["gain_low"] > far["gain_high"]
        assert at(rows, mended, LENGTH)["nll"] == pytest.approx(own["nll"], abs=0.01)  # their factor follows the length
    fixed = at(rows, "llama as rope-linear(factor=4.0)", LENGTH)
    assert fixed["nll"] > own["nll"] + 0.05  # a fixed factor has its price at the trained length
    windowed = at(rows, "llama", 4 * LENGTH, "window")
    assert windowed["nll"] == pytest.approx(at(rows, "llama", 4 * LENGTH, "crop")["nll"], abs=0.05)


def test_jet_long_is_rope_at_the_trained_length_and_better_beyond(folder: Path) -> None:
    asked = ("--as", "jet-long", "--max-len", "4x", *OPTIONS)
    rows = document("extrapolate", "--model", folder, *asked, "--out", folder.parent / "grouped")
    own, grouped = ([at(rows, name, n * LENGTH)["nll"] for n in (1, 2, 4)] for name in ("llama", "llama as jet-long"))
    assert grouped[0] == pytest.approx(own[0], abs=1e-3)
    assert grouped[1] < own[1] - 0.01
    assert grouped[2] < own[2] - 0.02


def test_the_honest_answer_is_a_window(folder: Path) -> None:
    asked = ("--as", "yarn", "--as", "rope-ntk", "--tokens", 2048)
    found = document("advise", folder, "--target", "4x", *asked, "--out", folder.parent / "out", "--yes")
    assert found["answer"][0].startswith(f"Let llama read the last {LENGTH} tokens only")


def test_the_card_finds_no_fault(folder: Path) -> None:
    found = document("card", folder, "--probe")
    assert found["faults"] == []
