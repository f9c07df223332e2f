"""`poscli predict`: what other sizes, lengths and budgets will do, and whether it was so."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    from poscli.board.scaling import Size, SizeFits

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
    from poscli.board.scaling import read_scaling, size_of
    from poscli.board.season import current_season

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
        _score(score, cells, json_)
        return
    given = {"width": width, "layers": layers, "length": length}
    given["tokens"] = None if tokens is None else read_option(TokenCount, tokens, "--tokens")
    season = current_season()
    size = replace(size_of(season, season.table[0]), **{name: n for name, n in given.items() if n is not None})
    fits = read_scaling(cells)
    if register:
        _register(register, fits, json_)
    elif left_out:
        _leave_out(fits, cells, json_)
    elif slopes:
        _slopes(fits, encodings or [], text or [], json_)
    else:
        _predict(fits, size, encodings or [], text or [], json_)


def _register(folder: Path, fits: SizeFits, json_: bool) -> None:
    """Write down what the fits predict of the models of a folder."""
    from poscli.board.predictions import write_predictions

    file, without = write_predictions(folder, fits)
    for encoding in without:
        note(f"no prediction of {encoding}: no models tell what its size changes")
    emit(json_, {"file": str(file), "without": without}, lambda: None)
    note(f"written: {file}; commit it before you train")


def _emit(json_: bool, document: object, show: Callable[[], None]) -> None:
    from poscli.board.tables import PLACES
    from poscli.report.summary import as_json

    emit(json_, as_json(document, PLACES), show)


def _predict(fits: SizeFits, size: Size, encodings: list[str], texts: list[str], json_: bool) -> None:
    """Print what models of a size will do on each text, the best first."""
    from rich.text import Text

    from poscli.board.scaling import RATIOS
    from poscli.board.scaling_words import prediction_columns, prediction_legend, size_text
    from poscli.board.show import grid_of

    texts, chosen = fits.texts_of(texts), fits.names_of(encodings)
    predicted = {text: [fits.predict(name, text, size) for name in chosen] for text in texts}
    beyond = fits.beyond(size, chosen)

    def show() -> None:
        console = out()
        console.print(Text(size_text(size), style="bold"))
        if beyond:
            said = f"Beyond what was fitted, so that this is an extrapolation: {'; '.join(beyond)}"
            console.print(Text(said, style="yellow"))
        for text, found in predicted.items():
            rows = sorted(found, key=lambda row: (math.isnan(row.order[0]), row.order[0]))
            console.print(grid_of(prediction_columns(rows), title=f"\n{text}"))
        for line in prediction_legend([row for rows in predicted.values() for row in rows], fits):
            console.print(Text(line, style="dim"))

    rows = {text: [asdict(one) for one in found] for text, found in predicted.items()}
    _emit(json_, {"size": asdict(size), "beyond": beyond, "ratios": list(RATIOS), "predicted": rows}, show)


def _slopes(fits: SizeFits, encodings: list[str], texts: list[str], json_: bool) -> None:
    """Print what doubling each part of a size changes."""
    from rich.text import Text

    from poscli.board.scaling_words import SLOPES_LEGEND, borrowed, slope_columns
    from poscli.board.show import grid_of

    chosen = fits.names_of(encodings)
    by_text = {text: [fits.slopes(name, text) for name in chosen] for text in fits.texts_of(texts)}

    def show() -> None:
        for text, found in by_text.items():
            out().print(grid_of(slope_columns(found), title=f"\n{text}"))
        for line in (SLOPES_LEGEND, *borrowed(chosen, fits)):
            out().print(Text(line, style="dim"))

    rows = {
        text: [asdict(one) | {"slopes_of": fits.slopes_of[one.encoding]} for one in found]
        for text, found in by_text.items()
    }
    _emit(json_, rows, show)


def _leave_out(fits: SizeFits, cells: Path, json_: bool) -> None:
    """Print how well each size is predicted from all others."""
    from rich.text import Text

    from poscli.board.predictions import sizes_left_out
    from poscli.board.scaling import losses_on_board
    from poscli.board.scaling_words import LEFT_OUT_LEGEND, left_out_columns
    from poscli.board.show import grid_of

    sizes = sizes_left_out(fits, losses_on_board(cells))

    def show() -> None:
        out().print(grid_of(left_out_columns(sizes)))
        out().print(Text(LEFT_OUT_LEGEND, style="dim"))

    _emit(json_, [asdict(each) for each in sizes], show)


def _score(folder: Path, cells: Path, json_: bool) -> None:
    """Print the largest misses of the predictions of a folder, and then how many held."""
    from rich.text import Text

    from poscli.board.predictions import ON_BOARD, WITHIN, score_predictions
    from poscli.board.scaling_words import failure_columns, miss_columns, sentences_of_score, share_columns
    from poscli.board.show import grid_of

    counted = score_predictions(folder, cells)

    def show() -> None:
        console, misses = out(), counted.misses[:MISSES]
        title = f"The largest {len(misses)} of {len(counted.misses)} misses, in bits per token"
        console.print(grid_of(miss_columns(misses), title=title))
        if failures := counted.failures:
            title = f"\nFailure lengths that are off by a factor of more than {WITHIN:g}"
            console.print(grid_of(failure_columns(failures), title=title))
        console.print(grid_of(share_columns(counted), title="\nWhat held"))
        for line in sentences_of_score(counted):
            console.print(Text(line))

    _emit(json_, asdict(counted), show)
    if ON_BOARD not in [share.of for share in counted.shares]:
        note(f"{cells} has no cells of the board, whose order would stand beside the predicted one; give --cells")
