"""Analyses whole: attributions and their verdicts, uses of the context, key tokens, and the tables of runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grid_images import stripes
from lines import heard, outcome, sections, table, told
from pieces_task import DOCUMENTS, WINDOWS, Pieces, document, ended_run, small, windows_of_pieces

from poscli.config.run import RunConfig
from poscli.encodings import get, names
from poscli.evaluation import evaluate
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.protocol import EvaluationSettings
from poscli.runs.results import explanations_of
from poscli.runs.run import Run, evaluated_as
from poscli.tasks.copy import Copy
from poscli.why import context_use, explain
from poscli.why.attribution import attribution, causes, open_changes, remedies, what_breaks
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
from poscli.why.sample import few

Snapshot = Callable[..., None]
ENCODINGS = ["rope", "alibi", "sinusoidal", "learned", "t5", "fox", "shaw", "none"]
ENCODINGS += ["rope+window(5)", "cope(max_pos=5)", "kerple-log+ssmax"]


def test_attributions(snapshot: Snapshot) -> None:
    sample = windows_of_pieces()
    rows = [{"encoding": spec, **row} for spec in ENCODINGS for row in attribution(small(spec), sample)]
    rows += [{"encoding": "with a memory", **row} for row in attribution(small("shaw", memory=8), sample)]
    refused = {spec: refuses(small(spec).encodings[0]) for spec in ("rope", "toys:Carried", "toys:Capped", "path")}
    snapshot(sections({"rows": table(rows), "refused": told(refused)}), rounded=True)


def test_what_can_be_changed_of_every_encoding(snapshot: Snapshot) -> None:
    """The status of every change: void where a definition says that nothing can change, and never a fault."""
    sample = windows_of_pieces(spans=WINDOWS[:2])
    lines = []
    for name in names():
        if get(name).axes == 1:
            rows = attribution(small(name), sample)
            assert all(math.isfinite(row["nll"]) == (row["reason"] == "") for row in rows if row["status"] == "ok")
            lines.append(f"{name}: {', '.join(row['status'] for row in rows[1:])}")
    snapshot("\n".join(["of full, offset, gap, crowd, sinkless", *lines]) + "\n")


def changes(full: float, **shares: float | str) -> list[dict[str, Any]]:
    """Rows of an attribution from the harm of the full window, and the share or the status of every change."""
    known = {"base": 0.0, "full": 1.0} | shares
    rows = [
        {"change": change, "status": share, "share": math.nan}
        if isinstance(share, str)
        else {"change": change, "status": "ok", "share": share}
        for change, share in known.items()
    ]
    sizes = {"train_length": 8, "length": 20, "share_high": math.nan, "harm_low": math.nan}
    return [row | sizes | {"harm": full * (row["change"] == "full"), "reason": f"why {row['change']}"} for row in rows]


def test_verdicts(snapshot: Snapshot) -> None:
    """The sentence by the harm of the full window and the shares of offset, gap, crowd and sinkless."""
    void, lost = "void", "not measured"
    cases: list[tuple[float, float | str, float | str, float | str, float | str]] = [
        (0.5, 0.9, 0.1, 0.2, void),
        (0.5, 0.49, 0.6, 0.4, 0.1),
        (0.5, 0.5, 0.6, 0.49, void),
        (0.5, 0.5, 1.0, 0.49, void),
        (0.5, 0.5, 0.99, 0.49, void),
        (0.5, 0.6, 0.49, 0.9, void),
        (0.1, void, 0.9, 0.1, void),
        (0.2, void, 2.0, 0.4, void),
        (0.19, void, 2.01, 0.6, void),
        (0.3, 0.1, 2.5, 0.7, void),
        (0.3, 0.1, 2.5, lost, void),
        (0.3, void, 2.5, 2.1, void),
        (0.3, void, 2.5, void, void),
        (0.3, 0.1, 0.2, 0.3, void),
        (0.3, void, void, 0.3, void),
        (0.3, void, void, void, void),
        (0.3, void, 0.1, 1.0, 0.9),
        (0.3, void, 0.1, 1.4, 0.9),
        (0.3, void, 0.1, 0.9, 0.1),
        (0.3, 0.8, 0.9, 1.0, 0.9),
        (0.3, void, void, lost, 0.9),
        (0.01, 0.9, 2.0, void, void),
        (0.009, 0.9, lost, lost, void),
        (math.nan, 0.9, lost, lost, void),
    ]
    tables = [changes(full, offset=a, gap=b, crowd=c, sinkless=d) for full, a, b, c, d in cases]
    tables.append([row | {"status": "unsupported"} for row in changes(0.3, offset=0.9)])
    lines = []
    for rows in tables:
        sentences = [f"x {what_breaks(rows)}", f"x and y {what_breaks(rows, many=True)}"]
        lines.append(
            " | ".join([*sentences, *map(told, causes(rows)), told(open_changes(rows)), str(len(remedies(rows)))])
        )
    snapshot("\n".join([*lines, *remedies(tables[3]), *remedies(tables[17])]) + "\n")


def test_uses_of_the_context(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saturation, receptive field and dilution of small models, and key tokens by a judge."""
    sample, rope, alibi = windows_of_pieces(), small("rope"), small("alibi")
    parts = {}
    for name, model in {"alibi": alibi, "rope+window(6)": small("rope+window(6)")}.items():
        parts[f"saturation {name}"] = table(saturation(model, sample))
        parts[f"receptive {name}"] = table(receptive(model, sample, 6))
        parts[f"dilution {name}"] = table(dilution(model, sample, 3))
    nothing = windows_of_pieces(spans=WINDOWS[7:])
    alone = windows_of_pieces(Pieces(DOCUMENTS), spans=WINDOWS[:1])
    of_one_text = windows_of_pieces(spans=np.array([[3, 36], [3, 48], [3, 70]]))
    of_two = windows_of_pieces(spans=np.array([[3, 36], [3, 70], [4, 37]]))  # one apart, and one elsewhere after it
    sizes = [(8, 32, 4), (16, 33, 1), (5, 30, 2), (8, 8, 1), (16, 16, 15)]
    samples = [windows_of_pieces(train_length=n, length=size, scored=s) for n, size, s in sizes]
    norms, spans = gradient_norms(alibi, sample)
    task = Pieces([document(90 + 7 * n, n) for n in range(4)], uncounted=[(1, n) for n in range(70, 78)])
    longer = windows_of_pieces(task, spans=np.array([[0, 88], [1, 80], [1, 95], [3, 99]]), length=66, scored=20)
    judge = small("alibi", layers=1, length=64, seed=9)
    key = np.arange(32).reshape(8, 4) % 3 == 1
    monkeypatch.setattr(context_use, "FALL", 0.3)  # so that a fresh judge finds key tokens
    parts |= {
        "nothing counts": told([saturation(rope, nothing), receptive(rope, nothing), len(dilution(rope, nothing))]),
        "alone": told(receptive(rope, alone)),
        "windows": told([visible_windows(each) for each in samples]),
        "gradients": told([spans, norms[:2, :9]]),
        "donors": told([donors(each, np.arange(len(each.spans))) for each in (sample, alone, of_one_text, of_two)]),
        "few": told([few(sample, n)[1] for n in (1, 3, 8, 20)]),
        "losses": told([sample.losses(rope, n)[:3] for n in (4, 8, 32)]),
        "key tokens": table(key_token_rows(rope, sample, key)),
        "few key tokens": table(key_token_rows(rope, sample, key & (key.cumsum().reshape(8, 4) < 4))),
        "found": told(key_tokens(judge, longer).astype(int)),
        "judges": "\n".join(outcome(refuse_judge, *pair, 512) for pair in judges()),
    }
    snapshot(sections(parts), rounded=True)


def judges() -> list[tuple[Run, Run]]:
    """Pairs of a judge and a run."""

    def run(name: str, fingerprint: str, length: int) -> Run:
        return Run(Path(name), RunConfig(encoding="rope", length=length), {"corpus": {"fingerprint": fingerprint}})

    judged = run("a", "f", 16)
    others = [run("b", "g", 128), run("b", "f", 127), run("b", "f", 128)]
    return [(judged, judged), (judged, evaluated_as(judged, "none")), *((other, judged) for other in others)]


def test_explanations(
    tmp_path: Path, snapshot: Snapshot, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tables of a run, and of runs that have none."""
    task = Pieces([document(90 + 7 * n, n) for n in range(7)])
    settings, short = (EvaluationSettings(train_length=8, max_len=longest, stride=4, tokens=96) for longest in (64, 8))

    def run_of(state: str = "complete", **options: Any) -> Run:
        return ended_run(tmp_path, task, RunConfig(**{"encoding": "alibi", "length": 8, "tokens": 64} | options), state)

    run, judge, failed = run_of(), run_of(length=64, encoding="rope"), run_of("diverged", seed=1)
    broken = run_of(encoding="learned")
    models = {run.id: small("alibi"), broken.id: small("learned"), judge.id: small("rope", layers=1, length=64)}
    for module in (explain, evaluate):
        monkeypatch.setattr(module, "load_model", lambda one, device: models[one.id])
    for name, value in {"NEAR_TOKENS": 200, "FAR_TOKENS": 600, "KEY_TOKENS": 700}.items():
        monkeypatch.setattr(explain, name, value)
    cases: list[tuple[Run, Run | None, EvaluationSettings]] = [
        (run, judge, settings),
        (run, judge, settings),
        (run, None, settings),
        (judge, judge, settings),
        (failed, None, settings),
        (run, run, settings),
        (run, failed, settings),
        (run, None, short),
        (evaluated_as(run, "none"), None, settings),
        (broken, None, settings),
    ]
    lines = []
    for number, (one, by, asked) in enumerate(cases):
        left = [
            explain.is_explained(one, asked, by),
            explain.is_left_to_explain(one, task, asked, by),
            explain.is_left_to_explain(None, task, asked, by),
        ]
        said = heard(capsys, explain.explain, EvaluationSetup(one, task, asked, torch.device("cpu")), by)
        lines.append(f"{one.label} by {by and by.label}: {told(left)}\n{said}")
        if number == 0:
            for name, rows in explanations_of(run).items():
                lines.append(f"{name}: {len(rows)} rows, {told(rows.iloc[[0, -1], 5:].to_numpy())}")
    lines.append(told([explain.is_left_to_explain(run, other, settings) for other in (Copy(), stripes())]))
    lines += [f"{name}: {len(rows)}" for name, rows in explanations_of(broken).items()]
    snapshot("\n".join(lines).replace(str(tmp_path), "HERE") + "\n", rounded=True)
