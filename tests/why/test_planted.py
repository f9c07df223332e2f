"""What --why says of the failures of suites/planted.py, each of which has one known cause, or two.

No model is trained. Weights are random, and the scored tokens are drawn from what the model predicts from the last L
tokens. So no change can lower the expected loss, and one that matters raises it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import ROOT
from pieces_task import PIECES, Pieces, small

from poscli.model.transformer import Model
from poscli.why.attribution import ChangeOutcome, attribution, causes, what_breaks
from poscli.why.attribution import rows as rows_of
from poscli.why.sample import Sample

LENGTH, LONG, WINDOWS, SCORED = 16, 64, 100, 4
HOLDS = "alibi(scale=512)"  # so steep that it sees the last tokens only


@torch.inference_mode()
def drawn_from(model: Model) -> Sample:
    """Windows of random tokens, the last of which the model predicts as well as it can from LENGTH tokens."""
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, PIECES, (WINDOWS, LONG), generator=draw)
    for _ in range(SCORED):
        p = model(tokens[:, -LENGTH:])[:, -1].softmax(dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(p, 1, generator=draw)], dim=1)
    task = Pieces(tokens.tolist())
    sizes = {"train_length": LENGTH, "length": LONG, "scored": SCORED, "stride": 1}
    spans = np.array([[n, LONG + SCORED] for n in range(WINDOWS)])
    return Sample(task=task, text=task.text(LONG), spans=spans, device=torch.device("cpu"), **sizes)


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ([], []),
        (["Distance(rate=512)"], ["distance"]),
        (["Position"], ["position"]),
        (["Keys(power=4)"], ["number of keys"]),
        (["Distance(rate=512)", "Keys(power=4)"], ["distance", "number of keys"]),
        (["SinkLost"], ["loss of the first tokens"]),
    ],
)
def test_a_planted_cause_is_named_and_no_other(
    planted: list[str], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    model = small("+".join([HOLDS, *(f"suites/planted.py:{each}" for each in planted)]), length=LENGTH)
    rows = attribution(model, drawn_from(model))
    assert causes(rows).enough == found
    assert (what_breaks(rows) == "does not break") == (not planted)
    shares = {row["change"]: (row["share_low"], row["share"], row["share_high"]) for row in rows if planted}
    assert all(low < share < high for change, (low, share, high) in shares.items() if change in known_of(rows))


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (0.48, "breaks by distance, in part by position"),
        (0.19, "breaks by distance, not by position"),
        (math.nan, "breaks by distance, not by position"),
    ],
)
def test_a_cause_is_denied_only_where_it_surely_does_little(most: float, said: str) -> None:
    """Position alone does 15 % of the harm, or as much as the end of its interval."""
    shares = {"full": (1.0, 1.0), "offset": (0.15, most), "gap": (0.9, 0.95)}
    row = {"status": "ok", "reason": "", "harm": 1.0, "harm_low": 0.9}
    rows = [row | {"change": change, "share": share, "share_high": high} for change, (share, high) in shares.items()]
    assert what_breaks(rows) == said
    unmade = {"change": "crowd", "status": "not measured", "share": math.nan, "share_high": math.nan}
    assert what_breaks([*rows, row | unmade]) == f"{said}; the part of number of keys is open"


def test_a_harm_that_may_be_chance_is_not_explained() -> None:
    """Where the long window changes nothing but noise, at most one sample of twenty is said to break."""
    random, said = np.random.default_rng(0), []
    planted = drawn_from(small("alibi"))
    for _ in range(60):
        base = random.normal(2.0, 1.0, (len(planted.spans), planted.scored))
        outcomes = {
            change: ChangeOutcome(base + random.normal(0.0, 0.3, base.shape) * (change != "base"))
            for change in ("base", "full", "offset", "gap", "crowd", "sinkless")
        }
        said.append(what_breaks(rows_of(outcomes, planted)))
    assert sum(each.startswith(("breaks", "is harmed")) for each in said) <= 6
    assert "is not shown to break" in said


def known_of(rows: list[dict[str, Any]]) -> set[str]:
    """The changes that have a loss of their own."""
    return {row["change"] for row in rows if row["status"] == "ok"} - {"base", "full"}
