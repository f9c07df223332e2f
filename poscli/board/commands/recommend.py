"""`poscli recommend`: what to train with, under the constraints of a person."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.board.commands.board import CELLS, Cells, OneTable, SeasonFile
from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import Json
from poscli.system.console import emit, out
from poscli.system.errors import DataError

if TYPE_CHECKING:
    from poscli.board.recommend import Recommendation

OPTIONAL_COLUMNS = ("parameters", "vLLM", "training", "kernels")  # the last is dropped first where all do not fit
SHOWN = 8  # choices in the table


@command("recommend", after="rank")
def recommend_encoding(
    *,
    length: Annotated[int, typer.Option("--length", "-L", help="Tokens in your training windows.", min=1)],
    max_len: Annotated[int, typer.Option("--max-len", help="Tokens that the model is to read.", min=1)],
    trained: Annotated[
        str,
        typer.Option(
            "--trained",
            help="The encoding of a trained model: how to read longer inputs without training.",
            autocompletion=complete.specs,
        ),
    ] = "",
    flash: Annotated[bool, typer.Option("--flash", help="It must run under FlashAttention.")] = False,
    vllm: Annotated[bool, typer.Option("--vllm", help="It must be one that vLLM computes.")] = False,
    no_parameters: Annotated[bool, typer.Option("--no-parameters", help="It must add no parameters.")] = False,
    slowdown: Annotated[
        float | None,
        typer.Option("--slowdown", help="A training step may last at most so many times that of none.", min=0),
    ] = None,
    table: OneTable = None,
    season_: SeasonFile = None,
    cells: Cells = CELLS,
    json_: Json = False,
) -> None:
    """What to train with, under your constraints; with the evidence, what each costs, and what is not known.

    It says what the board has shown at the same multiple of the training length, and nothing more.
    """
    from poscli.board.arrays import tables_of_cells
    from poscli.board.predictions import order_kept
    from poscli.board.recommend import Wishes, recommend, unknown_of
    from poscli.board.scaling import fits_in, losses_on_board
    from poscli.board.season import season_of, table_names

    season = season_of(season_)
    (chosen, *_) = table_names(season, [table] if table else [])
    tables = {each.table.name: each for each in tables_of_cells(cells, season)}
    if chosen not in tables:
        raise DataError(f"there are no cells of table {chosen!r} in {cells}; make some with `poscli board run`")
    wishes = Wishes(length, max_len, trained, flash, vllm, no_parameters, slowdown)
    found = recommend(tables[chosen], wishes)
    fits = fits_in(cells)
    unknown = unknown_of(found, fits, order_kept(fits, losses_on_board(cells)) if fits else None)
    emit(json_, _document(found, unknown), lambda: _show(found, unknown))


def _document(found: Recommendation, unknown: list[str]) -> dict[str, Any]:
    from poscli.board.recommend import architecture_in_vllm, sentences_of
    from poscli.board.tables import PLACES, name_on_board
    from poscli.report.summary import as_json

    document: dict[str, Any] = as_json(
        {
            "wishes": asdict(found.wishes),
            "multiple": found.multiple,
            "choices": [
                {
                    "encoding": each.row.encoding,
                    "shown": name_on_board(each.row),
                    "first": each.first,
                    "last": each.last,
                    "won": each.won,
                    "gain": each.gain,
                    "vllm": architecture_in_vllm(each.row),
                }
                for each in found.choices
            ],
            "prices": [asdict(price) for price in found.prices],
            "answers": sentences_of(found),
            "unknown": unknown,
        },
        PLACES,
    )
    return document


def _show(found: Recommendation, unknown: list[str]) -> None:
    """Print the answer, the first choices, and what is not known."""
    from rich.text import Text

    from poscli.board.recommend import choice_columns, sentences_of
    from poscli.board.show import fitting_columns, grid_of

    console = out()
    for n, sentence in enumerate(sentences_of(found)):
        console.print(Text(sentence, style="bold" * (n == 0)))
    rows = range(min(SHOWN, len(found.choices)))
    columns = fitting_columns(choice_columns(found), console, OPTIONAL_COLUMNS, rows)
    styles = ["bold" if each.first == 1 else "" for each in found.choices]
    console.print(grid_of(columns, rows, styles, title=f"\nThe first {len(rows)} of {len(found.choices)}"))
    console.print(Text("Not known", style="bold"))
    for line in unknown:
        console.print(Text(f"- {line}"))
