"""What to train with, or how to read a model that exists, under a person's constraints: from the cells of the board.

Encodings are compared at the multiple of L that the person asks for, by regret (arrays.py), among those that meet every
constraint, with the same tests as the board's ranks. What a constraint costs is the difference in regret between the
best with it and the best without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poscli.board.arrays import Entry, TableOfCells
from poscli.board.page.about import FLASH, about
from poscli.board.predictions import Share
from poscli.board.scaling import SizeFits
from poscli.board.standings import NOBODY, Row, pairs_among, rank_range, ranks_among, standings_among
from poscli.board.tables import multiple_text, name_on_board, number_text, with_interval
from poscli.drawing.text import listed, named
from poscli.report.catalogue import OTHER, describe_spec, spec_in_label
from poscli.report.pooling import ratio_name
from poscli.report.table import Column, words
from poscli.specs import parse
from poscli.statistics import Triple
from poscli.system.errors import UsageError
from poscli.system.text import counted

# Architectures of vLLM that compute a model whose layers have these encodings, in any order of layers. Its loader takes
# their weights under the names of the architecture. As of vLLM 0.11: its rotary embeddings, its registry of models,
# and the models of Cohere 2, which rotate in layers with a window only.
IN_VLLM: dict[frozenset[frozenset[str]], str] = {
    frozenset(frozenset(layer.split("+")) for layer in layers.split("|")): architecture
    for layers, architecture in {
        "rope": "LlamaForCausalLM",
        "rope-linear": "LlamaForCausalLM",
        "rope-ntk": "LlamaForCausalLM",
        "llama3": "LlamaForCausalLM",
        "yarn": "LlamaForCausalLM",
        "longrope": "LlamaForCausalLM",
        "rope+window": "MistralForCausalLM",
        "rope+window|none": "Cohere2ForCausalLM",
        "rope|none": "SmolLM3ForCausalLM",
        "rope+window+sink-logit|rope+sink-logit": "GptOssForCausalLM",
        "alibi": "MPTForCausalLM",
    }.items()
}

# Their options that these architectures read from a configuration. Others change the formula.
IN_CONFIGURATIONS = {"base", "factor", "original", "low", "high", "beta_fast", "beta_slow", "width", "most"}


@dataclass(frozen=True)
class Wishes:
    """What a person needs; lengths in tokens."""

    length: int  # of the training windows
    max_len: int  # that the model is to read
    trained: str  # what a model that exists was trained with; "" if one is to be trained
    flash: bool  # runs under FlashAttention
    vllm: bool  # vLLM loads it
    no_parameters: bool  # adds none to those of the model
    slowdown: float | None  # at most this many times as long a training step as without an encoding

    def constraints(self, bare: int | None, length: int) -> dict[str, Callable[[Row], bool]]:
        """The constraints by their options; `bare` are the parameters of models whose encoding has none of its own.

        `length` is that of the training windows on the board.
        """
        every: dict[str, tuple[bool, Callable[[Row], bool]]] = {
            "--flash": (self.flash, lambda row: FLASH in about(spec_in_label(row.encoding), length).kernels),
            "--vllm": (self.vllm, lambda row: bool(architecture_in_vllm(row))),
            "--no-parameters": (self.no_parameters, lambda row: row.parameters == bare),
            f"--slowdown {self.slowdown or 0:g}": (
                self.slowdown is not None,
                lambda row: row.training[0] <= (self.slowdown or 0.0),
            ),
        }
        return {option: meets for option, (asked, meets) in every.items() if asked}


@dataclass(frozen=True)
class Recommended:
    """An encoding that meets the constraints, at the multiple of L that was asked for.

    `won` is what it wins over the best with its context cut to L, as a share of what training on 16 L would win, and
    `gain` the bits per byte it wins over itself at L, each with its 95 % interval. `first` and `last` are the ranks
    that it may have among the choices.
    """

    row: Row
    won: Triple
    gain: Triple
    first: int
    last: int


ALL = "all of this together"  # the option of a price


@dataclass(frozen=True)
class Price:
    """What a constraint costs: how much more the best encoding `without` it wins, in the unit of `Recommended.won`.

    The other constraints stay, but for the price of ALL. The interval is that of these two; whether a cost is `shown`
    counts all encodings that meet the other constraints.
    """

    option: str
    without: str
    share: Triple
    shown: bool


@dataclass(frozen=True)
class Recommendation:
    """The encodings that meet the wishes, best first at `multiple` times L, and what each constraint costs."""

    wishes: Wishes
    table: TableOfCells
    multiple: float
    bare: int | None  # parameters of models whose encoding has none of its own, if the table has such models
    choices: tuple[Recommended, ...]
    prices: tuple[Price, ...]

    @property
    def equals(self) -> list[Recommended]:
        """The choices that may be the best: none is shown to be better than they are."""
        return [each for each in self.choices if each.first == 1]


def architecture_in_vllm(row: Row) -> str:
    """The architecture of vLLM that computes an encoding of the board; "" for none that is known."""
    spec = spec_in_label(row.encoding)
    if describe_spec(spec).family == OTHER:  # it may name a file, which must not be run
        return ""
    layers = parse(spec).layers
    if {option for layer in layers for leaf in layer for option, _ in leaf.options} - IN_CONFIGURATIONS:
        return ""
    return IN_VLLM.get(frozenset(frozenset(leaf.name for leaf in layer) for layer in layers), "")


def recommend(table: TableOfCells, wishes: Wishes) -> Recommendation:
    """The encodings of a table that meet a person's wishes, ranked among each other.

    The length is the shortest on the board that has at least the multiple of L that was asked for, or the longest.
    UsageError if no encoding meets the wishes, or if no model of `wishes.trained` is on the board.
    """
    if wishes.max_len <= wishes.length:
        raise UsageError(
            f"--max-len {wishes.max_len}: it must be more than --length {wishes.length}; within the training length "
            "compare encodings by their bits at L on the board"
        )
    if wishes.trained and wishes.slowdown is not None:
        raise UsageError(
            f"--slowdown {wishes.slowdown:g} is what a training step may cost, and --trained {wishes.trained!r} is "
            "trained already; leave one out"
        )
    standings = standings_among(table, tuned=False)
    ranked, bare = standings.ranked, standings.bare
    pool = [row for row in ranked if row.is_reading == bool(wishes.trained)]
    if wishes.trained:
        spec = str(parse(wishes.trained))
        pool = [row for row in ranked if row.trained_as == spec]
        if not any(row.is_reading for row in pool):
            known = sorted({row.trained_as for row in ranked if row.is_reading})
            raise UsageError(
                f"--trained {wishes.trained!r}: the board has no other readings of its models; "
                f"it has those of {listed(known)}"
            )
    if not pool:
        raise UsageError(
            f"no encoding of table {table.table.name!r} has a rank yet; `poscli board run` goes on with it"
        )
    if wishes.slowdown is not None and all(math.isnan(row.training[0]) for row in pool):
        raise UsageError(
            f"--slowdown {wishes.slowdown:g}: this board does not know what a training step costs; `poscli board run` "
            "measures it"
        )
    if wishes.no_parameters and bare is None:
        raise UsageError(
            f"--no-parameters: table {table.table.name!r} has no model of `{NOBODY}`, so that nobody knows which "
            "encodings add some; `poscli board run` trains it where the season has it"
        )
    constraints = wishes.constraints(bare, table.length)
    meeting = [row for row in pool if all(meets(row) for meets in constraints.values())]
    if not meeting:
        alone = listed([f"{option} leaves {sum(map(meets, pool))}" for option, meets in constraints.items()])
        raise UsageError(
            f"none of {counted(len(pool), 'encoding')} with a rank meets all of this: {alone}; leave one out"
        )
    ratios = [length / table.length for length in table.lengths]
    asked = wishes.max_len / wishes.length
    at = next((n for n, ratio in enumerate(ratios) if ratio >= asked), len(ratios) - 1)
    whole = [row.entry for row in ranked]
    choices = _choices(table, meeting, at, whole)
    pairs = pairs_among(table, whole, at)
    prices = []
    for option in (*constraints, *[ALL] * (len(constraints) > 1)):
        kept = [meets for name, meets in constraints.items() if option not in (name, ALL)]
        others = [row for row in pool if all(meets(row) for meets in kept)]
        found = _choices(table, others, at, whole)
        best, shown = found[0].row, next(each.first for each in found if each.row is choices[0].row) > 1
        prices.append(Price(option, name_on_board(best), _difference(pairs, choices[0].row, best), shown))
    return Recommendation(wishes, table, ratios[at], bare, tuple(choices), tuple(prices))


def _choices(table: TableOfCells, rows: Sequence[Row], at: int, whole: Sequence[Entry]) -> list[Recommended]:
    """Rows ranked among each other by their regret at a length; first those that may be the best, by what they win."""
    ranks = ranks_among(table, [row.entry for row in rows], table.texts, at, whole)
    found = []
    for row, first, last in zip(rows, ranks.first.tolist(), ranks.last.tolist(), strict=True):
        seeds = table.seeds_of(row.entry, table.length, table.texts)[: row.seeds]
        regret, low, high = table.regret_interval(row.entry, seeds, table.texts, at)
        found.append(Recommended(row, (1 - regret, 1 - high, 1 - low), row.gains[at - 1], first, last))
    return sorted(found, key=lambda each: (each.first, -each.won[0], each.row.label))


def _difference(pairs: dict[tuple[str, str], Triple], one: Row, other: Row) -> Triple:
    """The regret of one less that of the other."""
    if one is other:
        return 0.0, 0.0, 0.0
    if (one.label, other.label) in pairs:
        return pairs[one.label, other.label]
    value, low, high = pairs[other.label, one.label]
    return -value, -high, -low


def sentences_of(found: Recommendation) -> list[str]:
    """The answer, its evidence, and what the constraints cost."""
    best, wishes = found.choices[0], found.wishes
    times = ratio_name(found.multiple)
    doing = f"{'Read it as' if wishes.trained else 'Train with'} {_name_of(best.row)}"
    others = [_name_of(each.row) for each in found.equals if each is not best]
    what = counted(len(found.choices), "reading" if wishes.trained else "encoding")
    if len(found.choices) == 1:
        said = [f"{doing}: it is the only one that meets what you ask."]
    elif not others:
        said = [f"{doing}: of {what} that meet what you ask, it is shown to be better than all others at {times}."]
    else:
        said = [
            f"{doing}: of {what} that meet what you ask, none is shown to be better at {times}. That is also true of "
            f"{listed(others)}."
        ]
    said.append(_gain_of_trained(best, times) if wishes.trained else _gain_over_cut(best, found))
    if wishes.vllm:
        said.append(f"vLLM computes it as {architecture_in_vllm(best.row)}.")
    for price in found.prices:
        said.append(_price_in_words(price))
    return said


def _name_of(row: Row) -> str:
    """The name of an encoding, or of what a model is read as."""
    return named(spec_in_label(name_on_board(row)))


def _gain_over_cut(best: Recommended, found: Recommendation) -> str:
    """What is won over a model of any encoding whose context is cut to L."""
    value, low, high = (100 * each for each in best.won)
    so = "." if low > 0 else ": to cut the context is better." if high <= 0 else ": to cut the context may be as good."
    return (
        f"By reading {ratio_name(found.multiple)} it wins {value:z.0f} % [{low:z.0f}, {high:z.0f}] of what training at "
        f"{ratio_name(found.table.lengths[-1] / found.table.length)} would win over the best with its context cut to "
        f"L{so}"
    )


def _gain_of_trained(best: Recommended, times: str) -> str:
    """What a model that exists wins over itself with its context cut to L."""
    value, low, high = best.gain
    so = "." if low > 0 else ": cut its context." if high <= 0 else ": to cut its context may be as good."
    return f"By reading {times} it gains {value:+.3f} bits per byte [{low:+.3f}, {high:+.3f}] over itself at L{so}"


def _price_in_words(price: Price) -> str:
    value, low, high = (100 * each for each in price.share)
    option = price.option[0].upper() + price.option[1:]
    if value == 0:
        return f"{option} costs nothing: without it the best is the same."
    cost = f"{value:z.0f} % [{low:z.0f}, {high:z.0f}] of what there is to win"
    shown = "costs" if price.shown else "is not shown to cost anything:"
    return f"{option} {shown} {cost}; without it the best is {named(price.without)}."


def unknown_of(found: Recommendation, fits: SizeFits | None, kept: Share | None) -> list[str]:
    """What the board cannot say about this, and what models of other sizes say of it, if there are any.

    `kept` is how often these have the order of the board (`order_kept`).
    """
    table, wishes, row = found.table, found.wishes, found.choices[0].row
    train = table.season.training_of(table.table)
    asked = wishes.max_len / wishes.length
    about = f"You ask for {float(f'{asked:.3g}'):,g}x"  # 1,560x, and never 1.56e+03x
    said = [
        f"Your L is {wishes.length:,} tokens, and these models, of {row.parameters / 1e6:.2f} million parameters, were "
        f"trained at L = {table.length}, on {(train.tokens or 0) / 1e6:g} million tokens. Whether the order is the "
        "same at yours is not known; docs/SCALE.md says what larger models found."
        + _of_other_sizes(kept)
        + _of_other_lengths(row, fits),
        f"The numbers are means over {listed(list(table.texts))}, in which a longer context pays at all.",
    ]
    if asked > found.multiple:
        said.insert(0, f"{about}, and the board ends at {ratio_name(found.multiple)}.")
    elif asked < found.multiple:
        said.insert(0, f"{about}; this is what was measured at {ratio_name(found.multiple)}.")
    if math.isnan(row.training[0]):
        said.append("What it costs over none has not been measured.")
    if not math.isnan(row.harmful) and row.harmful <= found.multiple:
        said.append(f"It is shown to be harmed from {multiple_text(row.harmful)} on.")
    return said


def _of_other_sizes(kept: Share | None) -> str:
    """How often models that differ in one direction have the order of the board; "" without any."""
    if kept is None or not kept.count:
        return ""
    return (
        f" Where width, layers, L or tokens alone differ, {kept.right} of {kept.count} pairs of encodings that are "
        f"told apart come in the order of the board ({100 * kept.right / kept.count:.0f} %)."
    )


def _of_other_lengths(row: Row, fits: SizeFits | None) -> str:
    """What doubling L changes in an encoding, by the fits to models of other sizes; "" if none tells."""
    spec = spec_in_label(row.encoding)
    if fits is None or row.is_reading or fits.slopes_of.get(spec) != (spec,):
        return ""
    effects = [
        f"{with_interval(fits.slopes(spec, text).per_octave['length'], '+.2f')} on {text}" for text in fits.texts
    ]
    low, high = fits.ranges(spec)["length"]
    return (
        f" From L = {low} to {high}, each doubling of L changed its loss at 16x, less that at L, by {listed(effects)}, "
        "in bits per token."
    )


def choice_columns(found: Recommendation) -> list[Column]:
    """The choices as columns of text."""
    times, bare, choices = ratio_name(found.multiple), found.bare, found.choices
    rows = [each.row for each in choices]
    columns = [
        words("rank", (rank_range(each.first, each.last) for each in choices)),
        words("read as" if found.wishes.trained else "encoding", map(_name_of, rows)),
    ]
    if not found.wishes.trained:  # others cannot be had any more
        won = (with_interval([100 * share for share in each.won], "z.0f") for each in choices)
        columns.append(Column(f"won at {times}, % [95 %]", tuple(won)))
    columns.append(Column(f"gain {times}, bits [95 %]", tuple(with_interval(each.gain, "+.3f") for each in choices)))
    if bare is not None:
        added = (f"{row.parameters - bare:+,}" if row.parameters > bare else "-" for row in rows)
        columns.append(Column("parameters", tuple(added)))
    kernels = (about(spec_in_label(row.encoding), found.table.length).kernels for row in rows)
    columns.append(words("kernels", (", ".join(each) or "-" for each in kernels)))
    columns.append(words("vLLM", (architecture_in_vllm(row) or "-" for row in rows)))
    if any(not math.isnan(row.training[0]) for row in rows):
        columns.append(Column("training", tuple(number_text(row.training[0], "z.2f", "x") for row in rows)))
    return columns
