"""What training starts from: the weights of the model around an encoding. test_snapshots_encodings.py has its own."""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from poscli.config.run import ModelConfig
from poscli.model.initialise import build_model
from poscli.specs import build, parse
from poscli.system.seeds import derive, generator

LENGTH = 40
CONFIG = ModelConfig(layers=2, width=32, heads=4, mlp=48)


def assert_normal(found: Tensor, std: float) -> None:
    x = found.detach().double().flatten()
    assert abs(float(x.mean())) < 5 * std / math.sqrt(len(x))
    assert abs(math.sqrt(x.square().mean()) / std - 1) < 5 / math.sqrt(2 * len(x))
    assert stats.kstest(x.numpy(), "norm", args=(0, std)).pvalue > 1e-4


def test_every_weight_of_the_model_starts_at_its_scale() -> None:
    """Normal with the scale of its input; zero where it writes into the stream and in the head; norms at 1."""
    scales = {"embedding": 1.0}
    for n in range(2):
        scales |= {f"layers.{n}.attention.{part}.weight": 32**-0.5 for part in "qkv"}
        scales |= {f"layers.{n}.{part}.weight": 32**-0.5 for part in ("gate", "up")}
    weights = dict(build_model(CONFIG, "none", vocab=50, length=LENGTH, seed=0).named_parameters())
    drawn = [weights.pop(name) for name in scales]
    for weight, scale in zip(drawn, scales.values(), strict=True):
        assert_normal(weight, scale)
    ones = {"norm.weight", *(f"layers.{n}.norm_{part}.weight" for n in range(2) for part in ("attention", "mlp"))}
    zeros = {"head.weight", *(f"layers.{n}.{part}.weight" for n in range(2) for part in ("attention.o", "down"))}
    assert {name for name, weight in weights.items() if (weight == 1).all()} == ones
    assert {name for name, weight in weights.items() if not weight.any()} == zeros == weights.keys() - ones
    for n, a in enumerate(drawn):  # no two are the same stream: they are uncorrelated
        for b in drawn[:n]:
            count = min(a.numel(), b.numel())
            both = torch.stack([a.flatten()[:count], b.flatten()[:count]])
            assert abs(float(torch.corrcoef(both)[0, 1].detach())) < 5 / math.sqrt(count)


def test_the_weights_are_those_of_their_names_and_of_the_seed() -> None:
    """A weight is drawn from (seed, "weights", its name), the encoding from (seed, "encoding")."""
    made = build_model(CONFIG, "learned", vocab=50, length=LENGTH, seed=5)
    for name, scale in (("embedding", 1.0), ("layers.1.gate.weight", 32**-0.5)):
        weight = made.get_parameter(name)
        assert torch.equal(weight, scale * torch.randn(weight.shape, generator=generator(5, "weights", name)))
    alone = build(parse("learned"), CONFIG.shape(LENGTH, 50), derive(5, "encoding"))[0]
    assert torch.equal(made.encodings[0].get_parameter("table"), alone.get_parameter("table"))
