"""Model FLOPs against torch's own count of a training step, and a rate of products that is one."""

from __future__ import annotations

import pytest
import torch
from conftest import HEADS, VOCAB, WIDTH, tokens
from torch.utils.flop_counter import FlopCounterMode

from poscli import flops
from poscli.config import PRESETS, ModelConfig
from poscli.model import Model

LENGTH = 16


@pytest.mark.parametrize("layers", [1, 3])
def test_every_product_of_the_model_is_counted(layers: int) -> None:
    config = ModelConfig(layers=layers, width=WIDTH, heads=HEADS, mlp=40)
    model = Model(config, encoding="none", vocab=VOCAB, length=LENGTH, seed=0)
    model.use_engine("reference")
    text = tokens(2, LENGTH + 1)
    with FlopCounterMode(display=False) as forward:
        loss = model.loss(text[:, :-1], text[:, 1:])
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    count = 2 * LENGTH
    unseen = 2 * layers * WIDTH * LENGTH  # the half of the scores and sums that the dense reference computes in vain
    assert forward.get_total_flops() / count == flops.evaluation_flops(config, VOCAB, LENGTH) + unseen
    total = forward.get_total_flops() + backward.get_total_flops()
    assert total / count == flops.training_flops(config, VOCAB, LENGTH) + 3 * unseen


def test_twice_the_weights_for_a_forward_pass_of_one_token() -> None:
    config = PRESETS["tiny"]
    weights = config.layers * (4 * 128 * 128 + 3 * 128 * 352) + 257 * 128
    assert flops.evaluation_flops(config, 257, 0) == 2 * weights


def test_the_rate_is_the_best_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "SIZES", {"cpu": (4, 8)})
    monkeypatch.setattr(flops, "SECONDS", 0.01)
    monkeypatch.setattr(flops, "_seconds", lambda a, b: 1e-3 if len(a) == 4 else 4e-3)
    assert flops.product_rate(torch.device("cpu"), torch.float32) == pytest.approx(2 * 8**3 / 4e-3)
