"""What training starts from: every encoding as its docstring or paper says, and the weights of the model around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor
from toys import ALTERNATING

from poscli.config.run import ModelConfig, RunConfig
from poscli.encodings import Encoding, Shape, missing, names
from poscli.model.initialise import build_model, fresh_model
from poscli.specs import build, parse
from poscli.system.seeds import derive, generator

# Sizes that all differ, so that a scale by the wrong one of them shows.
AT = Shape(width=48, heads=3, layers=2, length=40, vocab=11)
HEADS, HEAD_WIDTH, WIDTH, LENGTH = 3, 16, 48, 40


@dataclass(frozen=True)
class Drawn:
    """Numbers from a distribution, by its name in scipy, with this mean and standard deviation."""

    kind: str
    std: float
    mean: float = 0.0

    def check(self, found: Tensor) -> None:
        x = found.detach().double().flatten()
        count, spread = len(x), math.sqrt(x.square().mean() if self.mean == 0 else x.var())
        assert abs(float(x.mean()) - self.mean) < 5 * self.std / math.sqrt(count)
        assert abs(spread / self.std - 1) < 5 / math.sqrt(2 * count)
        half = math.sqrt(3) * self.std
        given = (self.mean, self.std) if self.kind == "norm" else (self.mean - half, 2 * half)
        assert stats.kstest(x.numpy(), self.kind, args=given).pvalue > 1e-4


@dataclass(frozen=True)
class Equal:
    """These numbers, to the rounding of float32; a single one for all entries, or one row per head."""

    values: object

    def check(self, found: Tensor) -> None:
        expected = torch.as_tensor(self.values, dtype=torch.float64).expand(found.shape)
        torch.testing.assert_close(found.detach().double(), expected, rtol=1e-6, atol=1e-6)


ZERO, ONE = Equal(0.0), Equal(1.0)


def normal(std: float) -> Drawn:
    return Drawn("norm", std)


def linear(inputs: int) -> Drawn:
    """The default of torch's linear layers, weights and biases: uniform up to 1/sqrt(inputs)."""
    return Drawn("uniform", 1 / math.sqrt(3 * inputs))


def through(of: Callable[[Tensor], Tensor], values: list[float]) -> Callable[[Tensor], None]:
    """A check of numbers that are learned in another form: what the formula makes of them."""
    return lambda found: Equal(values).check(of(found))


def sigmoid_times_2(x: Tensor) -> Tensor:
    return 2 * torch.sigmoid(x)


softplus = torch.nn.functional.softplus
ALIBI = [2**-4, 2**-8, 2**-2]  # 3 heads: those of 2 heads, then every second one of 4
PER_HEAD = [[1 / 3], [2 / 3], [1.0]]  # h/H
LINEAR_FALL = [16 / 3, 32 / 3, 16.0]  # 16 h/H
SERIES = [[16 * h / 3 * 4 / (math.pi * n) ** 2 if n % 2 else 0.0 for h in (1, 2, 3)] for n in range(1, 9)]
GEOMETRIC = [20 ** ((n + 0.5) / 6) for n in range(6)]  # from 1 to L/2 over heads and terms: the middles of six parts

# Of each spec, the start of every parameter and buffer, by name.
STARTS: dict[str, dict[str, Drawn | Equal | Callable[[Tensor], None]]] = {
    "alibi": {"slope": Equal(ALIBI)},
    "alibi(trainable=true)": {"slope": Equal(ALIBI)},
    "alibi-2d": {"slope": Equal(ALIBI)},
    "cable": {"w": ZERO, "b": ZERO},
    "cable(start=-5)": {"w": ZERO, "b": Equal(-5.0)},
    "clipped": {"table": ZERO},
    "complex": {"omega": Equal([10000.0 ** (-2 * m / WIDTH) for m in range(WIDTH // 2)])},
    "convolution": {"kernel": ZERO},
    "cope": {"e": ZERO},
    # the authors' networks start as torch's linear layers do
    "cpb(hidden=512)": {"first.weight": linear(1), "first.bias": linear(1), "last.weight": linear(512)},
    "dape(hidden=256)": {
        "parts.0.r1": through(softplus, [1 / 3, 1.0, 5 / 3]),
        "parts.0.r2": through(softplus, [5 / 6, 3 / 6, 1 / 6]),
        "inner.weight": linear(2 * HEADS),
        "inner.bias": linear(2 * HEADS),
        "outer.weight": linear(256),
    },
    "deberta": {"p": normal(0.02), "w_k": normal(WIDTH**-0.5), "w_q": normal(WIDTH**-0.5)},
    "exponential(terms=2)": {
        "a": Equal(math.log(LENGTH) / 2),
        "log_w": through(lambda x: x.exp().T.flatten(), GEOMETRIC),
    },
    "fire(hidden=512)": {
        "f.0.weight": linear(1),
        "f.0.bias": linear(1),
        "f.2.weight": linear(512),
        "f.2.bias": linear(512),
        "c": Equal(-2.25),  # softplus(-2.25) = 0.1
        "threshold": ONE,  # in units of L/4
    },
    "floater": {
        "p_0": normal(1.0),
        "h.first.weight": linear(WIDTH + 1),
        "h.first.bias": linear(WIDTH + 1),
        "h.last.1.weight": linear(WIDTH),
        "h.last.1.bias": linear(WIDTH),
    },
    # L = 40: 2 of the 8 pairs complete a period, and a is [2, heads, 2, 2]
    "fope": {"a": normal(0.3 / math.sqrt(2))},
    "fope(sigma=2, learned=true, base=40)": {"a": normal(2 / math.sqrt(5))},  # 40^(-m/8) >= 2 pi / 40 for 5 pairs
    "fourier": {"a": Equal(SERIES), "b": ZERO},
    "fox": {"w": ZERO, "b": Equal(5.0)},
    "fox(start=0)": {"w": ZERO, "b": ZERO},
    "gaussian(terms=2)": {
        "a": Equal(math.log(LENGTH) / 2),
        "log_w": through(lambda x: x.exp().T.flatten(), GEOMETRIC),
    },
    "grape": {"a": ZERO, "log_factor": ZERO},
    "grape-additive": {"w_p": normal(WIDTH**-0.5), "slope": Equal(ALIBI)},
    "hierarchical": {"table": normal(1.0)},
    "kerple-log": {
        "r1": through(softplus, [1 / 3, 1.0, 5 / 3]),  # (0, 2), evenly
        "r2": through(softplus, [5 / 6, 3 / 6, 1 / 6]),  # (0, 1), evenly
    },
    "kerple-power": {
        "r1": through(softplus, [1 / 6, 3 / 6, 5 / 6]),  # (0, 1), evenly
        "r2": through(sigmoid_times_2, [5 / 3, 1.0, 1 / 3]),  # (0, 2), the largest r1 where r2 is smallest
    },
    "learned": {"table": normal(1.0)},
    "learned-2d": {"rows": normal(1.0), "columns": normal(1.0)},
    "path(rank=24)": {"down": normal(WIDTH**-0.5), "up": normal(24**-0.5), "u": ZERO, "b": ZERO},
    "polynomial": {"a": Equal([[-fall for fall in LINEAR_FALL], [0.0] * 3, [0.0] * 3])},
    "pope": {"delta": ZERO},
    "pope(start=uniform)": {"delta": Drawn("uniform", 2 * math.pi / math.sqrt(12), mean=-math.pi)},
    "query-bias": {"table": ZERO, "u": ZERO},
    # 4 of the 8 pairs turn with the rows, and with `mixed` all turn in two directions, at right angles in pairs
    "rope-2d(mixed=true)": {"frequencies": through(lambda x: x.norm(dim=0), [10 ** (-m / 2) for m in range(4)] * 2)},
    "shaw": {"a_k": ZERO, "a_v": ZERO},
    "sinusoidal(combine=concat)": {"project.weight": linear(2 * WIDTH)},
    "ssmax": {"s": Equal(1 / math.log(LENGTH))},
    "t5": {"table": ZERO},
    "swin-2d": {"table": ZERO},
    "t5-2d": {"rows": ZERO, "columns": ZERO},
    "transformer-xl": {"u": ZERO, "v": ZERO, "w_r": normal(WIDTH**-0.5)},
    "tupe": {"p": normal(0.02), "u_q": normal(WIDTH**-0.5), "u_k": normal(WIDTH**-0.5), "b.table": ZERO},
    "urpe": {"parts.1.c": ONE},
    "xlnet": {"u": ZERO, "v": ZERO, "w_r": normal(WIDTH**-0.5)},
}


def built(spec: str, seed: int = 0) -> Encoding:
    return build(parse(spec), AT, seed)[0]


def state(encoding: Encoding) -> dict[str, Tensor]:
    return dict([*encoding.named_parameters(), *encoding.named_buffers()])


@pytest.mark.parametrize("spec", STARTS)
def test_an_encoding_starts_as_it_says(spec: str) -> None:
    if reason := missing(parse(spec).layers[0][0].name):
        pytest.skip(str(reason))
    found = state(built(spec))
    assert found.keys() == STARTS[spec].keys()
    for name, expected in STARTS[spec].items():
        check = expected if callable(expected) else expected.check
        check(found[name])


def test_every_encoding_with_numbers_has_a_row() -> None:
    described = {parse(spec).layers[0][0].name for spec in STARTS}
    assert {name for name in names() if not missing(name) and state(built(name))} - described == set()


@pytest.mark.parametrize("spec", [s for s, rows in STARTS.items() if any(isinstance(r, Drawn) for r in rows.values())])
def test_what_is_drawn_differs_between_seeds_tensors_and_layers(spec: str) -> None:
    """Except fope's fixed coefficients, which are the same in every run."""
    if reason := missing(parse(spec).layers[0][0].name):
        pytest.skip(str(reason))
    drawn = {name: row.std for name, row in STARTS[spec].items() if isinstance(row, Drawn)}
    first, again, other = (state(built(spec, seed)) for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in drawn)
    assert all(torch.equal(first[name], other[name]) == spec.startswith("fope") for name in drawn)
    scaled = [float(first[name].detach().flatten()[0]) / std for name, std in drawn.items()]
    assert len({round(number, 3) for number in scaled}) == len(scaled)  # not one stream for all


@pytest.mark.parametrize(
    ("spec", "tied"),
    [
        ("transformer-xl", {"u", "v"}),  # for all layers; W_R per layer
        ("xlnet", set()),
        ("deberta", {"p"}),
        ("shaw", set()),
        ("kerple-log", set()),
        ("learned", {"table"}),
        ("t5", {"table"}),
        ("urpe", {"parts.1.c"}),
        ("tupe", {"p", "u_q", "u_k", "b.table"}),
    ],
)
def test_which_numbers_all_layers_share(spec: str, tied: set[str]) -> None:
    first, second = (dict(layer.named_parameters()) for layer in build(parse(spec), AT, seed=0))
    assert {name for name, p in first.items() if p is second[name]} == tied
    drawn = [name for name in first if name not in tied and isinstance(STARTS[spec][name], Drawn)]
    assert not any(torch.equal(first[name], second[name]) for name in drawn)


CONFIG = ModelConfig(layers=2, width=32, heads=4, mlp=48)


def test_every_weight_of_the_model_starts_at_its_scale() -> None:
    """Normal with the scale of its input; zero where it writes into the stream and in the head; norms at 1."""
    expected = {"embedding": normal(1.0), "norm.weight": ONE, "head.weight": ZERO}
    for n in range(2):
        expected |= {f"layers.{n}.attention.{part}.weight": normal(32**-0.5) for part in "qkv"}
        expected |= {f"layers.{n}.{part}.weight": normal(32**-0.5) for part in ("gate", "up")}
        expected |= {f"layers.{n}.{part}.weight": ZERO for part in ("attention.o", "down")}
        expected |= {f"layers.{n}.{part}.weight": ONE for part in ("norm_attention", "norm_mlp")}
    weights = dict(build_model(CONFIG, "none", vocab=50, length=LENGTH, seed=0).named_parameters())
    assert weights.keys() == expected.keys()
    for name, row in expected.items():
        row.check(weights[name])
    drawn = [weights[name] for name, row in expected.items() if isinstance(row, Drawn)]
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
    own = build(parse("learned"), CONFIG.shape(LENGTH, 50), derive(5, "encoding"))[0]
    assert torch.equal(made.encodings[0].get_parameter("table"), own.get_parameter("table"))


@pytest.mark.parametrize("spec", [*names(), *ALTERNATING])
def test_runs_of_one_seed_differ_in_nothing_but_the_encoding(spec: str) -> None:
    """By the path of a training run, from its configuration: other seeds differ, other encodings do not."""
    if any(missing(leaf.name) for layer in parse(spec).layers for leaf in layer):
        pytest.skip("a package is missing")

    def weights(encoding: str, seed: int) -> dict[str, Tensor]:
        config = RunConfig(encoding=encoding, model=CONFIG, length=LENGTH, seed=seed)
        made = fresh_model(config, 50, torch.device("cpu"))
        return {name: p for name, p in made.named_parameters() if ".encoding." not in name}

    ours, others, plain = weights(spec, 3), weights(spec, 4), weights("none", 3)
    assert ours.keys() == plain.keys()
    assert all(torch.equal(p, plain[name]) for name, p in ours.items())
    drawn = [name for name, p in ours.items() if p.ndim > 1 and p.any()]
    assert len(drawn) == 1 + 2 * 5
    assert not any(torch.equal(ours[name], others[name]) for name in drawn)
