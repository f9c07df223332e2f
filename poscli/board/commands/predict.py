"""`poscli predict`: what other sizes, lengths and budgets will do, and whether it was so."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.board.commands.board import CELLS, Cells
from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import Json, read_option
from poscli.config.validate import TokenCount
from poscli.system.console import emit, note, out
from poscli.system.errors import UsageError

if TYPE_CHECKING:
    from poscli.board.predictions import Score
    from poscli.board.scaling import Predicted, Size, SizeFits, Slopes
    from poscli.board.sizes_left_out import SizeLeftOut

MISSES = 12  # in the table of a score
BOARDS = "that of the board"  # the size of models


@command("predict", after="recommend")
def predict_size(
    encodings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENCODING]...",
            help="Encodings of the board; by default one of each mechanism.",
            autocompletion=complete.specs,
            show_default=False,
        ),
    ] = None,
    *,
    width: Annotated[int | None, typer.Option(help="Width of the models.", min=1, show_default=BOARDS)] = None,
    layers: Annotated[int | None, typer.Option(help="Their layers.", min=1, show_default=BOARDS)] = None,
    length: Annotated[
        int | None,
        typer.Option("--length", "-L", help="Tokens in their training windows.", min=1, show_default=BOARDS),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens of their training, such as 20M.", show_default=BOARDS)
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help="A text that was fitted; by default all; repeatable.")
    ] = None,
    slopes: Annotated[
        bool, typer.Option("--slopes", help="Show what each doubling of the size changes instead.")
    ] = False,
    left_out: Annotated[
        bool, typer.Option("--left-out", help="Predict each size that there is from the others instead.")
    ] = False,
    register: Annotated[
        Path | None,
        typer.Option(
            help="Write down, with hash and date, what models of FOLDER/season.toml will do.", metavar="FOLDER"
        ),
    ] = None,
    score: Annotated[
        Path | None, typer.Option(help="Count what held of the predictions in FOLDER, misses first.", metavar="FOLDER")
    ] = None,
    cells: Cells = CELLS,
    json_: Json = False,
) -> None:
    """What models of another size, training length or budget will do with longer contexts, from fits to small ones.

    The fits are to the board's models and to those around it, which `poscli board run --season star` trains.
    """
    from poscli.board import predictions
    from poscli.board.scaling import losses_on_board, read_scaling, size_of
    from poscli.board.season import current_season
    from poscli.board.sizes_left_out import sizes_left_out
    from poscli.board.tables import PLACES
    from poscli.report.summary import as_json

    if register and score:
        raise UsageError("--register and --score: between the two lies the training; give one")
    if slopes and left_out:
        raise UsageError("--slopes and --left-out: each shows something else; give one")
    size_given = {"--width": width, "--layers": layers, "--length": length, "--tokens": tokens}
    subset = {"ENCODING": encodings, "--text": text}
    others = subset | {"--slopes": slopes, "--left-out": left_out}
    for mode, asked, unfit in (
        ("--score", score, size_given | others),
        ("--register", register, size_given | others),
        ("--slopes", slopes, size_given),
        ("--left-out", left_out, size_given | subset),
    ):
        if asked and (given_too := [option for option, value in unfit.items() if value]):
            raise UsageError(f"{mode} takes no {' and '.join(given_too)}: nothing would come of it; leave it out")
    if score:
        counted = predictions.score_predictions(score, cells)
        emit(json_, as_json(asdict(counted), PLACES), lambda: _show_score(counted))
        return
    given = {"width": width, "layers": layers, "length": length}
    given["tokens"] = None if tokens is None else read_option(TokenCount, tokens, "--tokens")
    season = current_season()
    size = replace(size_of(season, season.table[0]), **{name: n for name, n in given.items() if n is not None})
    fits = read_scaling(cells)
    if register:
        file, without = predictions.write_predictions(register, fits)
        for encoding in without:
            note(f"no prediction of {encoding}: no models tell what its size changes")
        emit(json_, {"file": str(file), "without": without}, lambda: None)
        note(f"written: {file}; commit it before you train")
        return
    if left_out:
        sizes = sizes_left_out(fits, losses_on_board(cells))
        emit(json_, as_json([asdict(each) for each in sizes], PLACES), lambda: _show_left_out(sizes))
        return
    texts, chosen = fits.texts_of(text or []), fits.names_of(encodings or [])
    if slopes:
        by_text = {each: [fits.slopes(name, each) for name in chosen] for each in texts}
        document = {each: [asdict(one) for one in found] for each, found in by_text.items()}
        emit(json_, as_json(document, PLACES), lambda: _show_slopes(by_text))
        return
    predicted = {each: [fits.predict(name, each, size) for name in chosen] for each in texts}
    rows = {each: [asdict(one) for one in found] for each, found in predicted.items()}
    answer = {"size": asdict(size), "beyond": fits.beyond(size, chosen), "predicted": rows}
    emit(json_, as_json(answer, PLACES), lambda: _show(fits, size, predicted))


def _show(fits: SizeFits, size: Size, predicted: dict[str, list[Predicted]]) -> None:
    """Print what is predicted on each text, the best first."""
    from rich.text import Text

    from poscli.board.scaling_words import prediction_columns, prediction_legend, size_text
    from poscli.board.show import grid_of

    console = out()
    console.print(Text(size_text(size), style="bold"))
    encodings = list(dict.fromkeys(row.encoding for found in predicted.values() for row in found))
    if beyond := fits.beyond(size, encodings):
        console.print(
            Text(f"Beyond what was fitted, so that this is an extrapolation: {'; '.join(beyond)}", style="yellow")
        )
    for text, found in predicted.items():
        rows = sorted(found, key=lambda row: (math.isnan(row.order[0]), row.order[0]))
        console.print(grid_of(prediction_columns(rows), range(len(rows)), title=f"\n{text}"))
    for line in prediction_legend([row for rows in predicted.values() for row in rows], fits):
        console.print(Text(line, style="dim"))


def _show_slopes(by_text: dict[str, list[Slopes]]) -> None:
    """Print what doubling each part of a size changes."""
    from rich.text import Text

    from poscli.board.scaling_words import SLOPES_LEGEND, slope_columns
    from poscli.board.show import grid_of

    for text, found in by_text.items():
        out().print(grid_of(slope_columns(found), range(len(found)), title=f"\n{text}"))
    out().print(Text(SLOPES_LEGEND, style="dim"))


def _show_left_out(sizes: list[SizeLeftOut]) -> None:
    """Print what the other sizes say of each."""
    from rich.text import Text

    from poscli.board.scaling_words import LEFT_OUT_LEGEND, left_out_columns
    from poscli.board.show import grid_of

    columns = left_out_columns(sizes)
    out().print(grid_of(columns, range(len(columns[0].cells))))
    out().print(Text(LEFT_OUT_LEGEND, style="dim"))


def _show_score(counted: Score) -> None:
    """Print the largest misses, and then how many predictions held."""
    from rich.text import Text

    from poscli.board.scaling_words import miss_columns, sentences_of_score, share_columns
    from poscli.board.show import grid_of

    console, misses = out(), counted.misses[:MISSES]
    title = f"The largest {len(misses)} of {len(counted.misses)} misses, in bits per token"
    console.print(grid_of(miss_columns(misses), range(len(misses)), title=title))
    console.print(grid_of(share_columns(counted), range(len(counted.shares)), title="\nWhat held"))
    for line in sentences_of_score(counted):
        console.print(Text(line))
