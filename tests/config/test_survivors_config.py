"""What a configuration allows and assumes, the names it makes, and its estimates of memory: values by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import BaseModel, ValidationError

from poscli.config import size
from poscli.config.needs import Needs, estimate
from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.run import PRESETS, ModelConfig, Recipe, RunConfig, slug
from poscli.config.size import evaluation_bytes, parameters, training_bytes
from poscli.equation import Shape
from poscli.system import memory
from poscli.system.errors import UsageError

CPU = torch.device("cpu")
MOST = 9_223_372_036_854_775_807  # the largest int64
WINDOW = BATCH = 1_048_576
NANO = RunConfig(encoding="none", model=PRESETS["nano"], length=8, batch=1)
# The matrices and norms of two layers, then embedding, last norm and head.
NANO_PARAMETERS = 2 * (4 * 64 * 64 + 3 * 64 * 192 + 2 * 64) + (2 * 257 + 1) * 64


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


def test_defaults_are_those_that_help_shows() -> None:
    assert TrainRequest().model_dump() == {
        "task": "language", "corpus": "stdlib", "tokenizer": "bytes", "length": None, "tokens": 2_000_000,
        "batch": None, "accumulate": 1, "preset": "tiny", "model": {}, "recipe": {}, "precision": "auto",
    }  # fmt: skip
    assert ExtrapolateRequest().model_dump() == {
        "max_len": None, "lengths": (), "tokens": 4096, "stride": None, "as_": [], "baselines": ["crop", "window"],
        "ngram": 6, "why": False, "protocols": [], "recalibrate": None, "recalibrate_length": None,
    }  # fmt: skip
    assert Recipe().model_dump() == {
        "matrix_lr": 0.01, "embedding_lr": 0.1, "head_lr": 0.01, "encoding_lr": 0.05, "momentum": 0.9, "beta2": 0.95,
        "weight_decay": 0.01, "warmup": 0.05, "decay": 0.9, "clip": 1.0,
    }  # fmt: skip


def test_presets_are_the_documented_shapes() -> None:
    """`base` has the 124M parameters of GPT-2 small, as a comment beside the presets promises."""
    shapes = {name: (m.layers, m.width, m.heads, m.mlp, m.memory) for name, m in PRESETS.items()}
    assert shapes == {
        "nano": (2, 64, 4, 192, 0), "tiny": (4, 128, 8, 352, 0), "small": (6, 384, 6, 1024, 0),
        "base": (12, 768, 12, 3456, 0),
    }  # fmt: skip
    assert ModelConfig() == PRESETS["tiny"]
    assert round(parameters(PRESETS["base"], "none", 512) / 1e6) == 124


# ---- names


def test_a_long_spec_is_cut_and_followed_by_eight_digits_of_its_hash() -> None:
    """The digits begin the SHA-256 of the whole spec; a name of 120 characters is whole."""
    assert slug(120 * "a") == 120 * "a"
    assert slug(121 * "a") == 120 * "a" + "-e9615320"
    assert slug(120 * "a" + "b").startswith(120 * "a" + "-")
    assert slug(120 * "a" + "b") != slug(121 * "a")
    assert slug("..--") == "encoding"


def test_a_shape_has_the_vocabulary_of_bytes_and_the_end_of_a_text_unless_another_is_given() -> None:
    assert ModelConfig().shape(7) == Shape(width=128, heads=8, layers=4, length=7, vocab=257)
    assert ModelConfig().shape(7, 300) == Shape(width=128, heads=8, layers=4, length=7, vocab=300)


# ---- memory


def test_blocks_and_buffers_are_counted_once_and_blocks_in_training_only() -> None:
    shape = ModelConfig(layers=3, width=16, heads=2, mlp=40)

    def more(found: Needs, length: int, training: bool, before: int = 0) -> float:
        sizes: dict[str, Any] = {"batch": 6, "length": length, "training": training, "memory": before}
        return estimate(shape, 258, found, **sizes) - estimate(shape, 258, Needs(), **sizes)

    assert more(Needs(block=6), 100, training=True) == 4 * 2 * 100 * 100 * 6
    assert more(Needs(block=6), 2000, training=True) == 4 * 2 * 1024 * 2000 * 6
    assert more(Needs(block=6), 100, training=True, before=50) == 4 * 2 * 100 * 150 * 6
    assert more(Needs(block=6), 100, training=False) == 0
    assert more(Needs(kept_once=3), 100, training=True) == 4 * 2 * 100 * 100 * 3 * 3
    assert more(Needs(kept_once=3), 100, training=False) == 0
    assert more(Needs(buffer=7), 100, training=False) == 7
    assert more(Needs(buffer=1e30), 100, training=False) == 16 * 4 * 2 * 100 * 100 * 6


def test_a_memory_is_counted_for_every_layer_and_text() -> None:
    shape = ModelConfig(layers=3, width=16, heads=2, mlp=40)
    sizes: dict[str, Any] = {"batch": 6, "length": 100, "training": False}
    assert estimate(shape, 258, Needs(), **sizes, memory=50) - estimate(shape, 258, Needs(), **sizes) == (
        4 * 6 * 50 * 16 * 3
    )


def test_training_takes_four_numbers_per_weight_and_three_more_or_the_activations() -> None:
    assert parameters(NANO.model, "none", 8) == NANO_PARAMETERS
    assert training_bytes(NANO, CPU) == (4 + 3) * 4 * NANO_PARAMETERS
    many = NANO.model_copy(update={"batch": 64})
    activations = 4 * 64 * 8 * ((24 * 64 + 6 * 192) * 2 + 257 * 4)
    assert training_bytes(many, CPU) == 4 * 4 * NANO_PARAMETERS + activations
    for asked, counted in ((20, 20), (64, 64), (65, 64), (1000, 64)):  # at most 8 windows of 8 tokens
        longer = many.model_copy(update={"model": NANO.model.model_copy(update={"memory": asked})})
        assert training_bytes(longer, CPU) - training_bytes(many, CPU) == 4 * 64 * counted * 64 * 2


def test_evaluation_takes_the_weights_and_the_activations_of_one_layer() -> None:
    activations = 4 * 2 * 16 * (8 * 64 + 3 * 192 + 257 * 2)
    assert evaluation_bytes(NANO, CPU, batch=2, length=16) == 4 * NANO_PARAMETERS + activations


def test_a_run_is_refused_at_eight_times_what_one_piece_of_work_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is nine tenths of the free memory. The weights alone must fit without any doubt."""
    many = NANO.model_copy(update={"batch": 1024})
    for config, needed in ((many, training_bytes(many, CPU) / 8), (NANO, 16 * NANO_PARAMETERS)):
        monkeypatch.setattr(memory, "available", lambda _, needed=needed: needed / 0.9 * 1.01)
        size.refuse_unaffordable(config, CPU)
        monkeypatch.setattr(memory, "available", lambda _, needed=needed: needed / 0.9 * 0.99)
        with pytest.raises(UsageError, match="training none needs about "):
            size.refuse_unaffordable(config, CPU)
