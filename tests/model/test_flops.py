"""Model FLOPs by the formula against torch's own count of a training step."""

from __future__ import annotations

import pytest
from torch.utils.flop_counter import FlopCounterMode
from toys import HEADS, VOCAB, WIDTH, tokens

from poscli.config.run import ModelConfig
from poscli.model import flops
from poscli.model.initialise import build_model

LENGTH = 16


@pytest.mark.parametrize("layers", [1, 3])
def test_every_product_of_the_model_is_counted(layers: int) -> None:
    config = ModelConfig(layers=layers, width=WIDTH, heads=HEADS, mlp=40)
    model = build_model(config, "none", vocab=VOCAB, length=LENGTH, seed=0)
    model.use_engine("reference")
    text = tokens(2, LENGTH + 1)
    with FlopCounterMode(display=False) as forward:
        loss = model.loss(text[:, :-1], text[:, 1:])
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    count = 2 * LENGTH
    unseen = 2 * layers * WIDTH * LENGTH  # the reference computes the non-causal half too
    assert forward.get_total_flops() / count == flops.evaluation_flops(config, VOCAB, LENGTH) + unseen
    total = forward.get_total_flops() + backward.get_total_flops()
    assert total / count == flops.training_flops(config, VOCAB, LENGTH) + 3 * unseen
