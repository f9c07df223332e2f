"""`poscli corpus`: what it says of a text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_runner import cli

from poscli import workflows

LOOKS_AT_PICTURES = True
SIZE = 1500


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents of random letters."""
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path / "cache"))
    folder, draw = tmp_path / "texts", np.random.default_rng(0)
    folder.mkdir()
    for n in range(75):
        (folder / f"{n}.txt").write_bytes(draw.integers(97, 123, SIZE).astype(np.uint8).tobytes())
    return folder


def test_text_without_structure_and_its_echo(texts: Path) -> None:
    plain = cli("corpus", f"text:{texts}", "-L", 32)
    assert "An n-gram wins nothing beyond 32 tokens" in plain.out
    assert "0.0% of tokens could be copied from 4 to 511 tokens back." in plain.out
    echo = cli("corpus", f"echo:text:{texts}", "-L", 32)
    assert "A longer context pays: 512 tokens win +" in echo.out
    assert "p(d) falls as d^-a with a = " in echo.out


def test_the_document_and_the_picture(texts: Path, tmp_path: Path) -> None:
    answer = cli("corpus", f"echo:text:{texts}", "-L", 32, "--json", "--out", tmp_path / "out").json
    held_out = answer["corpus"]["valid"]
    assert held_out["tokens"] == held_out["bytes"] + held_out["documents"]
    assert [row["window"] for row in answer["windows"]] == [4, 8, 16, 32, 64, 128, 256, 512]
    assert [row["won"] for row in answer["windows"] if row["window"] == 32] == [0]
    assert answer["windows"][-1]["low"] > 0.1
    exponent, low, high = answer["profile"]["exponent"]
    assert low < exponent < high
    files = tmp_path / "out/corpus" / f"{answer['corpus']['fingerprint']}-L32"
    assert json.loads(files.with_suffix(".json").read_text()) == answer
    assert files.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    files.with_suffix(".png").unlink()
    files.with_suffix(".png").mkdir()
    failed = cli("corpus", f"echo:text:{texts}", "-L", 32, "--json", "--out", tmp_path / "out")
    assert (failed.code, set(failed.json)) == (1, {"error", "exit_code"})


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.006, 0.0095, "A longer context pays"),
        (0.003, 0.009, "Not shown that a longer context pays"),
        (0.001, 0.004, "An n-gram wins nothing beyond 32 tokens"),
    ],
)
def test_a_gain_counts_from_where_it_counts_for_encodings(
    low: float, high: float, said: str, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = workflows.measure_text(f"text:{texts}", "bytes", 32)
    measured["windows"][-1] |= {"won": (low + high) / 2, "low": low, "high": high}
    monkeypatch.setattr(workflows, "measure_text", lambda *_, **__: measured)
    assert f"{said}: 512 tokens win" in cli("corpus", f"text:{texts}", "-L", 32).out


def test_what_is_refused(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = {
        ("-L", 256): (4, "16 times the length 256, 4096 tokens: give a --length of 93 or less"),
        ("-L", 4): (2, "must be greater than or equal to 8"),
        ("--tokenizer", "bpq:512"): (2, "there is no tokenizer 'bpq:512'"),
        ("--out", tmp_path / "file"): (1, "file is not a folder; choose another folder with --out"),
    }
    for arguments, (code, message) in refused.items():
        result = cli("corpus", f"text:{texts}", *arguments)
        assert result.code == code
        assert message in result.err.splitlines()[-1]
    unknown = cli("corpus", "nonsense")
    assert unknown.code == 2
    assert "unknown corpus 'nonsense'" in unknown.err
