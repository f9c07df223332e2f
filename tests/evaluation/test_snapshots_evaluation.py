"""Evaluations whole: plans, losses, tables, other encodings.

Models are made up, with losses that are functions of the tokens and of how many of them are read, or small and fresh.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from grid_images import Numbered, stripes
from lines import heard, outcome, sections, table, told
from numpy.typing import NDArray
from pieces_task import DOCUMENTS, PIECES, Pieces, ended_run, small, windows_of_pieces
from torch import Tensor
from toys import model as toy

from poscli.config.request import ExtrapolateRequest
from poscli.config.run import CheckpointConfig, ModelConfig, RunConfig
from poscli.encodings import Encoding, Shape
from poscli.equation import Unsupported
from poscli.evaluation import measure
from poscli.evaluation.baseline import baseline
from poscli.evaluation.evaluate import evaluate_run, search_constants, settings_of
from poscli.evaluation.losses import Losses, MeasuredLosses, position_curve, tail_slope
from poscli.evaluation.measure import EvaluationSetup, cost
from poscli.evaluation.plan import Plan, record_of
from poscli.evaluation.posthoc import (
    compatible_specs,
    posthoc_spec,
    posthoc_specs,
    recalibration,
    refuse_recalibration,
    runs_as,
    with_encoding,
    with_joined,
)
from poscli.evaluation.protocol import PROTOCOLS, EvaluationSettings
from poscli.evaluation.recall import recall_by_distance, recurrences
from poscli.evaluation.tables import answers_by_place, depth_bins, gap_bins
from poscli.model.transformer import Model
from poscli.report.summary import as_json
from poscli.runs.results import tables_of
from poscli.runs.run import Run, evaluated_as
from poscli.specs import build, parse
from poscli.statistics.power import detectable_difference
from poscli.tasks import Batch, Task, Text
from poscli.tasks.copy import Copy
from poscli.tasks.passkey import Passkey
from poscli.verify.noise import perturbed

Snapshot = Callable[..., None]
CPU = torch.device("cpu")
# Columns that differ between machines.
ELSEWHERE = [
    *("seconds", "tokens_per_s", "peak_mb", "device", "poscli", "commit", "machine", "cpu", "torch", "measured_code"),
]
TASK = partial(Pieces, DOCUMENTS)
FEW = partial(Pieces, DOCUMENTS[3:6])
CHECKPOINT = CheckpointConfig(name="llama", source="hf:a/b", digest="0", parameters=9)


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

    def logits_in_slices(self, tokens_BT: Tensor, last: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        batch, count = tokens_BT.shape
        last = last or count
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
        logits, half = logits[:, -last:], max(1, last // 2)
        for part in (slice(0, half), slice(half, last)):
            if part.stop > part.start:
                yield part, logits[:, part]


def settings(**changes: Any) -> EvaluationSettings:
    return EvaluationSettings(**{"train_length": 8, "max_len": 32, "tokens": 48, "stride": 4} | changes)


# ---- plans

PLANS: dict[str, tuple[Callable[[], Task], dict[str, Any]]] = {
    "doublings": (TASK, {}),
    "a stride above an eighth": (TASK, {"stride": 6, "max_len": 31, "tokens": 30}),
    "ratios": (TASK, {"ratios": (1, 1.5, 2.25, 4), "max_len": 30, "baselines": ("window(5)", "crop")}),
    "few": (FEW, {"stride": 8, "tokens": 8, "baselines": ("sink(2)+window(6)", "logn+window")}),
    "alone": (TASK, {"max_len": 8, "stride": 1, "tokens": 5, "baselines": ()}),
    "images": (
        partial(Numbered, (9, 14), (8, 8), (12, 11)),
        {"train_length": 4, "max_len": 36, "stride": 1, "ratios": (1, 4, 9), "tokens": 20},
    ),
    "copy": (Copy, {"max_len": 20, "ratios": (1, 2.5), "tokens": 13}),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str, snapshot: Snapshot) -> None:
    """The windows of every protocol, and of every measurement how many there are and where they are kept."""
    task, changes = PLANS[name][0](), PLANS[name][1]
    plan = Plan(task, settings(**changes))
    lengths, variants = plan.settings.lengths, {protocol: plan.variants(protocol) for protocol in plan.protocols}
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
    measurements = [
        {
            "file": each.file,
            "length": each.length,
            "model": each.model,
            "windows": len(windows),
            "first": windows[:2],
            "ends": int(windows[:, 1].sum()),
            "cost": cost(each, windows, plan.settings.train_length),
        }
        for each, windows in plan.measurements().items()
    ]
    columns = ("full", *plan.baselines)
    parts = {
        "record": told([lengths, plan.settings.record(), variants]),
        "spans": table(spans),
        "measurements": table(measurements),
        "of": told({f"{n} {variant}": plan.measurement(n, variant).file for n in lengths for variant in columns}),
        "power": "\n".join(detectable_difference(seeds, plan.documents_compared()) for seeds in (1, 3, 8)),
    }
    snapshot(sections(parts), f"plan-{name.replace(' ', '-')}", rounded=True)


def test_settings_and_refusals(snapshot: Snapshot) -> None:
    requests: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        ({"length": 64}, {}, False),
        ({"length": 512}, {"max_len": "6x", "tokens": 3000}, False),
        ({"length": 300}, {"lengths": (2, 1, 1.25), "ngram": 3, "protocols": ["fixed"]}, True),
        ({"length": 64, "task": "grid"}, {"max_len": 100, "baselines": ["crop"]}, True),
        ({"length": 64, "checkpoint": CHECKPOINT}, {"stride": 16}, False),
        ({"length": 32, "task": "recall", "checkpoint": CHECKPOINT}, {"baselines": ["sink(4)+window"]}, True),
    ]
    wrong: list[dict[str, Any]] = [{"max_len": 7}, {"ratios": (2, 3)}, {"stride": 0}, {"stride": 9}, {"tokens": 3}]
    wrong += [{"max_len": 64}, {"protocols": ("answer",)}, {"protocols": ("sliced",)}]
    wrong += [{"baselines": (name,)} for name in ("crap", "rope", "sink(2)", "window(")]
    of_tasks: list[tuple[Task, dict[str, Any]]] = [
        *((Copy(), {"protocols": (name,)}) for name in ("fixed", "sliding")),
        (Numbered((9, 9)), {"train_length": 16, "max_len": 16, "stride": 5}),
        (Numbered((9, 9)), {"train_length": 16, "max_len": 100, "stride": 2}),
    ]
    specs = ["crop", "window", "window(5)", "sink(4)+window", "sink(1)+window(9)", "ssmax", "alibi+window(30)"]
    columns = ("compared", "same_text", "convention")
    parts = {
        "requests": "\n".join(
            told(
                settings_of(RunConfig(encoding="rope", **run), ExtrapolateRequest(**options), *[True] * smoke).record()
            )
            for run, options, smoke in requests
        ),
        "refused": "\n".join(
            f"{task.name} {each}: {outcome(lambda task, each: Plan(task, settings(**each)), task, each)}"
            for task, each in [*((TASK(), each) for each in wrong), *of_tasks]
        ),
        "protocols": table(
            {"name": name} | {each: getattr(PROTOCOLS.get(name), each) for each in columns}
            for name in PROTOCOLS.names()
        ),
        "baselines, at 8, 9, 16 and 64 tokens": "\n".join(f"{spec}: {outcome(restriction, spec)}" for spec in specs),
        "explained": "\n".join(baseline(spec).explain() for spec in ("crop", "sink(4)+window")),
    }
    snapshot(sections(parts), rounded=True)


def restriction(spec: str) -> list[tuple[int, bool]]:
    """What a baseline reads at several lengths where L = 8, and whether it changes the model."""
    one = baseline(spec)
    return [(one.window(length, 8), one.changes_model(length, 8)) for length in (8, 9, 16, 64)]


def test_rows_for_json() -> None:
    """Rows of several tables in one list; what JSON has no number for is null."""
    tables = [
        pd.DataFrame({"run": name, "nll": values}) for name, values in {"a": [1.5, math.inf], "b": [-math.inf]}.items()
    ]
    assert as_json(pd.concat([*tables, pd.DataFrame({"run": ["c"], "nll": [math.nan]})])) == [
        {"run": name, "nll": nll} for name, nll in (("a", 1.5), ("a", None), ("b", None), ("c", None))
    ]


# ---- a whole evaluation


class Counted(Pieces):
    """Documents of which some targets do not count."""

    def __init__(self) -> None:
        uncounted = [(0, n) for n in range(20, 40)] + [(5, 60), (5, 61), (6, 36)]
        super().__init__(DOCUMENTS, uncounted=uncounted, bytes_per_token=3)

    def unigram(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.where(tokens == 1, 0.5, 2.5)

    def optimum(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64]:
        return (tokens[:, 1:] % 3 + np.arange(tokens.shape[1] - 1) / 100).astype(float)[:, -scored:]

    def blind(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64]:
        return self.optimum(tokens, scored) + 0.25


# The task, changes of the settings, what the model cannot do, and the encoding that it is evaluated as.
EVALUATIONS: dict[str, tuple[Callable[[], Task], dict[str, Any], dict[str, Any], str]] = {
    "language": (TASK, {"ngram": 2, "baselines": ("sink(1)+window(5)",)}, {}, ""),
    "counted": (
        Counted,
        {"ratios": (1, 3), "stride": 2, "tokens": 60, "ngram": 1},
        {"bad": 24},
        "rope-linear(factor=2)",
    ),
    "few": (FEW, {"max_len": 16, "stride": 8, "tokens": 40}, {"ends": 12}, ""),
    "copy": (Copy, {"max_len": 16, "tokens": 26}, {}, ""),
    "passkey": (Passkey, {"max_len": 20, "ratios": (1, 2.5), "tokens": 20, "baselines": ()}, {}, ""),
    "images": (
        stripes,
        {"train_length": 4, "max_len": 36, "ratios": (1, 4, 9), "stride": 1, "tokens": 12, "baselines": ()},
        {"ends": 30},
        "",
    ),
}


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
    size = {"length": max(8, chosen.train_length), "tokens": 100}
    run = ended_run(tmp_path, task, RunConfig(encoding="rope", seed=3, corpus="stdlib", tokenizer="pieces", **size))
    if posthoc:
        run = evaluated_as(run, posthoc)
    model = Fading("rope", vocab=task.vocab, length=chosen.train_length, **limits)
    monkeypatch.setattr("poscli.evaluation.evaluate.load_model", lambda run, device: model)
    monkeypatch.setattr(measure, "PASS_TOKENS", 100)
    setup = EvaluationSetup(run, task, chosen, CPU)
    evaluate_run(setup)
    tables = tables_of(run, task.columns)
    parts = {"eval.csv": shown(tables.rows)}
    if name in ("language", "few", "copy"):
        parts["position.csv"] = shown(tables.positions)
    for each, detail in tables.details.items():
        whole = name in ("language", "few", "passkey") and (each != "units" or name == "few")
        rows = shown(detail.iloc[:: 3 if each == "units" else 1])
        parts[f"{each}.csv"] = rows if whole else told([len(detail), detail.iloc[::23, 6:].to_numpy()])
    files = sorted(path.name for path in run.folder.rglob("*") if path.is_file())
    parts["record"] = told([record_of(run, chosen), files])
    parts["passes"] = told([len(model.read), sorted(set(model.read))])

    def once_more() -> int:
        """How many passes it takes to evaluate the run again."""
        before = len(model.read)
        assert len(evaluate_run(setup))
        return len(model.read) - before

    parts["again"] = heard(capsys, once_more)
    (run.folder / "eval.json").unlink()
    parts["from losses"] = heard(capsys, once_more)
    snapshot(sections(parts).replace(str(tmp_path), "HERE"), f"evaluation-{name}", rounded=True)


ENDED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "diverged": ("diverged", "the loss is 99 at step 3", {}),
    "planned": ("interrupted", "", {}),
    "another text": ("complete", "", {"fingerprint": "other"}),
    "forced, planned": ("interrupted", "", {"force": True}),
    "nonfinite": ("complete", "", {"nan": True}),
}


@pytest.mark.parametrize("name", ENDED)
def test_evaluations_without_numbers(
    name: str, tmp_path: Path, snapshot: Snapshot, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, message, how = ENDED[name]
    task, model = TASK(), Fading("sinusoidal", vocab=PIECES)
    run = ended_run(tmp_path, task, RunConfig(encoding="sinusoidal", length=8, tokens=64), state, message)
    if how.get("nan"):
        monkeypatch.setattr(task, "score", lambda logits, targets: {"nll": (targets * math.nan).float()})
    task.fingerprint = how.get("fingerprint", task.fingerprint)
    monkeypatch.setattr("poscli.evaluation.evaluate.load_model", lambda run, device: model)
    monkeypatch.setattr(type(model.encodings[0]), "longest", lambda encoding, dtype: 12)
    setup = EvaluationSetup(run, task, settings(max_len=16), CPU)
    said = heard(capsys, lambda: shown(evaluate_run(setup, force=bool(how.get("force")))))
    snapshot(said.replace(str(tmp_path), "HERE") + "\n", f"ended-{name.replace(', ', '-').replace(' ', '-')}")


# ---- losses, recall and answers


KEY, OTHER = (json.dumps([1, {"tokens": 16, "stride": stride}]) for stride in (2, 4))


def test_losses(snapshot: Snapshot) -> None:
    """Losses that are written to a file and read again, by position, and of windows that are asked for."""
    spans = np.array([[0, 12], [0, 20], [3, 12], [5, 40]])
    nll = (np.arange(4)[:, None] + np.sqrt(np.arange(12)) / 4).astype(np.float32)
    losses = Losses(spans, {"nll": nll, "accuracy": (nll > 1).astype(np.float32)})
    measured = MeasuredLosses(losses, seconds=2.5, peak_mb=7.0, engine="sdpa", engine_reason="slow", where={"cpu": "x"})
    content = measured.content(KEY)
    whole = np.full(4, 12)
    fewer = json.dumps([1, {"tokens": 8, "stride": 2}])  # of the same evaluation
    again = MeasuredLosses.of_content(content, KEY, spans, whole, 12, alone=False)
    assert again is not None
    assert again.losses is not None
    assert all((values == losses.values[name]).all() for name, values in again.losses.values.items())
    some = MeasuredLosses.of_content(
        content, KEY, np.array([[0, 20], [4, 12], [5, 40]]), np.array([12, 12, 2]), 12, alone=True
    )
    assert some is not None
    assert some.losses is not None
    others = [(OTHER, spans, whole, 12), (KEY, spans + 1, whole, 12), (KEY, spans, whole, 13)]
    assert not any(MeasuredLosses.of_content(content, *other, alone=True) for other in others)
    assert not MeasuredLosses.of_content(content, KEY, spans[:3], whole[:3], 12, alone=False)
    assert not MeasuredLosses.of_content(content, fewer, spans, whole, 12, alone=False)
    kept = pq.read_table(io.BytesIO(content))
    cut = [Losses(spans, {"nll": nll[:, :n]}) for n in (4, 9, 12)]
    parts = {
        "some": told([some.spans, some.losses.nll[:, [0, 9, 10]], some.seconds]),
        "read": told([again.seconds, again.peak_mb, again.engine, again.engine_reason, again.where, again.status]),
        "columns": told({name: kept[name].to_numpy()[[0, 11, 12, -1]] for name in kept.column_names}),
        "types": told([str(each) for each in kept.schema.types]),
        "curves": "\n".join(told([position_curve(each), tail_slope(each)]) for each in cut),
        "at": told([losses.at(spans[[3, 0]], 3), losses.at(spans[[1]], 5, "accuracy")]),
    }
    snapshot(sections(parts), rounded=True)


def test_losses_are_stored_of_measured_tokens_only_and_files_that_have_the_others_can_be_read() -> None:
    spans, tokens = np.array([[0, 12], [3, 20]]), np.array([12, 2])
    nll = np.where(np.arange(12) >= 12 - tokens[:, None], np.arange(24.0).reshape(2, 12), np.nan).astype(np.float32)
    content = MeasuredLosses(Losses(spans, {"nll": nll})).content(KEY)
    few = pq.read_table(io.BytesIO(content))
    assert few.num_rows == tokens.sum()
    columns = {"document": np.repeat(spans[:, 0], 12), "end": np.repeat(spans[:, 1], 12), "nll": nll.ravel()}
    every = pa.table(columns | {"position": np.tile(np.arange(1, 13), 2)}).replace_schema_metadata(few.schema.metadata)
    earlier = io.BytesIO()
    pq.write_table(every, earlier)
    for stored in (content, earlier.getvalue()):
        again = MeasuredLosses.of_content(stored, KEY, spans, tokens, 12, alone=False)
        assert again is not None
        assert again.losses is not None
        np.testing.assert_array_equal(again.losses.nll, nll)


def letters(*documents: str) -> Text:
    return Pieces([[ord(letter) % 8 for letter in document] for document in documents], uncounted=[(0, 12)]).text(0)


def test_recall_and_answers(snapshot: Snapshot) -> None:
    text = letters("abcabcaabcabcxabcd", "aaaaaaaa", "abababab", "xy", "")
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
    answers = [
        row
        for by, bins in {"gap": gap_bins(8, 16), "depth": depth_bins()}.items()
        for row in answers_by_place(back, right, units=["0", "1", "7"], length=16, by=by, bins=bins)
    ]
    parts = {"recurrences": table(rows), "recall": table(recalled), "answers": table(answers)}
    parts["bins"] = told([depth_bins(), *(gap_bins(*sizes) for sizes in ((64, 256), (2, 16), (4, 5)))])
    snapshot(sections(parts), rounded=True)


# ---- other encodings

COMPATIBLE = ["rope", "alibi", "learned", "none", "t5", "rope|none", "rope+window(9)"]
COMPATIBLE += ["rope-linear(factor=4)", "sink(2)+window(5)+alibi", "rope+window(9)|rope(base=50)"]
# What a model was trained with, and what it is evaluated as. Of 34 layers: all, or every sixth as in Gemma 3.
LOCAL = "rope+window(9)"
GEMMA = "|".join([*[LOCAL] * 5, "rope(base=1000000.0)"])
TARGETS = {
    "rope": "yarn, yarn(factor=2), alibi, none, rope(base=500000), window(width=none), window, rope+window(9), logn, "
    "sink(2), rope+t5, alibbi, rope|rope",
    "rope(base=500000)": "rope(base=10000), rope-linear, rope-linear(factor=2), rope-linear(factor=2; base=10000)",
    "alibi": "rope, window(9), alibi(trainable=true)",
    "alibi(most=4)": "alibi(scale=0.25)",
    "t5": "none",
    "shaw": "window, shaw(clip=4)",
    "fire": "rope",
    "learned": "none, hierarchical, learned(beyond=interpolate)",
    "hierarchical": "learned",
    "sinusoidal": "interpolated(4)",
    "t5+rope": "yarn, none, t5+none, t5",
    # Scalings replace each other, and take over the options that both have.
    "yarn(factor=4; original=32)": "rope, llama3(factor=none)",
    "yarn(factor=4; original=32; base=500)": "rope-ntk",
    "llama3(factor=8; low=2)": "yarn, rerope(window=5)",
    "p-rope(p=0.5; base=50)": "rope-dynamic",
    "rope-linear(factor=4)": "yarn, none",
    # Wrappers stay unless the target names them.
    "rope+logn(5)": "yarn",
    "sink(2)+window(9)": "window(7), none",
    LOCAL: "yarn, rope, none, window(5), window(5)+rope",
    "window(9)+rope": "rope+window(9)",
    "rope+window(9)+logn": "window(5), yarn+logn(5)",
    "window(9)+rope+logn": "yarn",
    # Where layers alternate, one target replaces what it can; layers with a window are left out if others have none.
    "rope|none": "yarn, yarn|none, alibi, window, none, rope(base=50), rope|none|rope",
    "none|rope": "yarn",
    "rope|t5": "none",
    "alibi|rope|t5": "rerope",
    "rope|none|t5": "yarn|none, yarn|none|t5",
    "rope|none|rope|none": "yarn",
    f"{LOCAL}|none": "window(4), yarn",
    f"rope|{LOCAL}": "yarn",
    "window(9)|rope": "window(5)",
    f"{LOCAL}|rope(base=50)": "yarn(factor=4), none, logn, window(20), yarn|rope",
    f"{LOCAL}|rope(base=50)+window(5)": "yarn",
    GEMMA: "yarn(factor=8), none|none|none|none|none|none",
    "|".join(["rope|none"] * 17): "yarn",
    "|".join(["rope"] * 30 + ["none"] * 4): "none",
}


def test_other_encodings(snapshot: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    shape = Shape(width=24, heads=3, layers=34, length=16)
    pairs = [
        (trained.replace(";", ","), target.replace(";", ","))
        for trained, targets in TARGETS.items()
        for target in targets.split(", ")
    ]
    config = RunConfig(encoding="rope", length=16, model=ModelConfig(layers=4, width=24, heads=3, mlp=32))
    remembering = config.model_copy(update={"model": config.model.model_copy(update={"memory": 4}), "encoding": "shaw"})
    run = Run(Path("runs/rope-1"), config, {})
    asked = [["yarn", "alibi", "yarn", "rope"], ["all"], ["logn+window", "none"], [], ["rope"]]
    specs = [f"{targets}: {heard(capsys, posthoc_specs, config, targets, False)}" for targets in asked]
    specs.append(heard(capsys, posthoc_specs, config, ["alibi"], True))
    specs.append(heard(capsys, posthoc_specs, remembering, ["all", "window(3)"], False))
    options: list[dict[str, Any]] = [{"as": ["none", "yarn(factor=2)"]}, {"as": ["alibi"]}, {}, {"as": ["all("]}]
    options.append({"as": ["none"], "recalibrate": 4096, "recalibrate_length": 64})

    def evaluated(request: dict[str, Any]) -> list[list[Any]]:
        return [[one.id, one.label, one.recalibration] for one in runs_as([run], ExtrapolateRequest(**request), False)]

    parts = {
        "compatible": "\n".join(
            f"{trained}: {told(compatible_specs(trained, replace(shape, layers=4)))}" for trained in COMPATIBLE
        ),
        "pairs": "\n".join(
            f"{trained} as {target}: {outcome(posthoc_spec, trained, target, shape)}" for trained, target in pairs
        ),
        "specs": "\n".join(specs),
        "runs": "\n".join(f"{each}: {heard(capsys, evaluated, each)}" for each in options),
    }
    snapshot(sections(parts))


def test_recalibrations_that_are_refused(snapshot: Snapshot) -> None:
    config = RunConfig(encoding="rope", length=64, batch=4)
    remembering = config.model.model_copy(update={"memory": 8})
    asked = {"as": ["none"]}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({}, {"recalibrate_length": 32}),
        ({}, {"recalibrate": 1000}),
        ({}, {"recalibrate": 255} | asked),
        ({}, {"recalibrate": 256} | asked),
        ({"checkpoint": CHECKPOINT}, {"recalibrate": 1000} | asked),
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


class Partly(Pieces):
    """Training text with the token 0, in which some targets do not count."""

    def batch(self, **asked: int) -> Batch:  # type: ignore[override]
        tokens = super().batch(**asked).tokens - 1
        return Batch(tokens, tokens[:, 1:] < 3)


def test_models_under_other_encodings(snapshot: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    """The mean loss of windows of 8 and 32 tokens before and after a change of the encoding."""
    sample = windows_of_pieces()
    counts = sample.text.counts(sample.spans, sample.scored)
    rows: list[dict[str, Any]] = []

    def add(trained: str, target: str, model: Model) -> None:
        losses = [float(sample.losses(model, window)[counts].mean()) for window in (8, 32)]
        rows.append({"trained": trained, "target": target, "losses": losses, "encodings": len(set(model.encodings))})

    for spec in ("rope", "t5", "rope|none"):
        add(spec, spec, small(spec))
    others = {
        "rope": ["yarn(factor=4)", "none"],
        "t5": ["t5+window(5)"],
        "rope|none": ["none"],
        "rope-linear": ["rope"],
    }
    for trained, targets in others.items():
        for target in targets:
            add(trained, target, with_encoding(small(trained), target, trained))
    for trained, wrapper in (("rope", "window(5)"), ("t5", "sink(2)+window(4)"), ("rope|none", "logn+window")):
        add(trained, f"joined to {wrapper}", with_joined(small(trained), wrapper))
    searched = []
    for task, length in ((Pieces(), 16), (Pieces(), 48), (Partly(), 48)):
        model = perturbed(toy("longrope(search=6)")).eval().requires_grad_(False)
        said = heard(capsys, search_constants, model, task, length)
        searched.append(f"{length}: {said} {told(getattr(model.encodings[0], 'factors', None))}")
    refused = outcome(with_joined, small("rope+interpolated(2)"), "interpolated(4)")
    snapshot(sections({"losses": table(rows), "searched": "\n".join(searched), "refused": refused}), rounded=True)
