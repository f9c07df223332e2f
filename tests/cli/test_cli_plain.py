"""Data reaches the screen as it is: no markup, no pictures, no colours under NO_COLOR, no control characters."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cli_runner import UNSEEN, assert_plain, cli, errors
from rich.padding import Padding
from rich.text import Text

from poscli.cli import command_tree
from poscli.system import progress
from poscli.system.console import PlainConsole, note, warn_once
from poscli.system.progress import Meter

LITERAL = "[red]a[/] :rocket: :b: [#FIELD] \\[x]"
CONTROL = "\x1b[2J\x1b]0;title\x07 \r \b \x9b1m \u202egnp.exe\u2066 \u2028 \ud800"
ESCAPED = r"\x1b[2J\x1b]0;title\x07 \r \x08 \x9b1m \u202egnp.exe\u2066 \u2028 \ud800"
HOSTILE = f"{LITERAL} {CONTROL}"
SHOWN = f"{LITERAL} {ESCAPED}"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text is wrapped."""
    monkeypatch.setenv("COLUMNS", "400")


@pytest.mark.parametrize("say", [note, warn_once])
def test_data_is_shown_and_not_obeyed(say: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE + "\nsecond")
    text = capsys.readouterr().err
    assert SHOWN + r"\nsecond" in text
    assert not UNSEEN.search(text)


@pytest.mark.parametrize("renderable", [HOSTILE, Text(HOSTILE), Padding(Text(HOSTILE), (0, 2))], ids=type)
def test_the_console_itself_lets_no_control_character_through(renderable: object) -> None:
    """Rich has dropped some of them by then, such as carriage returns."""
    stream = io.StringIO()
    PlainConsole(file=stream, width=400).print(renderable)
    assert LITERAL in stream.getvalue()
    assert r"\x1b[2J" in stream.getvalue()
    assert not UNSEEN.search(stream.getvalue())


@pytest.mark.parametrize("arguments", [(HOSTILE,), ("train", "--enc", HOSTILE), ("run", HOSTILE[:-1])])
def test_errors_show_what_was_typed_and_do_not_obey_it(arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    (line,) = errors(result)
    assert "[red]a[/] :rocket: :b: [#FIELD]" in line
    assert not UNSEEN.search(result.err)


def test_progress_shows_its_words_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "err", PlainConsole(file=stream, width=400, force_terminal=True))
    monkeypatch.setenv("POSCLI_QUIET", "")
    with Meter(LITERAL, 2) as meter:
        meter.advance(1, LITERAL)
    assert stream.getvalue().count(LITERAL) >= 2


# Help


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The words of every command and every group of commands, and the command."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*path, name))


def test_every_help_text_is_a_sentence_that_does_not_read_as_markup_or_as_the_name_of_an_emoji() -> None:
    """The library that prints help reads them as markup."""
    texts = {}
    for path, command in leaves(command_tree()):
        texts[path] = command.help or ""
        texts |= {(*path, each.name): getattr(each, "help", None) or "" for each in command.params}
    assert len(texts) > 60
    assert {name: text for name, text in texts.items() if Text.from_markup(text).plain != text} == {}
    ours = {name: text for name, text in texts.items() if not (name and name[-1].endswith(("_completion", "help")))}
    assert {name: text for name, text in ours.items() if not re.match(r"[A-Z'].*\.$", text, re.S)} == {}


def test_no_option_takes_an_empty_text() -> None:
    for path, command in leaves(command_tree()):
        for option in command.params if path and not hasattr(command, "commands") else ():
            if option.param_type_name == "option" and not option.is_flag and option.name != "prompt":
                result = cli(*path, max(option.opts, key=len), "")
                assert result.code == 2, (path, option.name)
                (line,) = errors(result)
                assert "''" in line or "empty" in line
                assert "a bug of poscli" not in line


@pytest.mark.parametrize("command", [(), ("train",), ("ls", "runs")], ids=" ".join)
def test_help_is_plain_under_no_color(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from typer import rich_utils

    monkeypatch.setattr(rich_utils, "FORCE_TERMINAL", True)
    monkeypatch.setattr(rich_utils, "COLOR_SYSTEM", "standard")
    assert "\x1b[" in cli(*command, "--help").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert_plain(cli(*command, "--help"))


@pytest.mark.parametrize("columns", ["40", "200"])
def test_every_name_is_shown_whole_on_a_narrow_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with brackets too, which some libraries take for markup."""
    monkeypatch.setenv("COLUMNS", columns)
    for kind, column in (("corpora", "corpus"), ("tasks", "task"), ("tokenizers", "tokenizer")):
        names = [row[column] for row in cli("ls", kind, "--json").json]
        shown = {line.split("  ")[0].strip() for line in cli("ls", kind).out.splitlines()}
        assert set(names) <= shown
