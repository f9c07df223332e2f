"""The numbers that a configuration allows, and the shapes of the presets."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.run import ModelConfig, Recipe, RunConfig

MOST = 9_223_372_036_854_775_807  # the largest int64


WINDOW = BATCH = 1_048_576


def assert_limits(model: type[BaseModel], field: str, least: int, most: int | None, **others: Any) -> None:
    """A whole number of a configuration has these smallest and largest values; None: no largest one."""
    assert getattr(model(**others, **{field: least}), field) == least
    with pytest.raises(ValidationError, match="greater than or equal"):
        model(**others, **{field: least - 1})
    if most is not None:
        assert getattr(model(**others, **{field: most}), field) == most
        with pytest.raises(ValidationError, match="less than or equal"):
            model(**others, **{field: most + 1})


def test_the_numbers_of_a_model_have_limits() -> None:
    assert_limits(ModelConfig, "layers", 1, 1000)
    assert_limits(ModelConfig, "width", 2, 65_536, heads=1)
    assert_limits(ModelConfig, "heads", 1, None)
    assert_limits(ModelConfig, "mlp", 1, 1_048_576)
    assert_limits(ModelConfig, "memory", 0, WINDOW)
    with pytest.raises(ValidationError, match="width 128 is not divisible by 3 heads"):
        ModelConfig(heads=3)


def test_the_numbers_of_a_run_have_limits() -> None:
    assert_limits(RunConfig, "seed", 0, MOST, encoding="none")
    assert_limits(RunConfig, "length", 8, WINDOW, encoding="none")
    assert_limits(RunConfig, "batch", 1, BATCH, encoding="none")
    assert_limits(RunConfig, "tokens", 1, MOST, encoding="none")


def test_the_numbers_of_requests_have_limits() -> None:
    assert_limits(TrainRequest, "length", 8, WINDOW)
    assert_limits(TrainRequest, "batch", 1, BATCH)
    assert_limits(TrainRequest, "tokens", 1, MOST)
    assert_limits(ExtrapolateRequest, "max_len", 1, MOST)
    assert_limits(ExtrapolateRequest, "tokens", 1, MOST)
    assert_limits(ExtrapolateRequest, "stride", 1, MOST)


def test_numbers_of_a_recipe_have_limits() -> None:
    """Of each number: whether 0, 1 and 1.1 are allowed. None may be negative, and all may lie between 0 and 1."""
    allowed = {
        "matrix_lr": (False, True, True), "embedding_lr": (False, True, True), "head_lr": (False, True, True),
        "encoding_lr": (False, True, True), "momentum": (True, False, False), "beta2": (True, False, False),
        "weight_decay": (True, True, True), "warmup": (True, False, False), "decay": (False, True, False),
        "clip": (False, True, True),
    }  # fmt: skip
    assert allowed.keys() == Recipe.model_fields.keys()
    for field, (zero, one, more) in allowed.items():
        for value, fine in ((-1e-9, False), (0.0, zero), (1e-9, True), (1.0 - 1e-9, True), (1.0, one), (1.1, more)):
            if fine:
                assert getattr(Recipe(**{field: value}), field) == value
            else:
                with pytest.raises(ValidationError):
                    Recipe(**{field: value})
