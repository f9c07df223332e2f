"""The advice in sentences, and as a page for the terminal: the answer first."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.drawing.text import listed
from poscli.report.advice import BEST, Advice, Candidate
from poscli.report.table import gain_text
from poscli.report.terminal import COLORS, FAILED_COLOR
from poscli.report.verdicts import HARM_BPB, HOLDS, MAY_USE_CONTEXT, USES_CONTEXT, meanings
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.comparison import WITHIN_NOISE, Comparison
from poscli.system.text import printable_line


def answer(advice: Advice) -> list[str]:
    """The advice in one to three sentences."""
    if advice.untrained:
        return [f"No advice: on this text {advice.model} is no better than a guess ({advice.untrained})."]
    return _window(advice) if advice.chosen is None else _encoding(advice, advice.chosen)


def notes(advice: Advice) -> list[str]:
    """What the numbers are, and over what their intervals are."""
    last = f"last {advice.train_length} tokens"
    documents = f"{advice.documents} documents"
    few = advice.seeds < FEWEST_SEEDS
    over = f"{documents} only: this one training of the model" if few else f"{advice.seeds} seeds and {documents}"
    lines = [
        f"gain: {advice.bits} by which the loss on inputs of {advice.target} tokens is below that of the model as it "
        f"is reading the {last}, on the same tokens",
        f"cost: {advice.bits} by which the loss on inputs of {advice.train_length} tokens is above that of the model "
        "as it is",
        f"95 % intervals are over {over}",
    ]
    seen = {each.verdict for each in advice.candidates}
    return lines + [f"{word}: {meaning}" for word, meaning in meanings(advice.bits).items() if word in seen]


def show_advice(advice: Advice, console: Console) -> None:
    """Print the answer, the candidates, and what the numbers mean."""
    for line in answer(advice):
        console.print(Text(printable_line(line), style="bold"))
    console.print()
    console.print(candidates_table(advice))
    for line in notes(advice):
        console.print(Text(printable_line(line), style="dim"))
    for each in advice.candidates:
        if each.reason:
            console.print(Text(printable_line(f"{each.name}: {each.verdict}: {each.reason}"), style=FAILED_COLOR))


def candidates_table(advice: Advice) -> Table:
    """One line per candidate, the largest gain first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(Text(f"{advice.model} under"), overflow="fold", min_width=12)
    table.add_column(Text(f"gain at {advice.target} [95 %]"), justify="right")
    table.add_column(Text(f"cost at {advice.train_length} [95 %]"), justify="right")
    table.add_column(Text("verdict"))
    table.add_column(Text("among the best"))
    for each in advice.candidates:
        style = "bold" if each is advice.chosen else ""
        table.add_row(
            Text(printable_line(each.name), style=style),
            _numbers(each.gain),
            _numbers(each.cost),
            Text(each.verdict, style=COLORS.get(each.verdict, FAILED_COLOR)),
            each.word,
        )
    return table


def _numbers(each: Comparison) -> str:
    return gain_text(*each.numbers)


def _encoding(advice: Advice, chosen: Candidate) -> list[str]:
    """What to do, what it brings, and what else would do as well."""
    last = f"its last {advice.train_length} tokens"
    do = f"Run {advice.model} under {chosen.spec}"
    if not chosen.spec:
        own = f"Leave the positions of {advice.model} as they are"
        do = own if chosen.variant == FULL else f"{own} and limit its attention ({chosen.variant})"
    gain, cost = _numbers(chosen.gain), _numbers(chosen.cost)
    first = f"{do}: at {advice.target} tokens it gains {gain} {advice.bits} over reading {last}"
    unchanged = chosen.variant == FULL and not chosen.spec
    lines = [f"{first}." if unchanged else f"{first}, and costs {cost} at {advice.train_length}."]
    peers = [each for each in advice.candidates if each.word in (BEST, WITHIN_NOISE) and each.counts]
    if others := [each.name for each in peers if each is not chosen]:
        cheapest = chosen.price < min(each.price for each in peers if each is not chosen)
        why = "costs least" if cheapest else "is the simplest of those that cost least"
        lines.append(f"The gain of {listed(others)} is within noise of it; it {why} at {advice.train_length} tokens.")
    return lines


def _window(advice: Advice) -> list[str]:
    """Why the last tokens are all that should be read, and what would do the least harm."""
    lines = [
        f"Let {advice.model} read the last {advice.train_length} tokens only: of {len(advice.candidates)} ways to read "
        f"{advice.target}, none is better."
    ]
    holding = [each for each in advice.candidates if each.verdict == HOLDS]
    if holding:
        cheapest = min(holding, key=lambda each: (each.price, -each.gain.difference))
        lines.append(
            f"If inputs must be read whole, {cheapest.name} costs least of what is not worse than that by {HARM_BPB} "
            f"{advice.bits} or more: its gain is {_numbers(cheapest.gain)} and its cost {_numbers(cheapest.cost)} "
            f"{advice.bits}."
        )
    if doubtful := [each.name for each in advice.candidates if each.verdict in (USES_CONTEXT, MAY_USE_CONTEXT)]:
        lines.append(f"The gain of {listed(doubtful)} may be chance, given how many were tried: score more --tokens.")
    return lines
