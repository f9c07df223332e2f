"""Evaluations whole: plans, losses, tables, intervals, other encodings, and why a model breaks.

Models are made up, with losses that are functions of the tokens and of how many of them are read, or small and fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lines import outcome, sections, table, told
from numpy.typing import NDArray
from pieces_task import Pieces
from test_grid_cli import stripes
from test_grids import Numbered
from torch import Tensor

from poscli.config.request import ExtrapolateRequest
from poscli.config.run import CheckpointConfig, RunConfig
from poscli.encodings import Encoding, Shape
from poscli.equation import Unsupported
from poscli.evaluation import extrapolate, measure
from poscli.evaluation.answers import depth_bins, gap_bins
from poscli.evaluation.baseline import BASELINES, baseline
from poscli.evaluation.measure import cost
from poscli.evaluation.plan import Plan
from poscli.evaluation.power import detectable_difference
from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, in_turns, largest_divisor, pieces
from poscli.evaluation.recall import octaves
from poscli.evaluation.sources import record_of
from poscli.runs.results import tables_of
from poscli.runs.run import Run, create, evaluated_as
from poscli.specs import build, parse
from poscli.system.console import collected_warnings
from poscli.tasks import Task
from poscli.tasks.copy import Copy
from poscli.tasks.passkey import Passkey

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
    parts["power"] = "\n".join(detectable_difference(plan, seeds) for seeds in (1, 3, 8))
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
        told(extrapolate.settings_of(config, ExtrapolateRequest(**options), smoke).record())
        for config, options, smoke in requests
    ]
    wrong: list[dict[str, Any]] = [
        {"max_len": 7}, {"ratios": (2, 3)}, {"stride": 0}, {"stride": 9}, {"tokens": 3}, {"max_len": 64}, {"protocols": ("answer",)},
        {"protocols": ("sliced",)}, {"baselines": ("crap",)}, {"baselines": ("rope",)}, {"baselines": ("sink(2)",)}, {"baselines": ("window(",)},
    ]  # fmt: skip
    refused = [
        f"{change}: {outcome(lambda change=change: Plan(Pieces(DOCUMENTS), settings(**change)).settings.lengths)}"
        for change in wrong
    ]
    refused.append(outcome(Plan, Copy(), settings(protocols=("fixed",))))
    refused.append(outcome(Plan, Numbered((9, 9)), settings(train_length=16, max_len=16, stride=5)))
    refused.append(outcome(Plan, Numbered((9, 9)), settings(train_length=16, max_len=100, stride=2)))
    protocols = [
        {"name": name}
        | {each: getattr(PROTOCOLS.get(name), each) for each in ("compared", "same_text", "convention", "explained")}
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
        {"train_length": 4, "max_len": 36, "ratios": (1, 4, 9), "stride": 1, "tokens": 12},
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
    monkeypatch.setattr(extrapolate, "load_model", lambda run, device: model)
    monkeypatch.setattr(measure, "PASS_TOKENS", 100)
    monkeypatch.setattr("os.fsync", lambda file: None)  # nothing here needs to survive a power cut
    extrapolate.extrapolate(run, task, chosen, CPU)
    tables = tables_of(run, task.columns)
    parts = {"eval.csv": shown(tables.rows)}
    if name in ("language", "few", "copy"):
        parts["position.csv"] = shown(tables.positions)
    for each, detail in tables.details.items():
        whole = name in ("language", "few", "passkey") and (each != "units" or name == "few")
        parts[f"{each}.csv"] = shown(detail) if whole else told([len(detail), detail.iloc[::23, 6:].to_numpy()])
    parts["record"] = told(
        [record_of(run, chosen), sorted(path.name for path in run.folder.rglob("*") if path.is_file())]
    )
    parts["passes"] = told([len(model.read), sorted(set(model.read))])
    before = len(model.read)
    parts["again"] = heard(
        capsys, lambda: len(extrapolate.extrapolate(run, task, chosen, CPU)) and len(model.read) - before
    )
    (run.folder / "eval.json").unlink()
    parts["from losses"] = heard(
        capsys, lambda: len(extrapolate.extrapolate(run, task, chosen, CPU)) and len(model.read) - before
    )
    text = sections(parts).replace(str(tmp_path), "HERE")
    snapshot(text, f"evaluation-{name}", rounded=True)
