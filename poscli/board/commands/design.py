"""`poscli design`: encodings designed from a text alone, without training."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.board.commands.board import CELLS, Cells
from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import Json, TokenizerOption
from poscli.system.console import emit, note, out
from poscli.system.errors import UsageError

if TYPE_CHECKING:
    from poscli.board.design import Designed, LeftOut
    from poscli.data.profile import DistanceProfile

FIRST = 10  # encodings of the expected order


@command("design", after="predict")
def design_encodings(
    texts: Annotated[
        list[str],
        typer.Argument(
            help="Texts, such as stdlib or text:FOLDER; `poscli ls corpora` shows all.", autocompletion=complete.corpora
        ),
    ],
    *,
    tokenizer: TokenizerOption = "bytes",
    length: Annotated[
        int, typer.Option("--length", "-L", help="Tokens in the training windows.", min=8, max=65536)
    ] = 64,
    to: Annotated[
        Path | None,
        typer.Option(help="Also write a suite that tries the designs beside the defaults.", metavar="FOLDER"),
    ] = None,
    cells: Cells = CELLS,
    json_: Json = False,
) -> None:
    """Choose slopes, buckets, windows, frequencies and a layout without training, from how far back texts repeat.

    It also says which encodings to expect in front, and how often the order on other texts held.
    """
    from poscli.board import design
    from poscli.board.cells import read_profiles
    from poscli.board.scaling import losses_on_board
    from poscli.board.season import current_season
    from poscli.data import load_corpus
    from poscli.data.ngram import window_lengths
    from poscli.data.profile import distance_profile
    from poscli.system.files import check_folder, write_atomic

    if to is not None:
        check_folder(to, "--to")
        if not re.fullmatch(r"[^+|(),=\s]+", str(to)):
            raise UsageError(f"--to {str(to)!r} has a space or one of +|(),= in it, which specs cannot have; rename it")
    lengths = window_lengths(length)
    profiles = {text: distance_profile(load_corpus(text, tokenizer=tokenizer), lengths) for text in texts}
    designed = {text: design.designs(design.Distances(text, profile), length) for text, profile in profiles.items()}
    season = current_season()
    orders = design.Orders(losses_on_board(cells), design.exponents_of(read_profiles(cells, season.name), season.texts))
    order, held = orders.on_all(), orders.left_out()
    document = {
        "texts": [
            {
                "text": text,
                "profile": asdict(profile),
                "designed": [asdict(each) | {"tried": each.tried} for each in designed[text]],
            }
            for text, profile in profiles.items()
        ],
        "order": order,
        "left_out": [asdict(each) for each in held],
    }
    if to is not None:
        files = {
            design.KERPLE_FILE: design.KERPLE,
            "suite.toml": design.suite_source(designed, length, tokenizer, to),
        }
        for name, content in files.items():
            write_atomic(to / name, content)
    emit(json_, document, lambda: _show(profiles, designed, order, held))
    if to is not None:
        suite = shlex.quote(str(to / "suite.toml"))
        note(f"written: {to / 'suite.toml'}; `poscli run {suite}` trains the designs beside the defaults")


def _show(
    profiles: Mapping[str, DistanceProfile],
    designed: Mapping[str, Sequence[Designed]],
    order: Sequence[str],
    held: Sequence[LeftOut],
) -> None:
    """Print how far back each text repeats itself, the designs for it, and the order to expect."""
    from rich.text import Text

    from poscli.board.show import grid_of
    from poscli.report.table import Column, words
    from poscli.specs import with_layouts

    console = out()
    for text, profile in profiles.items():
        found, of_text = sum(profile.counts), designed[text]
        octaves = [
            words("distance", (f"{first} to {last}" for first, last in profile.octaves)),
            Column("of the copies", tuple(f"{100 * count / found:.0f} %" for count in profile.counts)),
        ]
        tokens = f"{found:,} of {profile.tokens:,} tokens could be copied from"
        console.print(Text(f"How far back {tokens}: {text}", style="bold"))
        console.print(grid_of(octaves))
        columns = [
            words("designed", (each.spec for each in of_text)),
            words("in place of", (with_layouts(each.default) for each in of_text)),
            words("because", (each.why for each in of_text)),
            words("on other texts, at 16 L", (each.tried for each in of_text)),
        ]
        console.print(Text("\nDesigned, and not tried on this text", style="bold"))
        console.print(grid_of(columns))
        console.print()
    console.print(Text("Expected in front: the least loss at 16 L on the board", style="bold"))
    console.print(Text(", ".join(map(with_layouts, order[:FIRST]))))
    right, count = (sum(getattr(each, name) for each in held) for name in ("right", "count"))
    if not count:
        console.print(Text("On the board's texts no two of these are told apart, so that their order says nothing."))
        return
    profiled = sum(each.right_by_profile for each in held)
    console.print(
        Text(
            f"Of the board's texts, the order on all but one is that on the one left out for {right} of {count} pairs "
            f"({100 * right / count:.0f} %). With the exponents of the texts it would be {profiled}: the profile of a "
            f"text says {'more' if profiled > right else 'nothing more'} of the order there."
        )
    )
