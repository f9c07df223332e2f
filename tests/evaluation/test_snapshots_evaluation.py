"""Evaluations whole: plans, losses, tables, intervals, other encodings, and why a model breaks.

Models are made up, with losses that are functions of the tokens and of how many of them are read, or small and fresh.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from grid_images import Numbered, stripes
from lines import outcome, sections, table, told
from numpy.typing import NDArray
from pieces_task import PIECES, Pieces
from torch import Tensor
from toys import model as toy

from poscli.config.request import ExtrapolateRequest
from poscli.config.run import CheckpointConfig, ModelConfig, RunConfig
from poscli.encodings import Encoding, Shape
from poscli.equation import Unsupported
from poscli.evaluation import measure
from poscli.evaluation.baseline import BASELINES, baseline
from poscli.evaluation.evaluate import evaluate_run, search_constants, settings_of
from poscli.evaluation.losses import Losses, Measured, position_curve, span_keys, tail_slope
from poscli.evaluation.measure import EvaluationSetup, cost
from poscli.evaluation.plan import Plan, record_of
from poscli.evaluation.posthoc import (
    compatible_specs,
    joined,
    posthoc_spec,
    posthoc_specs,
    recalibration,
    refuse_recalibration,
    runs_as,
    with_encoding,
)
from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, in_turns, largest_divisor, pieces
from poscli.evaluation.recall import gain_numbers, octaves, recall_by_distance, recurrences
from poscli.evaluation.tables import answers_by_place, bin_numbers, depth_bins, gap_bins
from poscli.grids import continuation
from poscli.grids.continuation import ImageChoice, continue_image
from poscli.model.initialise import build_model
from poscli.model.transformer import Model
from poscli.runs.results import explanations_of, tables_of
from poscli.runs.run import Run, create, evaluated_as
from poscli.specs import build, parse
from poscli.statistics.intervals import (
    holm,
    many_differences,
    mean_interval,
    permutation_test,
    ratio_interval,
    smallest_p,
    two_level_interval,
    unseen_share,
)
from poscli.statistics.power import detectable_difference, smallest_detectable
from poscli.system.console import collected_warnings
from poscli.system.errors import PoscliError
from poscli.tasks import Task, Text
from poscli.tasks.copy import Copy
from poscli.tasks.passkey import Passkey
from poscli.verify.noise import perturbed
from poscli.why import context_use as judging
from poscli.why import explain as explaining
from poscli.why.attribution import attribution, causes, is_open, remedies, what_breaks
from poscli.why.context_use import (
    donors,
    gradient_norms,
    key_token_rows,
    key_tokens,
    receptive,
    refuse_judge,
    saturation,
    visible_windows,
)
from poscli.why.crowd import refuses
from poscli.why.dilution import dilution
from poscli.why.sample import Sample, few

Snapshot = Callable[..., None]
CPU = torch.device("cpu")
ELSEWHERE = [
    "seconds",
    "tokens_per_s",
    "peak_mb",
    "device",
    "poscli",
    "commit",
    "machine",
    "cpu",
    "torch",
]  # else on other machines


def document(size: int, kind: int) -> list[int]:
    """A document in which most tokens are one more than the token before, and some texts come again."""
    return [1 + (n * (1 + (n // 5 + kind) % 3) + kind) % 7 for n in range(size)]


DOCUMENTS = [document(size, kind) for kind, size in enumerate((40, 37, 12, 50, 33, 61, 36, 35))]
FEW = DOCUMENTS[3:6]


class Fading:
    """A model that is surer of `token + 1` the more tokens it reads, and less sure of what lies beyond `length`."""

    device, attention_dtype, engine, engine_reason = CPU, torch.float32, "made up", "there is no other"

    def __init__(self, spec: str, *, vocab: int, length: int = 8, ends: int = 10**6, bad: int = 0) -> None:
        self.shape = Shape(width=12, heads=3, layers=2, length=length)
        self.encodings: Sequence[Encoding] = build(parse(spec), self.shape, seed=0)
        self.vocab, self.ends, self.bad = vocab, ends, bad
        self.read: list[tuple[int, int]] = []

    def under(self, encodings: Sequence[Encoding]) -> Fading:
        made = Fading("rope", vocab=self.vocab, length=self.shape.length, ends=self.ends, bad=self.bad)
        made.encodings, made.read = encodings, self.read
        return made

    def logits_in_slices(self, tokens_BT: Tensor) -> Iterator[tuple[slice, Tensor]]:
        batch, count = tokens_BT.shape
        self.read.append((batch, count))
        if count > self.ends:
            raise Unsupported(f"no position {count}")
        if count == self.bad:
            raise MemoryError("out of memory")
        reach = min((e.reach for e in self.encodings if e.reach is not None), default=count)
        sinks = max((e.sinks for e in self.encodings), default=0)
        seen = (torch.arange(count) + 1.0).clamp(max=reach) + sinks
        sure = seen.sqrt() - (seen - self.shape.length).clamp(min=0) / 9
        logits = torch.nn.functional.one_hot((tokens_BT + 1) % self.vocab, self.vocab) * sure[:, None]
        half = max(1, count // 2)
        for part in (slice(0, half), slice(half, count)):
            if part.stop > part.start:
                yield part, logits[:, part]


def settings(**changes: Any) -> EvaluationSettings:
    return EvaluationSettings(**{"train_length": 8, "max_len": 32, "tokens": 48, "stride": 4} | changes)


def heard(capsys: pytest.CaptureFixture[str], call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """What a call returns or refuses with, after its notes and warnings."""
    with collected_warnings() as warned:
        found = outcome(call, *arguments, **options)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    return "\n".join([*(f"  said: {line}" for line in lines), *(f"  warned: {line}" for line in warned), found])


# ---- plans

PLANS: dict[str, tuple[Callable[[], Task], dict[str, Any]]] = {
    "doublings": (lambda: Pieces(DOCUMENTS), {}),
    "a stride above an eighth": (lambda: Pieces(DOCUMENTS), {"stride": 6, "max_len": 31, "tokens": 30}),
    "ratios": (
        lambda: Pieces(DOCUMENTS),
        {"ratios": (1, 1.5, 2.25, 4), "max_len": 30, "baselines": ("window(5)", "crop")},
    ),
    "few": (lambda: Pieces(FEW), {"stride": 8, "tokens": 8, "baselines": ("sink(2)+window(6)", "logn+window")}),
    "alone": (lambda: Pieces(DOCUMENTS), {"max_len": 8, "stride": 1, "tokens": 5, "baselines": ()}),
    "images": (
        lambda: Numbered((9, 14), (8, 8), (12, 11)),
        {"train_length": 4, "max_len": 36, "stride": 1, "ratios": (1, 4, 9), "tokens": 20},
    ),
    "copy": (Copy, {"max_len": 20, "ratios": (1, 2.5), "tokens": 13}),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str, snapshot: Snapshot) -> None:
    """The windows of every protocol, and of every measurement how many there are and where they are kept."""
    task, changes = PLANS[name][0](), PLANS[name][1]
    plan = Plan(task, settings(**changes))
    lengths = plan.settings.lengths
    spans = [
        {
            "protocol": protocol,
            "length": n,
            "scored": plan.scored(protocol, n),
            "piece": plan.protocols[protocol].piece(plan.settings, n),
            "spans": plan.spans(protocol, n),
        }
        for protocol in plan.protocols
        for n in lengths
    ]
    rows = [
        {
            "file": each.file,
            "length": each.length,
            "model": each.model,
            "windows": len(found),
            "first": found[:2],
            "ends": int(found[:, 1].sum()),
            "cost": cost(each, found),
        }
        for each, found in plan.measurements().items()
    ]
    variants = {protocol: plan.variants(protocol) for protocol in plan.protocols}
    measured = {
        f"{n} {variant}": plan.measurement(n, variant).file for n in lengths for variant in ("full", *plan.baselines)
    }
    parts = {
        "record": told([lengths, plan.settings.record(), variants]),
        "spans": table(spans),
        "measurements": table(rows),
        "of": told(measured),
    }
    parts["power"] = "\n".join(detectable_difference(seeds, plan.documents_compared()) for seeds in (1, 3, 8))
    snapshot(sections(parts), f"plan-{name.replace(' ', '-')}", rounded=True)


def test_settings_and_refusals(snapshot: Snapshot) -> None:
    checkpoint = CheckpointConfig(name="llama", source="hf:a/b", digest="0", parameters=9)
    requests: list[tuple[RunConfig, dict[str, Any], bool]] = [
        (RunConfig(encoding="rope", length=64), {}, False),
        (RunConfig(encoding="rope", length=512), {"max_len": "6x", "tokens": 3000}, False),
        (RunConfig(encoding="rope", length=300), {"lengths": (2, 1, 1.25), "ngram": 3, "protocols": ["fixed"]}, True),
        (RunConfig(encoding="rope", length=64, task="grid"), {"max_len": 100, "baselines": ["crop"]}, True),
        (RunConfig(encoding="rope", length=64, checkpoint=checkpoint), {"stride": 16}, False),
        (
            RunConfig(encoding="rope", length=32, task="recall", checkpoint=checkpoint),
            {"baselines": ["sink(4)+window"], "stride": 8},
            True,
        ),
    ]
    made = [
        told(settings_of(config, ExtrapolateRequest(**options), smoke).record()) for config, options, smoke in requests
    ]
    wrong: list[dict[str, Any]] = [{"max_len": 7}, {"ratios": (2, 3)}, {"stride": 0}, {"stride": 9}, {"tokens": 3}]
    wrong += [{"max_len": 64}, {"protocols": ("answer",)}, {"protocols": ("sliced",)}]
    wrong += [{"baselines": (name,)} for name in ("crap", "rope", "sink(2)", "window(")]
    refused = [
        f"{change}: {outcome(lambda change=change: Plan(Pieces(DOCUMENTS), settings(**change)).settings.lengths)}"
        for change in wrong
    ]
    refused.append(outcome(Plan, Copy(), settings(protocols=("fixed",))))
    refused.append(outcome(Plan, Numbered((9, 9)), settings(train_length=16, max_len=16, stride=5)))
    refused.append(outcome(Plan, Numbered((9, 9)), settings(train_length=16, max_len=100, stride=2)))
    protocols = [
        {"name": name} | {each: getattr(PROTOCOLS.get(name), each) for each in ("compared", "same_text", "convention")}
        for name in PROTOCOLS.names()
    ]
    rows = []
    for name in (
        "crop",
        "window",
        "window(5)",
        "sink(4)+window",
        "alibi+window(30)",
        "window|none",
        "sink(1)+window(9)",
    ):
        made_of = outcome(
            lambda name=name: [
                [(n, one.window(n, 8), one.changes_model(n, 8)) for n in (8, 9, 16, 64)] for one in (baseline(name),)
            ]
        )
        rows.append(f"{name}: {made_of}")
    rows += [baseline("crop").explain(), baseline("sink(4)+window").explain(), told(BASELINES.names())]
    turns = np.array([(d, n) for d, size in ((0, 5), (3, 2), (4, 1)) for n in range(size)])
    helpers = [
        told(in_turns(turns, 0)),
        told(in_turns(turns, 3)),
        told(pieces(np.array([[0, 9], [2, 30]]), 6, 2)),
        told([largest_divisor(n, limit) for n, limit in ((12, 5), (12, 12), (12, 40), (7, 6), (9, 0), (128, 31))]),
        told(
            [
                depth_bins(),
                gap_bins(64, 256),
                gap_bins(2, 16),
                gap_bins(4, 5),
                octaves(10, 45),
                octaves(7, 8),
                octaves(4, 1),
            ]
        ),
        told(Documents(Pieces(DOCUMENTS).text(0), settings(), 16).sizes),
        told(Documents(Pieces(DOCUMENTS).text(0), settings(stride=8), 16).ends(8)),
    ]
    parts = {
        "requests": "\n".join(made),
        "refused": "\n".join(refused),
        "protocols": table(protocols),
        "baselines": "\n".join(rows),
        "helpers": "\n".join(helpers),
    }
    snapshot(sections(parts), rounded=True)


# ---- a whole evaluation


class Counted(Pieces):
    """Documents of which some targets do not count."""

    def __init__(self) -> None:
        super().__init__(
            DOCUMENTS, uncounted=[(0, n) for n in range(20, 40)] + [(5, 60), (5, 61), (6, 36)], bytes_per_token=3
        )

    def unigram(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.where(tokens == 1, 0.5, 2.5)

    def optimum(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return (tokens[:, 1:] % 3 + np.arange(tokens.shape[1] - 1) / 100).astype(float)


EVALUATIONS: dict[str, tuple[Callable[[], Task], dict[str, Any], dict[str, Any], str]] = {
    "language": (lambda: Pieces(DOCUMENTS), {"ngram": 2, "baselines": ("sink(1)+window(5)",)}, {}, ""),
    "counted": (
        Counted,
        {"ratios": (1, 3), "stride": 2, "tokens": 60, "ngram": 1},
        {"bad": 24},
        "rope-linear(factor=2)",
    ),
    "few": (lambda: Pieces(FEW), {"max_len": 16, "stride": 8, "tokens": 40}, {"ends": 12}, ""),
    "copy": (Copy, {"max_len": 16, "tokens": 26}, {}, ""),
    "passkey": (Passkey, {"max_len": 20, "ratios": (1, 2.5), "tokens": 20, "baselines": ()}, {}, ""),
    "images": (
        stripes,
        {"train_length": 4, "max_len": 36, "ratios": (1, 4, 9), "stride": 1, "tokens": 12, "baselines": ()},
        {"ends": 30},
        "",
    ),
}


def run_of(folder: Path, task: Task, config: RunConfig, state: str = "complete", message: str = "") -> Run:
    """A run on disk whose training has ended."""
    corpus = {"fingerprint": task.fingerprint, "vocab": task.vocab, "tokenizer_fingerprint": "f1"}
    run = create(folder / config.run_id(task.fingerprint), config, {"corpus": corpus, "parameters": 77, "schema": 4})
    run.set_status(state, run.steps, message)
    return run


def shown(frame: pd.DataFrame) -> str:
    """A table of results without what differs between machines."""
    kept = frame.drop(columns=[name for name in ELSEWHERE if name in frame])
    return table({str(key): value for key, value in row.items()} for row in kept.to_dict("records"))


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations(
    name: str, tmp_path: Path, snapshot: Snapshot, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every table of an evaluation, the files of its losses, and what the same command says again."""
    task, changes, limits, posthoc = EVALUATIONS[name][0](), *EVALUATIONS[name][1:]
    chosen = settings(**changes)
    config = RunConfig(
        encoding="rope", seed=3, length=max(8, chosen.train_length), tokens=100, corpus="stdlib", tokenizer="pieces"
    )
    run = run_of(tmp_path, task, config)
    if posthoc:
        run = evaluated_as(run, posthoc)
    model = Fading("rope", vocab=task.vocab, length=chosen.train_length, **limits)
    monkeypatch.setattr("poscli.evaluation.evaluate.load_model", lambda run, device: model)
    monkeypatch.setattr(measure, "PASS_TOKENS", 100)
    monkeypatch.setattr("os.fsync", lambda file: None)  # nothing here needs to survive a power cut
    evaluate_run(EvaluationSetup(run, task, chosen, CPU))
    tables = tables_of(run, task.columns)
    parts = {"eval.csv": shown(tables.rows)}
    if name in ("language", "few", "copy"):
        parts["position.csv"] = shown(tables.positions)
    for each, detail in tables.details.items():
        whole = name in ("language", "few", "passkey") and (each != "units" or name == "few")
        parts[f"{each}.csv"] = (
            shown(detail.iloc[:: 3 if each == "units" else 1])
            if whole
            else told([len(detail), detail.iloc[::23, 6:].to_numpy()])
        )
    parts["record"] = told(
        [record_of(run, chosen), sorted(path.name for path in run.folder.rglob("*") if path.is_file())]
    )
    parts["passes"] = told([len(model.read), sorted(set(model.read))])
    before = len(model.read)
    parts["again"] = heard(
        capsys, lambda: len(evaluate_run(EvaluationSetup(run, task, chosen, CPU))) and len(model.read) - before
    )
    (run.folder / "eval.json").unlink()
    parts["from losses"] = heard(
        capsys, lambda: len(evaluate_run(EvaluationSetup(run, task, chosen, CPU))) and len(model.read) - before
    )
    text = sections(parts).replace(str(tmp_path), "HERE")
    snapshot(text, f"evaluation-{name}", rounded=True)


ENDED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "diverged": ("diverged", "the loss is 99 at step 3", {}),
    "planned": ("interrupted", "", {}),
    "another text": ("complete", "", {"fingerprint": "other"}),
    "forced, planned": ("interrupted", "", {"force": True}),
    "nonfinite": ("complete", "", {"nan": True}),
}


@pytest.mark.parametrize("name", ENDED)
def test_evaluations_without_numbers(
    name: str,
    tmp_path: Path,
    snapshot: Snapshot,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, message, how = ENDED[name]
    task, chosen = Pieces(DOCUMENTS), settings(max_len=16)
    run = run_of(tmp_path, task, RunConfig(encoding="sinusoidal", length=8, tokens=64), state, message)
    model = Fading("sinusoidal", vocab=PIECES)
    if how.get("nan"):
        monkeypatch.setattr(task, "score", lambda logits, targets: {"nll": (targets * math.nan).float()})
    task.fingerprint = how.get("fingerprint", task.fingerprint)
    monkeypatch.setattr("poscli.evaluation.evaluate.load_model", lambda run, device: model)
    monkeypatch.setattr(type(model.encodings[0]), "longest", lambda encoding, dtype: 12)
    force = bool(how.get("force"))
    said = heard(capsys, lambda: shown(evaluate_run(EvaluationSetup(run, task, chosen, CPU), force=force)))
    snapshot(said.replace(str(tmp_path), "HERE") + "\n", f"ended-{name.replace(', ', '-').replace(' ', '-')}")


# ---- numbers


def measured_values(seeds: int, documents: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Totals of seeds on documents of unequal length, as a formula."""
    s, d = np.arange(seeds)[:, None], np.arange(documents)
    counts = 10.0 + 7 * (d % 3)
    means = 0.04 + 0.05 * np.sin(3 * d + 1) + 0.02 * np.cos(5 * s) + 0.01 * np.sin(7 * s * d + 2)
    return np.asarray(means * counts), np.asarray(counts)


def test_intervals(snapshot: Snapshot) -> None:
    """Estimates, intervals and tests by the numbers of seeds and documents; those of many at once are the same."""
    rows, cases = [], []
    for seeds, documents in ((1, 1), (1, 2), (1, 6), (1, 14), (2, 5), (2, 14), (3, 2), (3, 6), (5, 9), (3, 14)):
        totals, counts = measured_values(seeds, documents)
        cases.append((totals, counts))
        found = two_level_interval(totals, counts)._asdict()
        rows.append(found | {"p": permutation_test(totals, counts), "first seed": ratio_interval(totals[0], counts)})
    totals, counts = measured_values(3, 6)
    odd = {
        "a document without tokens": two_level_interval(totals, counts * (np.arange(6) != 2)),
        "equal": two_level_interval(np.ones((4, 6)) * counts, counts),
        "equal seeds": [two_level_interval(totals[[0, 0, 0]], counts), permutation_test(totals[[0, 0, 0]], counts)],
        "not finite": ratio_interval(totals[0] * np.nan, counts),
        "another draw": two_level_interval(totals, counts, seed=5),
        "none": ratio_interval(totals[0], counts * 0),
    }
    many = many_differences([cases[2], None, cases[7], cases[2], (-cases[7][0], cases[7][1])])
    plans = [
        (3, 5, 0.01, 0.05, 0.8),
        (3, 5, 0.0, 0.05, 0.8),
        (1, 5, 0.0, 0.05, 0.8),
        (1, 5, 0.01, 0.05, 0.8),
        (8, 40, 0.02, 0.1, 0.5),
    ]
    plans += [
        (3, 1, 0.01, 0.05, 0.8),
        (3, 5, 0.0, 0.0, 0.8),
        (3, 5, math.nan, 0.1, 0.8),
        (2, 12, 0.0, 0.1, 0.95),
        (5, 7, 0.3, 0.0, 0.8),
    ]
    values, sources = np.array([1.0, 2, 4, 8, 3, 3, 5, 1]), np.array([0, 0, 1, 2, 3, 4, 4, 5])
    means = {
        "six documents": mean_interval(values, sources),
        "four": mean_interval(values[:5], sources[:5]),
        "infinite": mean_interval(np.where(values > 7, np.inf, values), sources),
        "gain": gain_numbers(values, values[::-1] / 2, sources),
    }
    parts = {
        "by size": table(rows),
        "odd": told(odd),
        "many": told(many),
        "without tests": told(many_differences([cases[7]], test=False)),
        "detectable": "\n".join(f"{case}: {smallest_detectable(*case):.4f}" for case in plans),
        "smallest p": told([[smallest_p(s, d) for d in (1, 5, 13, 14)] for s in (1, 2, 3)]),
        "unseen": told([unseen_share(n) for n in (1, 5, 40, 256)]),
        "holm": told(
            [
                holm(p)
                for p in ([0.01, 0.04, 0.03], [0.5, 0.9], [math.nan, 0.02, 0.02], [], [0.2, 0.01, 0.011, math.nan])
            ]
        ),
        "means": told(means),
    }
    snapshot(sections(parts), rounded=True)


def test_losses(snapshot: Snapshot) -> None:
    """Losses that are written to a file and read again, by position, and of windows that are asked for."""
    spans = np.array([[0, 12], [0, 20], [3, 12], [5, 40]])
    nll = (np.arange(4)[:, None] + np.sqrt(np.arange(12)) / 4).astype(np.float32)
    losses = Losses(spans, {"nll": nll, "accuracy": (nll > 1).astype(np.float32)})
    measured = Measured(losses, seconds=2.5, peak_mb=7.0, engine="sdpa", engine_reason="slow", where={"cpu": "x"})
    content = measured.content("key")
    again = Measured.of_content(content, "key", spans, 12)
    assert again is not None
    assert again.losses is not None
    kept = pq.read_table(io.BytesIO(content))
    parts = {
        "read": told([again.seconds, again.peak_mb, again.engine, again.engine_reason, again.where, again.status]),
        "same": told(
            {name: bool((values == losses.values[name]).all()) for name, values in again.losses.values.items()}
        ),
        "columns": told({name: kept[name].to_numpy()[[0, 11, 12, -1]] for name in kept.column_names}),
        "types": told([str(each) for each in kept.schema.types]),
        "others": told(
            [
                Measured.of_content(content, "other", spans, 12),
                Measured.of_content(content, "key", spans[:3], 12),
                Measured.of_content(content, "key", spans, 13),
            ]
        ),
        "curves": "\n".join(
            told([position_curve(Losses(spans, {"nll": nll[:, :n]})), tail_slope(Losses(spans, {"nll": nll[:, :n]}))])
            for n in (4, 9, 12)
        ),
        "at": told(losses.at(spans[[3, 0]], 3)),
        "accuracy": told(losses.at(spans[[1]], 5, "accuracy")),
        "keys": told(span_keys(spans)),
    }
    snapshot(sections(parts), rounded=True)


LETTERS = "abcabcaabcabcxabcd", "aaaaaaaa", "abababab", "xy", ""


def letters(*documents: str) -> Text:
    return Pieces([[ord(letter) % 8 for letter in document] for document in documents], uncounted=[(0, 12)]).text(0)


def test_recall_and_answers(snapshot: Snapshot) -> None:
    text = letters(*LETTERS)
    ends = np.array([[0, 18], [0, 9], [1, 8], [2, 8], [2, 6], [3, 2]])
    rows = []
    for ngram, longest, scored in ((1, 16, 4), (2, 16, 4), (3, 9, 2), (2, 6, 2), (6, 18, 2)):
        found = recurrences(text, ends, scored, ngram, longest)
        kinds = {kind: found.of_kind(kind).astype(int) for kind in ("hit", "miss", "new")}
        rows.append({"ngram": ngram, "longest": longest, "distance": found.distance} | kinds)
    many = letters(*["abcdefab" * 3] * 6, "gfedcba" * 4)
    spans = np.array([[n, 20 + n % 2] for n in range(7)])
    full = np.arange(28).reshape(7, 4) / 10
    recalled = recall_by_distance(many, spans, 4, full, full**2 / 2, ngram=2, train_length=8, longest=16)
    back = np.array([[0, 3, 0, 9], [1, 2, 0, 0], [0, 0, 0, 15]])
    right = np.array([[1.0, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 1]])
    units = ["0", "1", "7"]
    bins = {"gap": gap_bins(8, 16), "depth": depth_bins()}
    answers = [
        row
        for by, each in bins.items()
        for row in answers_by_place(back, right, units=units, length=16, by=by, bins=each)
    ]
    parts = {
        "recurrences": table(rows),
        "recall": table(recalled),
        "bins": told({by: bin_numbers(np.maximum(back, 1), 16, by, each) for by, each in bins.items()}),
        "answers": table(answers),
    }
    snapshot(sections(parts), rounded=True)


# ---- other encodings

TRAINED = [
    "rope",
    "alibi",
    "learned",
    "none",
    "t5",
    "rope|none",
    "rope+window(9)",
    "rope-linear(factor=4)",
    "sink(2)+window(5)+alibi",
]
PAIRS = """\
rope as yarn, rope as yarn(factor=2), rope(base=500) as rope-linear, rope as alibi, alibi as rope, rope as none,
learned as none, rope+window(9) as yarn, rope+window(9) as window(5), rope as window(5), rope as logn,
rope|none as yarn, rope|none as yarn|none, rope|rope+window(9) as yarn, rope+window(9)|none as window(4),
rope|none as alibi,
rope|none|t5 as yarn|none, rope|none as yarn|none|t5, fire as rope, t5+rope as yarn, t5+rope as none,
learned as hierarchical, rope-linear(factor=4) as yarn, window(9)+rope as rope+window(9), rope as rope|rope,
rope|none|rope|none as yarn, rope+logn(5) as yarn, sink(2)+window(5) as window(7), rope as sink(2)
"""


def test_other_encodings(snapshot: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    shape = Shape(width=24, heads=3, layers=4, length=16)
    specs = {trained: compatible_specs(trained, shape) for trained in TRAINED}
    pairs = [pair.strip() for pair in PAIRS.split(",")]
    as_others = [f"{pair}: {outcome(posthoc_spec, *pair.split(' as '), shape)}" for pair in pairs]
    config = RunConfig(encoding="rope", length=16, model=ModelConfig(layers=4, width=24, heads=3, mlp=32))
    remembering = config.model_copy(update={"model": config.model.model_copy(update={"memory": 4}), "encoding": "shaw"})
    run = Run(Path("runs/rope-1"), config, {})
    asked = [["yarn", "alibi", "yarn", "rope"], ["all"], ["logn+window", "none"], [], ["rope"]]
    found = [f"{targets}: {heard(capsys, posthoc_specs, config, targets, False)}" for targets in asked]
    found.append(heard(capsys, posthoc_specs, config, ["alibi"], True))
    found.append(heard(capsys, posthoc_specs, remembering, ["all", "window(3)"], False))
    options: list[dict[str, Any]] = [{"as": ["none", "yarn(factor=2)"]}, {"as": ["alibi"]}, {}, {"as": ["all("]}]
    options.append({"as": ["none"], "recalibrate": 4096, "recalibrate_length": 64})

    def evaluated(request: dict[str, Any]) -> list[list[Any]]:
        return [[one.id, one.label, one.recalibration] for one in runs_as([run], ExtrapolateRequest(**request), False)]

    runs = [f"{each}: {heard(capsys, evaluated, each)}" for each in options]
    parts = {
        "compatible": "\n".join(f"{trained}: {told(each)}" for trained, each in specs.items()),
        "pairs": "\n".join(as_others),
    }
    parts |= {"specs": "\n".join(found), "runs": "\n".join(runs)}
    snapshot(sections(parts))


def test_recalibrations_that_are_refused(snapshot: Snapshot) -> None:
    config = RunConfig(encoding="rope", length=64, batch=4)
    checkpoint = CheckpointConfig(name="llama", source="hf:a/b", digest="0", parameters=9)
    remembering = config.model.model_copy(update={"memory": 8})
    asked = {"as": ["none"]}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({}, {"recalibrate_length": 32}),
        ({}, {"recalibrate": 1000}),
        ({}, {"recalibrate": 255} | asked),
        ({}, {"recalibrate": 256} | asked),
        ({"checkpoint": checkpoint}, {"recalibrate": 1000} | asked),
        ({"model": remembering}, {"recalibrate": 1000} | asked),
        ({}, {"recalibrate": 255, "recalibrate_length": 128} | asked),
        ({}, {"recalibrate": 511, "recalibrate_length": 512} | asked),
        ({}, {"recalibrate": 300, "recalibrate_length": 100} | asked),
    ]
    lines = []
    for changes, options in cases:
        one, request = config.model_copy(update=changes), ExtrapolateRequest(**options)
        said = [outcome(refuse_recalibration, one, request), outcome(recalibration, one, "none", request)]
        lines.append(f"{[*changes]} {options}: {' / '.join(said)}")
    snapshot("\n".join(lines) + "\n")


SAMPLED = np.array([[0, 36], [0, 40], [3, 36], [3, 48], [4, 32], [5, 40], [5, 60], [6, 36]])


def small(spec: str, **changes: Any) -> Model:
    """A model of the pieces with perturbed weights."""
    config = ModelConfig(layers=2, width=24, heads=3, mlp=32, **changes)
    return perturbed(build_model(config, spec, vocab=PIECES, length=8, seed=4)).eval().requires_grad_(False)


def sample(task: Task | None = None, **changes: Any) -> Sample:
    """Eight windows of 32 tokens, of which the last four are scored."""
    own = task or Pieces(DOCUMENTS, uncounted=[(3, 48), (6, 33), (6, 34), (6, 35), (6, 36)])
    given = Sample(
        task=own, text=own.text(32), spans=SAMPLED, scored=4, train_length=8, length=32, device=CPU, stride=2
    )
    return replace(given, **changes)


def test_models_under_other_encodings(snapshot: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    """The mean loss of windows of 8 and 32 tokens before and after a change of the encoding."""
    given = sample()
    counts = given.text.counts(given.spans, given.scored)

    def mean(model: Model) -> list[float]:
        return [float(given.losses(model, window)[counts].mean()) for window in (8, 32)]

    rows: list[dict[str, Any]] = [
        {"trained": spec, "target": spec, "losses": mean(small(spec))} for spec in ("rope", "t5", "rope|none")
    ]
    for trained, target in (
        ("rope", "yarn(factor=4)"),
        ("rope", "none"),
        ("t5", "t5+window(5)"),
        ("rope|none", "none"),
        ("rope-linear", "rope"),
    ):
        rows.append(
            {"trained": trained, "target": target, "losses": mean(with_encoding(small(trained), target, trained))}
        )
    for trained, wrapper in (("rope", "window(5)"), ("t5", "sink(2)+window(4)"), ("rope|none", "logn+window")):
        one = joined(small(trained), wrapper)
        rows.append(
            {
                "trained": trained,
                "target": f"joined to {wrapper}",
                "losses": mean(one),
                "encodings": len(set(one.encodings)),
            }
        )
    model = perturbed(toy("longrope(search=6)")).eval().requires_grad_(False)
    searched = []
    for length in (16, 48):
        said = heard(capsys, search_constants, model, Pieces(), length)
        searched.append(f"{length}: {said} {told(getattr(model.encodings[0], 'factors', None))}")
    snapshot(sections({"losses": table(rows), "searched": "\n".join(searched)}), rounded=True)


# ---- images


def test_continuations(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = perturbed(toy("alibi-2d")).eval().requires_grad_(False), stripes()
    monkeypatch.setattr(
        continuation,
        "side_by_side",
        lambda images, names, below, line: told([images[0].shape, names, line]).encode() + b"\n" + below.encode(),
    )
    wishes = [
        (ImageChoice(), 0.0),
        (ImageChoice(rows=3, image=2), 0.0),
        (ImageChoice(rows=2, side=3), 0.7),
        (ImageChoice(rows=0), 0.0),
        (ImageChoice(rows=8), 0.0),
        (ImageChoice(side=10), 0.0),
    ]
    wishes += [(ImageChoice(image=0), 0.0), (ImageChoice(image=3), 0.0), (ImageChoice(side=9, rows=8), 0.0)]
    lines = []
    for wish, temperature in wishes:
        lines.append(f"{wish} {temperature}:")
        try:
            one = continue_image(model, task, wish, temperature=temperature, seed=1)
        except PoscliError as error:
            lines.append(f"{type(error).__name__}: {error}")
            continue
        lines.append(told([one.kept, one.image, one.images, one.cells, one.told, one.true[-2:]]))
        lines.append(told(one.made[one.kept - 1 :] if temperature == 0 else one.made.shape))
        lines.append(continuation.picture(one, "alibi-2d", 16).decode())
    snapshot("\n".join(lines) + "\n", rounded=True)


# ---- why

WHY = (
    "rope",
    "alibi",
    "sinusoidal",
    "learned",
    "t5",
    "fox",
    "shaw",
    "none",
    "rope+window(5)",
    "cope(max_pos=5)",
    "kerple-log+ssmax",
)


def test_attributions(snapshot: Snapshot) -> None:
    given = sample()
    rows = [{"encoding": spec, **row} for spec in WHY for row in attribution(small(spec), given)]
    rows += [{"encoding": "with a memory", **row} for row in attribution(small("shaw", memory=8), given)]
    refused = {spec: refuses(small(spec).encodings[0]) for spec in ("rope", "toys:Carried", "toys:Capped", "path")}
    snapshot(sections({"rows": table(rows), "refused": told(refused)}), rounded=True)


def changes(full: float, **shares: float | str) -> list[dict[str, Any]]:
    """Rows of an attribution from the harm of the full window, and the share or the status of every change."""
    rows = [
        {"change": "base", "status": "ok", "harm": 0.0, "share": 0.0},
        {"change": "full", "status": "ok", "harm": full, "share": 1.0},
    ]
    for change, share in shares.items():
        status = share if isinstance(share, str) else "ok"
        rows.append(
            {"change": change, "status": status, "harm": 0.0, "share": math.nan if isinstance(share, str) else share}
        )
    return [row | {"train_length": 8, "length": 20, "reason": f"why {row['change']}"} for row in rows]


def test_verdicts(snapshot: Snapshot) -> None:
    void, lost = "void", "not measured"
    told_of: list[tuple[float, float | str, float | str, float | str]] = [
        *(
            (0.5, 0.9, 0.1, 0.2),
            (0.5, 0.5, 0.6, 0.49),
            (0.5, 0.8, 0.7, 0.9),
            (0.1, void, 0.9, 0.1),
            (0.2, void, 3.0, 0.4),
        ),
        *(
            (0.19, void, 3.0, 0.6),
            (0.3, 0.1, 2.5, 0.7),
            (0.3, 0.1, 2.5, lost),
            (0.3, 0.1, 0.2, 0.3),
            (0.3, void, void, 0.3),
        ),
        *((0.3, void, void, void), (0.01, 0.9, 2.0, void), (0.009, 0.9, lost, lost), (math.nan, 0.9, lost, lost)),
        *((0.4, void, 2.5, void), (0.4, lost, 2.5, lost), (0.4, lost, 2.01, 0.1), (0.4, 0.51, 2.0, 0.49)),
    ]
    cases = [changes(full, offset=a, stretch=b, crowd=c) for full, a, b, c in told_of]
    bad = changes(0.3, offset=0.9)
    bad[1]["status"] = "unsupported"
    lines = []
    for rows in [*cases, bad]:
        verb = what_breaks(rows, many=True).partition(" by ")[0]
        opened = [row["change"] for row in rows if is_open(row)]
        lines.append(
            " | ".join(
                [
                    f"x {what_breaks(rows, ' at 2.5x')}",
                    verb,
                    *map(told, causes(rows)),
                    told(opened),
                    str(len(remedies(rows))),
                ]
            )
        )
    snapshot("\n".join([*lines, *remedies(cases[2]), what_breaks(cases[0], " here")]) + "\n")


def test_uses_of_the_context(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saturation, receptive field and dilution of small models, and key tokens by a judge."""
    given = sample()
    parts = {}
    for spec in ("alibi", "rope+window(6)"):
        model = small(spec)
        parts[f"saturation {spec}"] = table(saturation(model, given))
        parts[f"receptive {spec}"] = table(receptive(model, given, 6))
        parts[f"dilution {spec}"] = table(dilution(model, given, 3))
    nothing = sample(spans=SAMPLED[7:])
    alone = sample(Pieces(DOCUMENTS), spans=SAMPLED[:1])
    norms, spans = gradient_norms(small("alibi"), given)
    judge = build_model(
        ModelConfig(layers=1, width=24, heads=3, mlp=32), "alibi", vocab=PIECES, length=64, seed=9
    ).eval()
    short = build_model(
        ModelConfig(layers=1, width=24, heads=3, mlp=32), "alibi", vocab=PIECES, length=63, seed=9
    ).eval()
    other = build_model(ModelConfig(layers=1, width=24, heads=3, mlp=32), "alibi", vocab=9, length=64, seed=9).eval()
    key = np.arange(32).reshape(8, 4) % 3 == 1
    monkeypatch.setattr(judging, "FALL", 0.3)  # so that a fresh judge finds key tokens
    parts |= {
        "nothing counts": told(
            [
                saturation(small("rope"), nothing),
                receptive(small("rope"), nothing),
                len(dilution(small("rope"), nothing)),
            ]
        ),
        "alone": told(receptive(small("rope"), alone)),
        "windows": told(
            [
                visible_windows(sample(train_length=n, length=size, scored=s))
                for n, size, s in ((8, 32, 4), (16, 33, 1), (5, 30, 2), (8, 8, 1), (16, 16, 15))
            ]
        ),
        "gradients": told([spans, norms[:2, :9]]),
        "donors": told(
            [
                donors(given, np.arange(8)),
                donors(alone, np.arange(1)),
                donors(sample(spans=np.array([[3, 36], [3, 48], [3, 70]])), np.arange(3)),
            ]
        ),
        "few": told([few(given, n)[1] for n in (1, 3, 8, 20)]),
        "losses": told([given.losses(small("rope"), n)[:3] for n in (4, 8, 32)]),
        "key tokens": table(key_token_rows(small("rope"), given, key)),
        "few key tokens": table(key_token_rows(small("rope"), given, key & (key.cumsum().reshape(8, 4) < 4))),
        "judged": told([outcome(key_tokens, each, given) for each in (judge, short, other)]),
        "found": told(key_tokens(perturbed(judge), longer()).astype(int)),
        "judges": "\n".join(outcome(refuse_judge, *pair) for pair in judges()),
    }
    snapshot(sections(parts), rounded=True)


def longer() -> Sample:
    """Windows of 66 tokens, of which the last 20 are scored, and not all count."""
    task = Pieces([document(90 + 7 * n, n) for n in range(4)], uncounted=[(1, n) for n in range(70, 78)])
    return sample(task, spans=np.array([[0, 88], [1, 80], [1, 95], [3, 99]]), length=66, scored=20)


def judges() -> list[tuple[Run, Run]]:
    """Pairs of a judge and a run."""

    def run(name: str, fingerprint: str, length: int) -> Run:
        return Run(Path(name), RunConfig(encoding="rope", length=length), {"corpus": {"fingerprint": fingerprint}})

    judged = run("a", "f", 16)
    return [(judged, judged), (run("b", "g", 128), judged), (run("b", "f", 127), judged), (run("b", "f", 128), judged)]


def test_explanations(
    tmp_path: Path, snapshot: Snapshot, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tables of a run, and of runs that have none."""
    task, chosen = Pieces([document(90 + 7 * n, n) for n in range(7)]), settings(max_len=64, stride=4, tokens=96)
    config = RunConfig(encoding="alibi", length=8, tokens=64)
    run = run_of(tmp_path, task, config)
    judge = run_of(tmp_path, task, config.model_copy(update={"length": 64, "encoding": "rope"}))
    failed = run_of(tmp_path, task, config.model_copy(update={"seed": 1}), "diverged")
    broken = run_of(tmp_path, task, config.model_copy(update={"encoding": "learned"}))
    checkpoint = CheckpointConfig(name="llama", source="hf:a/b", digest="0", parameters=9)
    loaded = run_of(tmp_path, task, config.model_copy(update={"checkpoint": checkpoint}))
    made = {run.id: small("alibi"), broken.id: small("learned")}
    long = build_model(ModelConfig(layers=1, width=24, heads=3, mlp=32), "rope", vocab=PIECES, length=64, seed=9)
    monkeypatch.setattr(explaining, "load_trained", lambda one, device: made.get(one.id, long))
    for name, value in {"NEAR_TOKENS": 200, "FAR_TOKENS": 600, "KEY_TOKENS": 700}.items():
        monkeypatch.setattr(explaining, name, value)
    lines = []
    cases = [
        (run, judge, chosen),
        (run, judge, chosen),
        (run, None, chosen),
        (judge, judge, chosen),
        (failed, None, chosen),
        (loaded, None, chosen),
        (run, run, chosen),
    ]
    cases += [
        (run, failed, chosen),
        (run, None, settings(max_len=8)),
        (evaluated_as(run, "none"), None, chosen),
        (broken, None, chosen),
    ]
    for one, by, given in cases:
        left = [
            explaining.is_explained(one, given, by),
            explaining.is_left_to_explain(one, task, given, by),
            explaining.is_left_to_explain(None, task, given, by),
        ]
        said = heard(capsys, explaining.explain, EvaluationSetup(one, task, given, CPU), by)
        lines.append(f"{one.label} by {by and by.label}: {told(left)}\n{said}")
        if one is run and len(lines) == 1:
            tables = explanations_of(run)
            lines += [
                f"{name}: {len(found)} rows, {told(found.iloc[[0, -1], 5:].to_numpy())}"
                for name, found in tables.items()
            ]
    lines.append(told([explaining.is_left_to_explain(run, other, chosen) for other in (Copy(), stripes())]))
    lines += [f"{name}: {len(found)}" for name, found in explanations_of(broken).items()]
    snapshot("\n".join(lines).replace(str(tmp_path), "HERE") + "\n", rounded=True)
