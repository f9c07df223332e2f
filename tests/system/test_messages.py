"""What is said to people and to programs: one line each, as it is, once, and not too long."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from poscli.system import console
from poscli.system.console import collected_warnings, emit, note, out, silence, warn_once
from poscli.system.errors import near, one_line


def test_an_unknown_name_comes_with_at_most_three_similar_or_twenty_others() -> None:
    names = [f"name{n:02d}" for n in range(21)]
    assert near("zzz", names[:20]) == f"there are {', '.join(names[:20])}"
    assert near("zzz", names) == "none of the 21 known names is similar"
    assert near("name", names) == "did you mean name20, name19 or name18?"
    assert near("ABCD", ["abce"]) == "did you mean abce?"
    assert near("abcdefghij", ["abcdefuvwx"]) == "did you mean abcdefuvwx?"  # 6 of 10 letters are equal
    assert near("abcdefghij", ["abcdeuvwxy"]) == "there is abcdeuvwxy"
    assert near("x", []) == "there are none"


def test_a_message_of_more_than_800_characters_loses_its_middle() -> None:
    text = "".join(f"{n:04d}" for n in range(200))
    assert one_line(text) == text
    assert one_line(text + "end") == f"{text[:398]} ... {(text + 'end')[-397:]}"


def test_messages_are_one_line_however_long_and_warnings_are_said_once(monkeypatch, capsys) -> None:
    monkeypatch.setattr(console, "_warned", set())
    long = " ".join(["words"] * 100)
    note(long)
    for _ in range(2):
        with collected_warnings() as collected:
            warn_once(long)
            warn_once(long)
        assert collected == [long]
    assert capsys.readouterr().err.splitlines() == [long, f"note: {long}"]


def test_a_result_is_a_document_or_a_page_and_a_silent_rank_has_none(monkeypatch, capsys) -> None:
    payload = {"loss": np.float32(0.5), "folder": Path("results")}
    emit(True, payload, lambda: pytest.fail("as a page, too"))
    emit(False, payload, lambda: print("a page"))
    assert capsys.readouterr().out == '{\n  "loss": 0.5,\n  "folder": "results"\n}\na page\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        emit(True, {"loss": float("nan")}, lambda: None)
    monkeypatch.setattr(console, "_silent", False)
    monkeypatch.setattr(console.err, "quiet", False)
    silence()
    emit(True, payload, lambda: None)
    note("what all ranks do")
    assert capsys.readouterr() == ("", "")


def test_a_pipe_has_140_columns_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("80", 140), ("200", 200)):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        assert out().width == width
