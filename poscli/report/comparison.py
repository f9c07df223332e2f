"""Encodings of a report, and two selections of runs for `poscli compare`, compared with each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from poscli import specs
from poscli.drawing.text import listed
from poscli.encodings import names
from poscli.evaluation.plan import PAIRED
from poscli.report.collect import Trained
from poscli.report.origin import bits_per
from poscli.report.pooling import headline, of_model, on_different_windows, sound, tokenizer_spec, untrained
from poscli.runs.schema import FULL
from poscli.statistics.comparison import LN2, Comparison, EncodingLosses, LossTable, corrected, judged
from poscli.system.errors import UsageError, near

SPANS = "spans"  # what `resampled` is in rows of eval.csv where documents are too few
COMPARED = [
    "encoding", "baseline", "corpus", "protocol", "length", "ratio", "seeds", "documents", "resampled", "difference",
    "low", "high", "p", "p_holm", "word",
]  # fmt: skip


def losses_of(rows: pd.DataFrame, table: LossTable, protocol: str) -> EncodingLosses:
    """The losses of the encodings in rows of eval.csv under a protocol."""
    return EncodingLosses(rows, sound(rows), table, protocol)


def gains_of(rows: pd.DataFrame, table: LossTable, protocol: str) -> EncodingLosses:
    """The context gains of the encodings in rows of eval.csv under a protocol."""
    return EncodingLosses(rows, sound(rows) & rows["gain"].notna(), table, protocol, gain_over=PAIRED)


@dataclass(frozen=True)
class AllPairs:
    """All encodings of a section compared with each other at every length.

    A difference and its interval change only their sign when the two encodings are swapped, so each pair is kept once:
    (1, 0), (2, 0), (2, 1), (3, 0) and so on, at every length. The words of `against` depend on the base, because Holm's
    correction counts the comparisons with one base.
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    comparisons: tuple[Comparison, ...]
    more_is_better: bool = False

    @classmethod
    def of(cls, losses: EncodingLosses, names: Sequence[str], lengths: Sequence[int]) -> AllPairs:
        """Compare all of these encodings."""
        keys = [(name, FULL) for name in names]
        pairs = ((keys[i], keys[j], length) for i in range(len(keys)) for j in range(i) for length in lengths)
        return cls(tuple(names), tuple(lengths), tuple(losses.compare(pairs)), losses.more_is_better)

    def family(self, base: str) -> list[Comparison]:
        """Every encoding, `base` itself included, compared with one at every length; not judged yet."""
        n, family = self.names.index(base), list[Comparison]()
        for one in range(len(self.names)):
            high, low = max(one, n), min(one, n)
            first = (high * (high - 1) // 2 + low) * len(self.lengths)
            stored = self.comparisons[first : first + len(self.lengths)]
            if one == n:
                family += [Comparison()] * len(self.lengths)
            else:
                family += stored if one > n else [each.reversed() for each in stored]
        return family

    def words(self, base: str) -> list[str]:
        """The word for every encoding, `base` itself included, at every length, compared with one."""
        return corrected(self.family(base), more_is_better=self.more_is_better)[1]

    def against(self, base: str) -> dict[tuple[str, int], Comparison]:
        """Every other encoding compared with one, by its name and the length."""
        every = judged(self.family(base), more_is_better=self.more_is_better)
        keys = [(name, length) for name in self.names for length in self.lengths]
        return {key: each for key, each in zip(keys, every, strict=True) if key[0] != base}

    def of_the_best(self, best: str, length: int) -> dict[str, Comparison]:
        """Every other encoding compared with the one that came out best at a length.

        The same results chose it, and luck had a part in that: so the correction counts all pairs of encodings at this
        length, and not only those with the best.
        """
        n, of_length = self.names.index(best), self.comparisons[self.lengths.index(length) :: len(self.lengths)]
        pairs = [(i, j) for i in range(len(self.names)) for j in range(i)]
        family = [each.reversed() if i == n else each for (i, _), each in zip(pairs, of_length, strict=True)]
        found = zip(pairs, judged(family, more_is_better=self.more_is_better), strict=True)
        return {self.names[j if i == n else i]: each for (i, j), each in found if n in (i, j)}


def wrong_answers(answers: pd.DataFrame, protocol: str) -> LossTable:
    """The answers as a table of losses, so that whatever compares losses in bits per byte can compare answers.

    A wrong token of an answer counts as a loss of one bit, a right one as none, and each as one byte: the mean loss in
    bits per byte is then the share of wrong tokens.
    """
    totals = answers.groupby(["run_id", "length", "unit"], as_index=False)[["right", "tokens"]].sum()
    losses = {"nll": LN2 * (1 - totals["right"] / totals["tokens"]), "bytes": totals["tokens"]}
    return LossTable(totals.assign(protocol=protocol, variant=FULL, **losses), of_answers=True)


def on_corpus(rows: pd.DataFrame, wanted: str) -> pd.DataFrame:
    """The rows on the corpus whose name is or begins with this text; UsageError if there is no such one, or several.

    The text may also begin a fingerprint, because a corpus under several tokenizers has one name.
    """
    known = sorted(set(rows["corpus"]))
    chosen = [wanted] if wanted in known else [name for name in known if name.startswith(wanted)]
    if not chosen:
        prints = [mark for mark in set(rows["fingerprint"]) if mark.startswith(wanted)]
        if len(prints) != 1:
            raise UsageError(f"--corpus {wanted}: no run was evaluated on it: {near(wanted, known)}")
        return rows[rows["fingerprint"] == prints[0]]
    if len(chosen) > 1:
        raise UsageError(f"--corpus {wanted} begins the names of {' and '.join(chosen)}; give more of one")
    return rows[rows["corpus"] == chosen[0]]


def as_written(spec: str, names: Collection[str]) -> str:
    """The one of these names that a spec means in another spelling, such as rope(base=10000); else the spec itself."""
    try:
        canonical = spec if spec in names else str(specs.parse(spec))
    except UsageError:
        return spec
    return next((each for each in (canonical, specs.with_layouts(canonical)) if each in names), spec)


@dataclass(frozen=True)
class Compared:
    """Two selections of runs, compared at every length that both have.

    `table` has a row per length, with columns as in COMPARED; its column `documents` counts spans of text where
    `resampled` says so. `of_answers` says that accuracies were compared, and not losses, which are in `bits`.
    `untrained` has the reason for each selection that only guesses at its training length, by its name in the table.
    """

    table: pd.DataFrame
    of_answers: bool
    bits: str
    untrained: Mapping[str, str]


def compare_named(
    rows: pd.DataFrame,
    details: Mapping[str, pd.DataFrame],
    first: str,
    second: str,
    *,
    trained: Mapping[str, Trained] | None = None,
    protocol: str = "",
    corpus: str = "",
) -> Compared:
    """What `pick` finds under two names, compared at every length that both have.

    Accuracies are for tasks with right answers; of others, losses are compared. `trained` is what is known of the runs,
    by id. Without a protocol it is the one that reports quote. `corpus` is as in `on_corpus`. UsageError if they were
    evaluated on different text, or not under the protocol, if they share no length or no seed, or if the runs of one
    encoding differ in more than the seed.
    """
    rows = on_corpus(rows, corpus) if corpus else rows
    ours, theirs = comparable(pick(rows, first), pick(rows, second))
    guessing = {_called(each): reason for each in (ours, theirs) for reason in untrained(each).values()}
    protocol = protocol or headline(ours).perplexity
    answers = details["answers"]
    answers = answers[answers["fingerprint"].isin(ours["fingerprint"])]
    table = LossTable(details["units"]) if answers.empty else wrong_answers(answers, protocol)
    known = sorted(set(ours["protocol"]) & set(theirs["protocol"]))
    if protocol not in known:
        raise UsageError(f"--protocol {protocol}: these runs have {', '.join(known) or 'none in common'}")
    ours, theirs = (each[(each["protocol"] == protocol) & (each["variant"] == FULL)] for each in (ours, theirs))
    ours, theirs = alike(ours, theirs, trained or {})
    for selected in (ours, theirs):
        refuse_several_per_seed(selected)
    lengths = sorted(set(ours["length"]) & set(theirs["length"]))
    if not lengths:
        raise UsageError("these runs share no length; evaluate them with equal --max-len and --lengths")
    both = pd.concat([ours.assign(encoding="first"), theirs.assign(encoding="second")])
    if on_different_windows(of_model(both, protocol)):
        raise UsageError(
            "these runs were scored on different windows of the text; evaluate them with equal --tokens, --max-len and "
            "--lengths"
        )
    losses = losses_of(both, table, protocol)
    comparisons = losses.compare((("first", FULL), ("second", FULL), length) for length in lengths)
    if not any(each.seeds for each in comparisons):
        raise UsageError("these runs have no seed with a loss and no text in common; train both with the same --seed")
    lines = []
    for length, each in zip(lengths, judged(comparisons, more_is_better=losses.more_is_better), strict=True):
        one, two = (part[part["length"] == length] for part in (ours, theirs))
        head = {"encoding": _called(one), "baseline": _called(two), "protocol": protocol, "length": length}
        head |= {name: one[name].iloc[0] for name in ("corpus", "ratio")}
        resampled = SPANS if SPANS in {*one["resampled"], *two["resampled"]} else "documents"
        lines.append(head | {"resampled": resampled} | vars(each))
    return Compared(pd.DataFrame(lines)[COMPARED], table.of_answers, bits_per(ours), guessing)


def pick(rows: pd.DataFrame, wanted: str) -> pd.DataFrame:
    """The rows of the run whose id is or begins with this text, else of all runs of this encoding; else UsageError."""
    runs = sorted(set(rows["run_id"]))
    chosen = [wanted] if wanted in runs else [run for run in runs if run.startswith(wanted)]
    encodings = sorted(set(rows["encoding"]))
    wanted = as_written(wanted, encodings)
    if wanted in encodings:
        return rows[rows["encoding"] == wanted]
    if wanted in names():
        raise UsageError(f"no run that was evaluated here has the encoding {wanted}: {near(wanted, encodings)}")
    if len(chosen) == 1:
        return rows[rows["run_id"] == chosen[0]]
    if chosen:
        raise UsageError(f"{wanted!r} begins {len(chosen)} ids: {', '.join(chosen[:3])}, ...; give more of it")
    raise UsageError(f"no evaluated run is called {wanted!r}, nor its encoding: {near(wanted, [*runs, *encodings])}")


def refuse_several_per_seed(rows: pd.DataFrame) -> None:
    """UsageError if an encoding has several runs of one seed: they differ in more, and none of them is the one."""
    runs = rows.drop_duplicates("run_id")
    for seed, part in runs.groupby("seed"):
        if len(part) > 1:
            raise UsageError(
                f"{part['encoding'].iloc[0]} has {len(part)} runs of seed {seed}, which differ in more than the seed: "
                f"{listed(sorted(part['run_id']))}; name single runs by their ids"
            )


def alike(
    ours: pd.DataFrame, theirs: pd.DataFrame, trained: Mapping[str, Trained]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs of two selections that were made alike, where one of them has runs that differ in more than the seed.

    UsageError if the two have not one such way in common.
    """
    ways = {run: known.decisive for run, known in trained.items()}
    made = [each["run_id"].map(lambda run: ways.get(run, "")) for each in (ours, theirs)]
    if all(each.nunique() == 1 for each in made):
        return ours, theirs
    common = set(made[0]) & set(made[1])
    if len(common) == 1:
        return ours[made[0].isin(common)], theirs[made[1].isin(common)]
    selected = ours if made[0].nunique() > 1 else theirs
    raise UsageError(
        f"the runs of {selected['encoding'].iloc[0]} differ in more than the seed: "
        f"{listed(sorted(set(selected['run_id'])))}; name single runs by their ids"
    )


def _called(rows: pd.DataFrame) -> str:
    """How a selection of runs is called: by its encoding, or, if it is a single run, by its id."""
    runs = list(dict.fromkeys(rows["run_id"]))
    return str(rows["encoding"].iloc[0]) if len(runs) > 1 else str(runs[0])


def comparable(ours: pd.DataFrame, theirs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows on the text, and of the training length, that both selections have; UsageError if that is not one.

    Two selections of one training length each may differ in it.
    """
    if both := sorted(set(ours["run_id"]) & set(theirs["run_id"])):
        raise UsageError(f"both names mean {', '.join(both)}, and no run is compared with itself; give other ones")
    common = set(ours["fingerprint"]) & set(theirs["fingerprint"])
    if not common:
        one, two = (" and ".join(_texts(table)) for table in (ours, theirs))
        raise UsageError(
            f"the runs were evaluated on {one}, and on {two}: losses on different text, or of different tokens of it, "
            "cannot be compared"
        )
    if len(common) > 1:
        shared = _texts(ours[ours["fingerprint"].isin(common)])
        raise UsageError(
            f"both were evaluated on {' and '.join(shared)}; choose one with --corpus, by its name or by what stands "
            "in brackets"
        )
    ours, theirs = (table[table["fingerprint"].isin(common)] for table in (ours, theirs))
    if max(ours["train_length"].nunique(), theirs["train_length"].nunique()) == 1:
        return ours, theirs
    lengths = sorted(set(ours["train_length"]) & set(theirs["train_length"]))
    if len(lengths) != 1:
        raise UsageError("these encodings were trained at several lengths; name single runs by their ids")
    one, two = (table[table["train_length"] == lengths[0]] for table in (ours, theirs))
    return one, two


def _texts(rows: pd.DataFrame) -> list[str]:
    """The corpora of these rows, each with the beginning of its fingerprint, and its tokenizer if there are several."""
    names = rows["tokenizer"].map(tokenizer_spec)
    several = names.nunique() > 1
    texts = sorted(set(zip(rows["corpus"], names, rows["fingerprint"], strict=True)))
    return [f"{corpus}{f' in {name}' if several else ''} ({mark[:8]})" for corpus, name, mark in texts]
