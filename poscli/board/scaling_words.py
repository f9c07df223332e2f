"""Predictions of other sizes, and what held of them, as columns of text and as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from poscli.board.predictions import Miss, Score, Share, SizeLeftOut
from poscli.board.scaling import DIRECTIONS, RATIOS, SEPARABLE, Predicted, Size, SizeFits, Slopes
from poscli.board.tables import multiple_text, number_text
from poscli.config.validate import write_count
from poscli.drawing.text import listed, named
from poscli.report.table import Column, words
from poscli.specs import with_layouts
from poscli.statistics import Triple
from poscli.system.text import counted

SLOPES_LEGEND = (
    f"What a doubling adds to the loss at {RATIOS[-1]} L less that at L, in bits per token, and how far its 95 % "
    "interval goes: where that leaves out 0, the doubling is shown to change something."
)


LEFT_OUT_LEGEND = (
    f"order: of every two encodings that models of this size tell apart at {RATIOS[-1]} L, how often the order is that "
    "of the fits to all other sizes, and that of the board's smallest models, nothing fitted; off by: how far off the "
    f"predicted change at {RATIOS[-1]} L is, in bits per token, root mean square"
)


def size_text(size: Size) -> str:
    """The size of models in words."""
    return f"{size.layers} layers of width {size.width}, L = {size.length}, {write_count(size.tokens)} tokens"


def prediction_columns(rows: Sequence[Predicted]) -> list[Column]:
    """What is predicted of encodings on one text."""
    columns = [words("encoding", (with_layouts(row.encoding) for row in rows))]
    for n, ratio in enumerate(RATIOS):
        columns.append(Column(f"change {ratio}x", tuple(_plus_minus(row.changes[n]) for row in rows)))
    columns.append(Column(f"order {RATIOS[-1]}x", tuple(_plus_minus(row.order) for row in rows)))
    return [*columns, Column("fails from", tuple(_failure_text(row) for row in rows))]


def prediction_legend(rows: Sequence[Predicted], fits: SizeFits) -> list[str]:
    """What the columns mean, and whose slopes encodings have that are not in the star."""
    said = [
        "change: of the loss, in bits per token, by a context of so many L in place of one of L; the 95 % interval for "
        "one more model goes as far as ± says",
        f"order: the loss at {RATIOS[-1]} L less the mean over {counted(len(fits.star), 'encoding')}, one of each "
        "mechanism",
        f"fails from: the multiple of L from which on a longer context harms, by more than {SEPARABLE} bits per token",
    ]
    return [*said, *borrowed((row.encoding for row in rows), fits)]


def borrowed(encodings: Iterable[str], fits: SizeFits) -> list[str]:
    """A sentence for each encoding that is not in the star, which says from which encodings its slopes are taken."""
    return [
        f"what a size changes in {named(name)} is taken from {listed(list(fits.slopes_of[name]))}"
        for name in dict.fromkeys(encodings)
        if fits.slopes_of[name] != (name,)
    ]


def slope_columns(rows: Sequence[Slopes]) -> list[Column]:
    """What a doubling of each part of a size changes, of encodings on one text."""
    columns = [words("encoding", (with_layouts(row.encoding) for row in rows))]
    for name in DIRECTIONS:
        columns.append(Column(f"2x {name}", tuple(_plus_minus(row.per_octave[name]) for row in rows)))
    return [*columns, Column("models", tuple(str(row.models) for row in rows))]


def left_out_columns(sizes: Sequence[SizeLeftOut]) -> list[Column]:
    """What the other sizes say of each, and the sums of all."""
    columns = [words("left out", [*(size_text(each.size) for each in sizes), "all"])]
    for name, shares in (("fits", [each.by_fits for each in sizes]), ("board", [each.by_board for each in sizes])):
        total = Share("", sum(each.right for each in shares), sum(each.count for each in shares))
        held = (f"{each.right} of {each.count}" if each.count else "-" for each in [*shares, total])
        columns.append(Column(f"order of the {name}", tuple(held)))
    for name, off in (("fits", [each.off_by_fits for each in sizes]), ("board", [each.off_by_board for each in sizes])):
        columns.append(Column(f"{name} off by", (*(number_text(each, "z.2f") for each in off), "")))
    return columns


def miss_columns(misses: Sequence[Miss]) -> list[Column]:
    """The predictions that did not hold, beside what was found."""
    return [
        words("text", (miss.text for miss in misses)),
        words("what", (with_layouts(miss.what) for miss in misses)),
        Column("predicted", tuple(f"{miss.predicted:+.2f}" for miss in misses)),
        Column("found", tuple(f"{miss.found:+.2f}" for miss in misses)),
    ]


def failure_columns(failures: Sequence[Miss]) -> list[Column]:
    """The failure lengths that are far from what was predicted, beside what was found."""
    return [
        words("text", (miss.text for miss in failures)),
        words("encoding", (with_layouts(miss.what) for miss in failures)),
        Column("fails from", tuple(_fails_from(miss.predicted) for miss in failures)),
        Column("found", tuple(_fails_from(miss.found) for miss in failures)),
    ]


def share_columns(found: Score) -> list[Column]:
    """How many predictions held, by kind."""
    return [
        words("predicted", (share.of for share in found.shares)),
        Column("held", tuple(f"{share.right} of {share.count}" for share in found.shares)),
        Column("share", tuple(_share_text(share) for share in found.shares)),
    ]


def sentences_of_score(found: Score) -> list[str]:
    """When the predictions were made, of what, and how much could be expected."""
    dated = f"Registered {found.registered}" if found.registered else "Registered without a date in the file"
    said = [
        f"{dated}; {counted(found.encodings, 'encoding')}, {counted(found.seeds, 'seed')}. A pair counts if the models "
        f"tell it apart: all seeds have one sign, and the mean differs by more than {SEPARABLE} bits per token."
    ]
    if found.ceiling.count:
        said.append(
            f"One seed orders {_share_text(found.ceiling)} of the pairs that it tells apart as another seed does."
        )
    else:
        said.append("With one seed it is not known how often another seed would give the same order.")
    return said


def _plus_minus(value: Triple) -> str:
    """A number and how far its interval goes to either side; a dash if it is not known."""
    middle, _, high = value
    return "-" if math.isnan(middle) else f"{middle:+.2f} ±{high - middle:.2f}"


def _share_text(share: Share) -> str:
    if not share.count:
        return "-"
    interval = "" if math.isnan(share.low) else f" [{100 * share.low:.0f}, {100 * share.high:.0f}]"
    return f"{100 * share.right / share.count:.0f}{interval} %"


def _failure_text(row: Predicted) -> str:
    value, low, high = map(_fails_from, row.fails)
    return f"{value} [{low}, {high}]"


def _fails_from(length: float) -> str:
    """A multiple of L."""
    return f"> {RATIOS[-1]}x" if math.isinf(length) else multiple_text(round(length, 1))
