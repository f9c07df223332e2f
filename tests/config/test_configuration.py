"""From a request to a run: every field counts in the run's name, counts of tokens, precisions, seeds and windows."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import (
    PRESETS,
    SCHEMA,
    CheckpointConfig,
    ModelConfig,
    Recalibration,
    Recipe,
    RunConfig,
    mlp_width,
)
from poscli.config.validate import read_count, validated, write_count
from poscli.data import Split, batch
from poscli.data.tokenizers import TOKENIZERS
from poscli.evaluation.evaluate import settings_of
from poscli.system import device
from poscli.system.errors import UsageError
from poscli.system.seeds import derive, generator

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

# Another value of every field of a run's configuration.
OTHER: dict[str, Any] = {
    "encoding": "alibi",
    "task": "copy",
    "corpus": "text:books",
    "tokenizer": "other",
    "seed": 1,
    "length": 256,
    "batch": 4,
    "accumulate": 2,
    "tokens": 1_000_000,
    "precision": "bfloat16",
    "model": PRESETS["nano"],
    "recipe": Recipe(clip=0.5),
    "checkpoint": CheckpointConfig(name="pythia", source="/models/pythia", digest="0" * 64, parameters=7),
    "plugins": {"mine:Mine": "0" * 16},
    "tuning": "rope-01234567",
}
MODEL = {"layers": 5, "width": 256, "heads": 4, "mlp": 353, "memory": 64, "shifted": 3}
RECIPE = dict.fromkeys(Recipe.model_fields, 0.3)


def name_of(**changes: Any) -> str:
    return RunConfig(**{"encoding": "rope"} | changes).run_id("f")


def test_every_field_has_another_value_here() -> None:
    assert OTHER.keys() == RunConfig.model_fields.keys()
    assert MODEL.keys() == ModelConfig.model_fields.keys()
    assert all(value != getattr(RunConfig(encoding="rope"), name) for name, value in OTHER.items())


def test_every_field_is_in_the_hash_of_the_name_of_a_run() -> None:
    names = [name_of(**{field: value}) for field, value in OTHER.items()]
    names += [name_of(model=PRESETS["tiny"].model_copy(update={field: value})) for field, value in MODEL.items()]
    names += [name_of(recipe=Recipe(**{field: value})) for field, value in RECIPE.items()]
    names += [name_of(), RunConfig(encoding="rope").run_id("g")]
    assert len({name.rpartition("-")[2] for name in names}) == len(names)


def test_a_name_is_the_slug_and_the_hash_of_what_is_not_default() -> None:
    content = json.dumps([SCHEMA, "f", {"encoding": "rope(base=500.0)", "seed": 3}], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    assert name_of(encoding="rope(base=500.0)", seed=3) == f"rope-base-500.0-{digest}"
    assert name_of(encoding="rope(base=500.0)", seed=3, length=512, recipe=Recipe(clip=1.0)).endswith(digest)


# Another value of every field of a request, and what the run's configuration then says.
ASKED: dict[str, tuple[Any, dict[str, Any]]] = {
    "task": ("copy", {"task": "copy"}),
    "corpus": ("text:books", {"corpus": "text:books"}),
    "tokenizer": ("other", {"tokenizer": "other"}),
    "length": (128, {"length": 128, "batch": 16}),
    "tokens": ("500k", {"tokens": 500_000}),
    "batch": (3, {"batch": 3}),
    "accumulate": (2, {"accumulate": 2}),
    "preset": ("nano", {"model": PRESETS["nano"]}),
    "model": ({"layers": 2}, {"model": PRESETS["tiny"].model_copy(update={"layers": 2})}),
    "recipe": ({"clip": 0.5}, {"recipe": Recipe(clip=0.5)}),
    "precision": ("bfloat16", {"precision": "bfloat16"}),
}


@pytest.mark.parametrize("field", [None, *TrainRequest.model_fields])
def test_every_field_of_a_request_reaches_the_run(field: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOKENIZERS._plugins, "other", TOKENIZERS.get("bytes"))
    value, expected = ASKED[field] if field else (None, {})
    found = resolve(TrainRequest(**({field: value} if field else {})), "rope", seed=7, device=CPU)
    default = {"encoding": "rope", "seed": 7, "length": 512, "batch": 4, "tokens": 2_000_000, "model": PRESETS["tiny"]}
    assert found == RunConfig(**default | expected)


def test_batches_and_steps() -> None:
    """A batch is 2048 tokens unless it is given, and steps are whole batches of the budget."""
    sizes = {512: 4, 8: 256, 2048: 1, 1000: 2, 4096: 1}
    for length, size in sizes.items():
        assert resolve(TrainRequest(length=length), "rope", seed=0, device=CPU).batch == size
    for tokens, steps in {2_000_000: 488, 4096: 1, 8191: 1, 8192: 2}.items():
        assert RunConfig(encoding="rope", tokens=tokens, length=512, batch=8).steps == steps


def test_a_step_of_a_recalibration_has_as_many_tokens_and_a_share_of_the_rates() -> None:
    trained = RunConfig(encoding="rope", length=64, batch=12, accumulate=6, seed=1, recipe=Recipe(head_lr=0.5))
    for length, windows, parts in ((64, 12, 6), (96, 8, 2), (100, 7, 1), (1000, 1, 1)):
        found = Recalibration(tokens=7000, length=length, rate=0.5).config(trained, "none", 5)
        recipe = trained.recipe.model_copy(
            update={"matrix_lr": 0.005, "embedding_lr": 0.05, "head_lr": 0.25, "encoding_lr": 0.025}
        )
        sizes = {"length": length, "batch": windows, "accumulate": parts, "tokens": 7000}
        assert found == trained.model_copy(update={"encoding": "none", "seed": 5, "recipe": recipe, **sizes})


def test_a_width_sets_the_mlp_and_nothing_else_of_the_preset() -> None:
    found = resolve(TrainRequest(preset="small", model={"width": 96}), "rope", seed=0, device=CPU).model
    assert found == ModelConfig(layers=6, width=96, heads=6, mlp=256)
    given = resolve(TrainRequest(model={"width": 96, "mlp": 100}), "rope", seed=0, device=CPU).model
    assert given == ModelConfig(layers=4, width=96, heads=8, mlp=100)
    assert [mlp_width(width) for width in (12, 13, 64, 128, 384, 768)] == [32, 64, 192, 352, 1024, 2048]


def test_counts_are_read_exactly() -> None:
    """Every decimal with up to three places that is a whole number of tokens; in floats 16.1 * 1000 is not 16100."""
    for letter, size in {"k": 10**3, "M": 10**6, "g": 10**9}.items():
        for thousandths in range(1, 5000):
            text = f"{thousandths / 1000:.3f}"
            assert read_count(text + letter) == Decimal(text) * size
    for text, count in {"4096": 4096, "1K": 1000, " 2.5m ": 2_500_000, "3G": 3 * 10**9}.items():
        assert TrainRequest(tokens=text).tokens == count


@pytest.mark.parametrize(
    "text", ["0", "0k", "-1", "1.5", "0.5", "1.0005k", "1e3", "2 M", "k", "", "1kk", "nan", "9" * 5000]
)
def test_what_is_not_a_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 4096, 500k or 2M|whole number of tokens, at least 1"):
        read_count(text)


def test_counts_are_written_so_that_they_are_read_back() -> None:
    texts = {1: "1", 999: "999", 1000: "1k", 1500: "1500", 2_000_000: "2M", 2_500_000: "2500k", 10**12: "1000G"}
    for count, text in texts.items():
        assert write_count(count) == text
        assert read_count(text) == count


def test_precisions_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` is bfloat16 where it is fast: on CUDA that has it, on a CPU that has it from width 256 on."""
    for name in ("float32", "bfloat16", "float16"):
        assert device.precision_name(name, CPU, 64) == name
    for native in (True, False):
        monkeypatch.setattr(device, "cpu_has_bfloat16", lambda native=native: native)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda native=native, **_: native)
        wide = "bfloat16" if native else "float32"
        chosen = {width: device.precision_name("auto", CPU, width) for width in (64, 255, 256, 768)}
        assert chosen == {64: "float32", 255: "float32", 256: wide, 768: wide}
        assert [device.precision_name("auto", CUDA, width) for width in (64, 768)] == [wide] * 2


def test_seeds_are_the_same_on_every_machine() -> None:
    """The first eight bytes of a SHA-256, least first, without the lowest bit."""
    assert derive(0) == int.from_bytes(hashlib.sha256(b"0").digest()[:8], "little") // 2
    digest = hashlib.sha256(b"3/weights/layers.0.gate.weight").digest()
    assert derive(3, "weights", "layers.0.gate.weight") == int.from_bytes(digest[:8], "little") // 2
    assert derive(0, "copy", 17) == 4108116723542305438
    assert max(derive(seed) for seed in range(200)) < 2**63
    assert len({derive(seed, purpose) for seed in range(50) for purpose in ("a", "b", 1)}) == 150
    assert generator(5, "step", 2).initial_seed() == derive(5, "step", "2")


def test_the_windows_of_a_step_by_hand() -> None:
    """Start n is the n-th raw word of Philox(key = seed), at counter step * 2^192, modulo the number of starts."""
    split = Split(np.arange(100, 200, dtype=np.uint16), np.array([0, 100]))
    words = np.random.Philox(key=3, counter=[0, 0, 0, 5]).random_raw(2)
    starts = [int(word) % (100 - 7) for word in words]
    expected = [list(range(100 + start, 100 + start + 8)) for start in starts]
    assert batch(split, length=7, size=2, seed=3, step=5).tolist() == expected
    # with segments, three steps share the starts of step 5 // 3 = 1, and step 5 reads the third window from there
    words = np.random.Philox(key=3, counter=[0, 0, 0, 1]).random_raw(2)
    starts = [int(word) % (100 - 3 * 7) + 2 * 7 for word in words]
    expected = [list(range(100 + start, 100 + start + 8)) for start in starts]
    assert batch(split, length=7, size=2, seed=3, step=5, segments=3).tolist() == expected


def test_segments_reach_both_ends_of_the_text_and_not_beyond() -> None:
    """21 tokens hold three windows of 6 and a last target from starts 0, 1 and 2 only."""
    split = Split(np.arange(21, dtype=np.uint16), np.array([0, 21]))
    for segment in range(3):
        drawn = [batch(split, length=6, size=8, seed=0, step=3 * n + segment, segments=3) for n in range(8)]
        assert set(np.concatenate(drawn)[:, 0].tolist()) == {6 * segment, 6 * segment + 1, 6 * segment + 2}


@pytest.mark.parametrize(
    ("given", "canonical", "tokens", "lengths"),
    [
        (1024, 1024, 1024, [64, 128, 256, 512, 1024]),
        ("1024", 1024, 1024, [64, 128, 256, 512, 1024]),
        ("8x", "8x", 512, [64, 128, 256, 512]),
        (" 08.0X ", "8x", 512, [64, 128, 256, 512]),
        ("1.5x", "1.5x", 96, [64]),
        ("1.01x", "1.01x", 65, [64]),  # 64.64 tokens
        ("1x", "1x", 64, [64]),
    ],
)
def test_the_longest_window_is_a_number_of_tokens_or_a_multiple(
    given: int | str, canonical: int | str, tokens: int, lengths: list[int]
) -> None:
    request = ExtrapolateRequest(max_len=given)
    assert request.max_len == canonical
    assert ExtrapolateRequest.model_validate_json(request.model_dump_json(by_alias=True)) == request
    settings = settings_of(RunConfig(encoding="rope", length=64), request)
    assert (settings.max_len, settings.lengths) == (tokens, lengths)


@pytest.mark.parametrize(
    "given",
    ["x", "0x", "0.9x", "-8x", "8 x", "8y", "8k", "1e3", "nanx", "infx", "9" * 50 + "x", "9" * 5000, 0, -1, 8.5, True],
)
def test_what_is_no_longest_window_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match=r"^here: max_len = .*(such as 4096, or 8x|greater than|less than)") as error:
        validated(ExtrapolateRequest, {"max_len": given}, "here")
    assert "\n" not in str(error.value)
