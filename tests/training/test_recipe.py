"""Every field of the recipe reaches the optimizer: whole steps are computed again by hand, in float64.

The formulas are those of the papers: AdamW (arXiv:1711.05101), and Muon (Jordan et al., 2024) with Nesterov momentum,
five Newton-Schulz iterations and the step size of arXiv:2502.16982, 0.2 sqrt(max(rows, columns)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from torch import Tensor
from toys import ALTERNATING, COMPOSITES, model

from poscli.config.run import Recipe
from poscli.encodings import names
from poscli.model.transformer import Model
from poscli.training.optimizer import Optimizer, orthogonal

STEPS = 4
# Another value of every field, and what the schedule of 4 steps then is; the default rises in 1 step and falls in 4.
DEFAULT_SCHEDULE = (1.0, 0.75, 0.5, 0.25)
CHANGED: dict[str, float] = {
    "matrix_lr": 0.03,
    "embedding_lr": 0.02,
    "head_lr": 0.04,
    "encoding_lr": 0.5,
    "momentum": 0.6,
    "beta2": 0.7,
    "weight_decay": 0.4,
    "warmup": 0.5,
    "decay": 0.5,
    "clip": 2.0,
}
SCHEDULES = {"warmup": (0.5, 0.75, 0.5, 0.25), "decay": (1.0, 1.0, 1.0, 0.5)}
DEFAULTS = Recipe().model_dump()
LR = {"matrix": "matrix_lr", "embedding": "embedding_lr", "head": "head_lr", "encoding": "encoding_lr"}


def group_of(name: str) -> str:
    """The group of a parameter, by its name in the model alone."""
    if ".encoding." in name:
        return "encoding"
    if name == "embedding":
        return "embedding"
    if name == "head.weight" or "norm" in name:
        return "head"
    return "matrix"


def gradients(of: Model) -> list[dict[str, Tensor]]:
    """Gradients of every step. The norm is 0.5 in the second step, which no clip touches, and 5 in the others."""
    draw, steps = torch.Generator().manual_seed(7), []
    for n in range(STEPS):
        drawn = {name: torch.randn(p.shape, generator=draw).double() for name, p in of.named_parameters()}
        norm = math.sqrt(sum(float((g**2).sum()) for g in drawn.values()))
        steps.append({name: g * (0.5 if n == 1 else 5.0) / norm for name, g in drawn.items()})
    return steps


def newton_schulz(x: Tensor) -> Tensor:
    """Five iterations of X <- aX + b(XX^T)X + c(XX^T)^2 X, from X over its Frobenius norm."""
    if x.shape[0] > x.shape[1]:
        return newton_schulz(x.T).T
    x = x / x.square().sum().sqrt()
    for _ in range(5):
        xxt = x @ x.T
        x = 3.4445 * x - 4.7750 * xxt @ x + 2.0315 * xxt @ xxt @ x
    return x


@dataclass
class ByHand:
    """One parameter and the running means of its gradient."""

    value: Tensor
    first: Tensor = field(init=False)
    second: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.value = self.value.detach().clone()
        self.first, self.second = torch.zeros_like(self.value), torch.zeros_like(self.value)

    def muon(self, g: Tensor, lr: float, r: dict[str, float]) -> None:
        mu = r["momentum"]
        self.first = mu * self.first + (1 - mu) * g
        update = newton_schulz((1 - mu) * g + mu * self.first)
        self.value = (1 - lr * r["weight_decay"]) * self.value - lr * 0.2 * math.sqrt(max(g.shape)) * update

    def adamw(self, g: Tensor, lr: float, r: dict[str, float], step: int) -> None:
        self.first = 0.9 * self.first + 0.1 * g
        self.second = r["beta2"] * self.second + (1 - r["beta2"]) * g * g
        mean, spread = self.first / (1 - 0.9 ** (step + 1)), self.second / (1 - r["beta2"] ** (step + 1))
        self.value = self.value - lr * mean / (spread.sqrt() + 1e-10)


def by_hand(of: Model, values: dict[str, float], schedule: tuple[float, ...]) -> dict[str, Tensor]:
    """The parameters after all steps."""
    state = {name: ByHand(p) for name, p in of.named_parameters()}
    for n, grads in enumerate(gradients(of)):
        norm = math.sqrt(sum(float((g**2).sum()) for g in grads.values()))
        for name, g in grads.items():
            clipped, group = g * min(1.0, values["clip"] / norm), group_of(name)
            lr = schedule[n] * values[LR[group]]
            if group == "matrix":
                state[name].muon(clipped, lr, values)
            else:
                state[name].adamw(clipped, lr, values, n)
    return {name: each.value for name, each in state.items()}


def optimized(of: Model, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The parameters after all steps of the optimizer, clipped as the trainer does."""
    monkeypatch.setattr("poscli.training.optimizer.orthogonal", partial(orthogonal, dtype=torch.float64))
    optimizer = Optimizer(of, recipe, STEPS)
    for n, grads in enumerate(gradients(of)):
        for name, p in of.named_parameters():
            p.grad = grads[name].clone()
        optimizer.clip()
        optimizer.step(n)
        optimizer.zero_grad()
        assert all(p.grad is None for p in of.parameters())
    return {name: p.detach() for name, p in of.named_parameters()}


def fresh() -> Model:
    """A model in float64 with parameters in every group; those of its encoding have 1, 2 and 3 dimensions."""
    drawn = model("transformer-xl+fox").double()
    with torch.no_grad():
        for p in drawn.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())), alpha=0.1)
    return drawn


@pytest.mark.parametrize("changed", [None, *Recipe.model_fields])
def test_the_optimizer_computes_the_recipe(changed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps under the recipe with one field changed are those by hand, and differ from the default's."""
    values = DEFAULTS | ({changed: CHANGED[changed]} if changed else {})
    expected = by_hand(fresh(), values, SCHEDULES.get(changed or "", DEFAULT_SCHEDULE))
    found = optimized(fresh(), Recipe(**values), monkeypatch)
    for name, p in expected.items():
        # float64; torch adds 1e-6 to the norm by which it clips
        torch.testing.assert_close(found[name], p, rtol=1e-5, atol=1e-6, msg=lambda text, at=name: f"{at}: {text}")
    if changed:
        default = by_hand(fresh(), DEFAULTS, DEFAULT_SCHEDULE)
        moved = {group_of(name) for name, p in expected.items() if float((p - default[name]).abs().max()) > 1e-3}
        own = {lr: {group} for group, lr in LR.items()} | {"momentum": {"matrix"}, "weight_decay": {"matrix"}}
        adamw = {"embedding", "head", "encoding"}
        assert moved == own.get(changed, adamw if changed == "beta2" else adamw | {"matrix"})


@pytest.mark.parametrize("spec", [*names(), *COMPOSITES, *ALTERNATING])
def test_every_parameter_has_the_peak_rate_of_its_group(spec: str) -> None:
    recipe = Recipe(matrix_lr=0.001, embedding_lr=0.002, head_lr=0.003, encoding_lr=0.004)
    made = model(spec)
    optimizer = Optimizer(made, recipe, steps=10)
    rates: dict[int, list[tuple[str, float]]] = {}
    for kind, each in optimizer.optimizers.items():
        for group in each.param_groups:
            for p in group["params"]:
                rates.setdefault(id(p), []).append((kind, group["lr"]))
    assert len(rates) == len(list(made.parameters()))
    for name, p in made.named_parameters():
        group = group_of(name)
        kind = "muon" if group == "matrix" else "adamw"
        assert rates[id(p)] == [(kind, recipe.model_dump()[LR[group]])], name


@pytest.mark.parametrize(
    ("warmup", "decay", "steps", "expected"),
    [
        (0.1, 0.4, 100, {0: 0.1, 4: 0.5, 9: 1, 10: 1, 59: 1, 60: 1, 61: 39 / 40, 80: 0.5, 99: 1 / 40, 100: 0}),
        (0.0, 0.5, 100, {0: 1, 49: 1, 50: 1, 51: 0.98, 99: 0.02}),  # no rise: the first step is at the peak
        (0.05, 0.9, 100, {0: 0.2, 4: 1, 10: 1, 11: 89 / 90, 99: 1 / 90}),
        (0.8, 0.8, 10, {0: 1 / 8, 3: 4 / 8, 4: 5 / 8, 5: 5 / 8, 9: 1 / 8}),  # they overlap: the lower one holds
        (0.25, 1.0, 4, {0: 1, 1: 0.75, 3: 0.25}),
        (0.05, 0.9, 1, {0: 1}),
    ],
)
def test_the_schedule_at_steps_computed_by_hand(
    warmup: float, decay: float, steps: int, expected: dict[int, float]
) -> None:
    made = model("t5")
    optimizer = Optimizer(made, Recipe(warmup=warmup, decay=decay), steps)
    assert {step: optimizer.scale(step) for step in expected} == pytest.approx(expected)
    for p in made.parameters():
        p.grad = torch.zeros_like(p)
    for step, factor in expected.items():
        optimizer.step(step)
        rates = [group["lr"] for each in optimizer.optimizers.values() for group in each.param_groups]
        assert rates == pytest.approx([factor * peak for peak in (0.01, 0.1, 0.01, 0.05)])  # the peaks by default
