"""Reports of invented results for the tests of report.html, with seeds, documents, refusals, and every detail table."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fake_results import BEHAVIOUR, LN2, Shape, results, runs_of, units_of

from poscli.config.run import RunConfig
from poscli.report import About, Report, build_report, summarize
from poscli.report.collect import Trained
from poscli.report.comparison import AllPairs, losses_of
from poscli.report.groups import split
from poscli.report.pooling import headline
from poscli.runs.schema import DETAILS, POSITION_COLUMNS, frame
from poscli.statistics.comparison import LossTable

SEEDS = (0, 1, 2)
GAINS = ("gain", "gain_low", "gain_high")
LETTERS = {"b": "better", "w": "worse", "n": "within noise", "t": "too few documents", "-": "not compared"}
STEP = 1e-5  # in which differences reach the page


def fake_tables(
    shapes: dict[str, Shape] | None = None, lengths: tuple[int, ...] = ()
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]:
    """Rows, positions and details of three seeds; each seed and encoding differs a little from the others."""
    rows, positions = results(shapes, seeds=SEEDS, lengths=lengths)
    kinds = {name: n for n, name in enumerate(dict.fromkeys(rows["encoding"]))}
    moved = 0.004 * rows["seed"] * (1 + rows["encoding"].map(kinds) % 3)
    rows = rows.assign(nll=rows["nll"] + moved).assign(
        bpb=lambda own: own["nll"] / LN2,
        ppl=lambda own: np.exp(own["nll"]),
        tokens_per_s=lambda own: 1e5 / (1 + 0.1 * own["seed"] + 0.02 * own["encoding"].map(kinds)),
        parameters=842_000 + 16 * rows["encoding"].map(kinds),
    )
    return rows, positions, {"units": units_of(rows), "recall": _recall(rows), "why/attribution": _attribution(rows)}


def _recall(rows: pd.DataFrame) -> pd.DataFrame:
    made = []
    for n, run in enumerate(runs_of(rows)):
        for first in (64, 128, 256, 512, 1024):
            gain = 0.1 - 0.01 * (n % 7) - 0.02 * (first > 256)
            bins = {"from": first, "to": 2 * first - 1, "kind": "hit", "ngram": 6, "tokens": 400, "documents": 12}
            made.append(run | bins | {"nll": 1.0, "nll_crop": 1.0 + gain, "gain": gain, "gain_low": gain - 0.01})
    return frame(made, DETAILS["recall"])


def _attribution(rows: pd.DataFrame) -> pd.DataFrame:
    made = []
    for n, run in enumerate(runs_of(rows)):
        for k, change in enumerate(("base", "full", "offset", "gap", "crowd")):
            harm, void = 0.02 * k * (1 + n % 5), change == "gap" and n % 6 == 0
            status = {"status": "void", "reason": "distances do not matter"} if void else {"status": "ok", "reason": ""}
            made.append(
                run | {"change": change, "length": 4096, "nll": 1.0 + harm, "harm": harm, "share": 0.5} | status
            )
    return frame(made, DETAILS["why/attribution"])


def task_tables() -> tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]:
    """A task with right answers: alibi always finds them, rope less at each length, none at chance; learned refuses."""
    rows, positions, details = fake_tables({name: BEHAVIOUR[name] for name in ("alibi", "learned", "none", "rope")})
    rows = rows[rows["protocol"] == "sliding"].assign(protocol="answer", variant="full")
    rows = rows.drop_duplicates(["run_id", "length"]).assign(optimum=np.nan)
    draw, made = np.random.default_rng(0), []
    for row in rows[rows["status"] == "ok"].to_dict("records"):
        share = {"alibi": 1.0, "rope": 0.95 / row["ratio"] ** 0.4 + 0.01 * row["seed"], "learned": 0.97, "none": 0.1}
        run = {name: row[name] for name in ("run_id", "encoding", "seed", "fingerprint", "train_length", "length")}
        for unit in range(80):
            right = int(draw.binomial(4, min(1.0, share[row["encoding"]])))
            at = {"unit": str(unit), "by": "depth", "from": 20 * (unit % 5), "to": 20 * (unit % 5) + 19}
            made.append(run | at | {"tokens": 4, "right": right, "chance": 0.1})
    answers = frame(made, DETAILS["answers"])
    totals = answers.groupby(["run_id", "length"])[["right", "tokens"]].sum()
    accuracy = (totals["right"] / totals["tokens"]).rename("accuracy")
    rows = rows.drop(columns=["gain", "gain_low", "gain_high"]).assign(**dict.fromkeys(GAINS, np.nan))
    rows = rows.merge(accuracy.reset_index(), how="left", on=["run_id", "length"])
    return rows, positions.iloc[:0], {"units": details["units"].assign(protocol="answer"), "answers": answers}


def tables_with_holes() -> tuple[pd.DataFrame, pd.DataFrame, dict[str, pd.DataFrame]]:
    """Encodings of unequal seeds: alibi lacks seed 1, none has seed 2 alone, and rope failed with seed 0 at 1024.

    The harm of a gap is void for every seed of alibi, and for seed 1 alone of rope.
    """
    shapes = {name: BEHAVIOUR[name] for name in ("alibi", "learned", "none", "rope")}
    rows, positions, details = fake_tables(shapes, (256, 1024))
    names, seeds = rows["encoding"], rows["seed"]
    rows = rows[~((names == "alibi") & (seeds == 1)) & ~((names == "none") & (seeds != 2))]
    rows = failed_once(rows, "rope")
    why = details["why/attribution"]
    lost = (why["encoding"] == "alibi") | ((why["encoding"] == "rope") & (why["seed"] == 1))
    void = lost & (why["change"] == "gap")
    why = why.assign(
        status=why["status"].mask(void, "void"), reason=why["reason"].mask(void, "distances do not matter")
    )
    return rows, positions, details | {"units": units_of(rows), "why/attribution": why}


def against(rows: pd.DataFrame, table: LossTable, base: str) -> pd.DataFrame:
    """Every other encoding in rows of eval.csv compared with one at every length, under the protocol reports quote."""
    names, lengths, protocol = sorted(set(rows["encoding"])), sorted(set(rows["length"])), headline(rows).perplexity
    comparisons = AllPairs.of(losses_of(rows, table, protocol), names, lengths).against(base)
    train_length = rows["train_length"].iloc[0]
    return pd.DataFrame(
        {"encoding": name, "baseline": base, "length": length, "ratio": length / train_length}
        | {"corpus": rows["corpus"].iloc[0], "protocol": protocol, "resampled": "documents"}
        | vars(each)
        for (name, length), each in comparisons.items()
    )


def summarized(rows: pd.DataFrame, answers: pd.DataFrame | None = None) -> pd.DataFrame:
    """The summary of rows of one section, and of the single answers of a task."""
    details = {} if answers is None else {"answers": answers}
    (group,) = split(rows, frame([], POSITION_COLUMNS), details, mix=True)
    return summarize(group)


def failed_once(rows: pd.DataFrame, encoding: str) -> pd.DataFrame:
    """The rows of results, in which the first seed of an encoding has no result at 1024 tokens."""
    failed = (rows["encoding"] == encoding) & (rows["seed"] == 0) & (rows["length"] == 1024)
    numbers = ["nll", "bpb", "ppl", "nll_low", "nll_high", *GAINS]
    return rows.assign(status=rows["status"].mask(failed, "oom"), **{name: rows[name].mask(failed) for name in numbers})


def fake_runs(rows: pd.DataFrame) -> dict[str, Trained]:
    """What training each run took: seconds that differ between encodings and seeds."""
    runs = {}
    for n, run in enumerate(runs_of(rows)):
        config = RunConfig(encoding=run["encoding"], seed=run["seed"], length=256, tokens=640_000)
        settings = {"train_length": 256, "max_len": 4096, "tokens": 4096, "stride": 128}
        runs[run["run_id"]] = Trained(config, settings, tokens=640_000, seconds=40.0 + 7 * (n // 3) + run["seed"])
    return runs


def pairs_of(section: dict[str, Any], pairs: dict[str, Any]) -> dict[tuple[str, str, int], tuple[list[float], str]]:
    """(numbers, word) of every encoding compared with every base at every length, as the page's data hold them.

    AllPairs are stored in the order (1, 0), (2, 0), (2, 1), (3, 0) and so on, each the first minus the second.
    """
    names, lengths = [each["name"] for each in section["encodings"]], section["lengths"]
    stored = iter(pairs["numbers"])
    shown = {}
    for i in range(len(names)):
        for j in range(i):
            for k, length in enumerate(lengths):
                v, low, high = (math.nan if x is None else x * STEP for x in itertools.islice(stored, 3))
                for one, base, numbers in ((i, j, [v, low, high]), (j, i, [-v, -high, -low])):
                    letter = pairs["words"][base][one * len(lengths) + k]
                    shown[names[one], names[base], length] = (numbers, LETTERS[letter])
    assert next(stored, None) is None
    return shown


def fake_report(folder: Path, shapes: dict[str, Shape] | None = None, *, title: str = "", name: str = "") -> Report:
    """A report in a folder. `title` is its title; `name` takes the place of the last encoding's name."""
    rows, positions, details = fake_tables(shapes or BEHAVIOUR)
    if name:
        last = rows["encoding"].iloc[-1]
        rows, positions = (table.replace({"encoding": {last: name}}) for table in (rows, positions))
        details = {key: table.replace({"encoding": {last: name}}) for key, table in details.items()}
    about = About(title=title, description=title)
    return build_report(rows, positions, folder, details=details, runs=fake_runs(rows), about=about)
