"""How the numbers of a report were made: corpus, training, protocol, sample, seeds and device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from poscli.data import loss_unit
from poscli.drawing.text import distinct, listed, low_to_high
from poscli.report.collect import Trained
from poscli.report.pooling import scored_tokens, windows_in_bytes
from poscli.runs.schema import FULL
from poscli.system.text import counted

UNKNOWN_MACHINE = "not recorded"  # in rows of which nothing was measured
OF_EPISODES = "answer"  # the protocol


def footnote(rows: pd.DataFrame, protocol: str, runs: Mapping[str, Trained], common: str) -> str:
    """How the numbers of one protocol were made, as a footnote; `runs` is what is known of the trainings.

    `common` says what the encodings have in common and is left out of their names.
    """
    chosen = rows[rows["protocol"] == protocol]
    scored = chosen[chosen["status"] == "ok"]
    budget = _budget(rows, runs)
    stride = low_to_high(set(scored_at_the_end(chosen)["stride"]))
    parts = [
        f"Corpus {corpus_names(rows)}",
        f"trained at L = {low_to_high(set(rows['train_length']))}"
        + "".join(f" on {part}" for part in (" of ".join(filter(None, [budget, trained_on(rows)])),) if part),
        f"protocol {protocol}" + (f", stride {stride}" if stride else ""),
        f"{low_to_high(set(scored_tokens(scored)))} tokens of {low_to_high(set(scored['documents']))} "
        f"{items_of(chosen)} scored",
        seed_counts(rows),
        common,
        ", ".join(distinct(scored["device"]) + distinct(scored["dtype"])),
    ]
    return "; ".join(filter(None, parts)) + "."


def facts(rows: pd.DataFrame, runs: Mapping[str, Trained]) -> list[tuple[str, str]]:
    """How the numbers of a section were made, as (fact, value); facts without a value are left out."""
    scored, strided = rows[rows["status"] == "ok"], scored_at_the_end(rows)
    per_protocol = "; ".join(
        f"{protocol} {low_to_high(scored_tokens(part))} (of {low_to_high(part['documents'])} {items_of(part)})"
        for protocol, part in scored.groupby("protocol")
    )
    protocols = ", ".join(dict.fromkeys(strided["protocol"]))
    known = {
        "Corpus": _list(rows["corpus"]),
        "Fingerprint": _list(rows["fingerprint"]),
        "Tokenizer": _list(rows["tokenizer"]),
        "Training length L": _list(rows["train_length"]),
        "Bytes in a window": windows_in_bytes(rows),
        "Trained on": " of ".join(filter(None, [_budget(rows, runs), trained_on(rows)])),
        "Lengths evaluated": _list(rows["length"]),
        "Tokens scored per length": per_protocol,
        f"Tokens scored per window ({protocols})": _list(strided["stride"]),
        "Seeds": _list(rows["seed"]),
        "Runs": f"{rows['run_id'].nunique()}, models of {low_to_high(set(rows['parameters']))} parameters",
        "Device": _list(scored["device"]),
        "Dtype": _list(scored["dtype"]),
        "Attention engine": _list(scored["engine"]),
        "poscli": _list(rows["poscli"]),
        "Commit": _list(rows["commit"]),
    }
    return [(fact, value) for fact, value in known.items() if value] + machine_facts(rows)


def trained_on(rows: pd.DataFrame) -> str:
    """The corpus that models were trained on where another one was scored; "" where it is the same."""
    return _list(rows["trained_on"])


def machine_facts(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Every machine on which rows were measured, as (fact, value): with what, and how many of the runs."""
    facts = []
    for name in machines(rows):
        measured = rows[rows["machine"].fillna("") == ("" if name == UNKNOWN_MACHINE else name)]
        torch, commits, runs = _list(measured["torch"]), _list(measured["commit"]), measured["run_id"].nunique()
        parts = [
            _list(measured["cpu"]),
            f"torch {torch}" if torch else "",
            _list(measured["device"]),
            f"commit {commits}" if commits else "",
            counted(runs, "run"),
        ]
        facts.append((f"Machine {name}", "; ".join(filter(None, parts))))
    return facts


def machines(rows: pd.DataFrame) -> list[str]:
    """The names of the machines on which rows were measured; none if no row says so."""
    names = distinct(rows["machine"])
    return names + [UNKNOWN_MACHINE] * bool(names and (rows["machine"].fillna("") == "").any())


def items_of(rows: pd.DataFrame) -> str:
    """What these rows are over: documents, or the episodes of a task with right answers."""
    return "episodes" if len(rows) and (rows["protocol"] == OF_EPISODES).all() else "documents"


def scored_at_the_end(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of which the last `stride` tokens of each window are scored; of episodes, only the answers are.

    Baselines read shorter windows and score fewer tokens of each: they are left out.
    """
    rows = rows[rows["variant"] == FULL]
    return rows[(rows["stride"] > 0) & (rows["stride"] < rows["length"]) & (rows["protocol"] != OF_EPISODES)]


def unit_of(rows: pd.DataFrame) -> str:
    """What one token is: `byte`, or `cell` of an image, where each token stands for one, else `token`."""
    scored = rows[rows["status"] == "ok"]
    whole = len(scored) and (scored["tokens"] == scored["bytes"]).all()
    units = {loss_unit([corpus]) for corpus in rows["corpus"].unique()}
    return units.pop() if whole and len(units) == 1 else "token"


def bits_per(table: pd.DataFrame) -> str:
    """What losses in rows of eval.csv, or in a summary of them, are in: `bits per byte`, of images `bits per cell`."""
    joined = "max_length" in table and table["fingerprint"].str.contains(", ").any()  # in the rows of a summary
    corpora = [part for corpus in table["corpus"].unique() for part in (corpus.split(", ") if joined else [corpus])]
    return f"bits per {loss_unit(corpora)}"


def corpus_names(rows: pd.DataFrame) -> str:
    """The corpora of these rows, each with the beginning of its fingerprint."""
    pairs = sorted(set(zip(rows["corpus"], rows["fingerprint"], strict=True)))
    return listed([f"{corpus} ({mark[:8]})" for corpus, mark in pairs], 3)


def seed_counts(rows: pd.DataFrame) -> str:
    """How many seeds each encoding has: `1 seed`, `3 seeds`, `1 to 3 seeds`."""
    counts = set(rows.groupby("encoding")["seed"].nunique())
    return f"{low_to_high(counts)} seed{'' if counts == {1} else 's'}"


def _budget(rows: pd.DataFrame, runs: Mapping[str, Trained]) -> str:
    counts = {runs[run].tokens for run in set(rows["run_id"]) if run in runs} - {0}  # which checkpoints have
    return f"{low_to_high(counts)} tokens" if counts else ""


def _list(values: Iterable[object]) -> str:
    """The distinct values, numbers in numeric order, without missing and empty ones."""

    def order(value: object) -> tuple[float, str]:
        return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))

    return ", ".join(map(str, sorted({value for value in values if value == value and value != ""}, key=order)))
