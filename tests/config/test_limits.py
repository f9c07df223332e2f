"""The numbers that a configuration allows."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.run import ModelConfig, Recipe, RunConfig

MOST = 9_223_372_036_854_775_807  # the largest int64
WINDOW = BATCH = 1_048_576
LIMITS: list[tuple[type[BaseModel], str, int, int, dict[str, Any]]] = [
    (ModelConfig, "layers", 1, 1000, {}),
    (ModelConfig, "width", 2, 65_536, {"heads": 1}),
    (ModelConfig, "heads", 1, 128, {}),  # as many as the default width has channels
    (ModelConfig, "mlp", 1, 1_048_576, {}),
    (ModelConfig, "memory", 0, WINDOW, {}),
    (RunConfig, "seed", 0, MOST, {"encoding": "none"}),
    (RunConfig, "length", 8, WINDOW, {"encoding": "none"}),
    (RunConfig, "batch", 1, BATCH, {"encoding": "none"}),
    (RunConfig, "tokens", 1, MOST, {"encoding": "none"}),
    (TrainRequest, "length", 8, WINDOW, {}),
    (TrainRequest, "batch", 1, BATCH, {}),
    (TrainRequest, "tokens", 1, MOST, {}),
    (ExtrapolateRequest, "max_len", 1, MOST, {}),
    (ExtrapolateRequest, "tokens", 1, MOST, {}),
    (ExtrapolateRequest, "stride", 1, MOST, {}),
]
# Of each number of a recipe: whether 0, 1 and 1.1 are allowed. None may be negative, and all may lie between 0 and 1.
RECIPE = {
    "matrix_lr": (False, True, True),
    "embedding_lr": (False, True, True),
    "head_lr": (False, True, True),
    "encoding_lr": (False, True, True),
    "momentum": (True, False, False),
    "beta2": (True, False, False),
    "weight_decay": (True, True, True),
    "warmup": (True, False, False),
    "decay": (False, True, False),
    "clip": (False, True, True),
}


@pytest.mark.parametrize(("model", "field", "least", "most", "others"), LIMITS)
def test_whole_numbers_have_limits(
    model: type[BaseModel], field: str, least: int, most: int, others: dict[str, Any]
) -> None:
    for value in (least, most):
        assert getattr(model(**others, **{field: value}), field) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ValidationError, match=r"greater than or equal|less than or equal|not divisible by"):
            model(**others, **{field: value})


def test_numbers_of_a_recipe_have_limits() -> None:
    assert RECIPE.keys() == Recipe.model_fields.keys()
    for field, (zero, one, more) in RECIPE.items():
        for value, fine in ((-1e-9, False), (0.0, zero), (1e-9, True), (1.0 - 1e-9, True), (1.0, one), (1.1, more)):
            if fine:
                assert getattr(Recipe(**{field: value}), field) == value
            else:
                with pytest.raises(ValidationError):
                    Recipe(**{field: value})
