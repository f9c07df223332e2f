"""Poscli's encodings inside stock models of transformers give the stock logits, for every family and every scaling."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import FAMILIES, LENGTH, ROWS, SINCE_5, make
from torch import Tensor

from poscli.checkpoints.architecture import architecture
from poscli.checkpoints.card import card_of, read_subject
from poscli.checkpoints.checkpoint_model import CheckpointModel, converted, load_checked
from poscli.encodings import get
from poscli.equation import Unsupported
from poscli.evaluation.posthoc import posthoc_spec, with_encoding, with_joined
from poscli.model.cache import Cache
from poscli.specs import build, parse
from poscli.system.errors import UsageError

transformers.utils.logging.disable_progress_bar()

# Layers amplify the rounding of the layers before: the stock logits in float32 differ from those in float64 by up to
# 4e-5 of their spread here. A theta that is off by 1 % moves them by 0.01 and more.
ROUNDING = 3e-4

VERSION_5 = int(transformers.__version__.split(".")[0]) >= 5
COMPARED = [*FAMILIES, *(SINCE_5 if VERSION_5 else ())]

LISTS: dict[str, Any] = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.5, 3.0, 6.0]}
# What transformers implements, for a model that was trained on 64 tokens; LongRoPE has a number per pair.
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-attention": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 0.7, "beta_fast": 4.0, "beta_slow": 2.0}
    | {"original_max_position_embeddings": 16},
    "yarn-deepseek": {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 0.3}
    | {"original_max_position_embeddings": 16, "truncate": False},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "longrope": LISTS | {"factor": 4.0, "original_max_position_embeddings": 64},
}


def stock(family: str, folder: Path, length: int | None = None, **changes: Any) -> tuple[Any, CheckpointModel]:
    """A random checkpoint as transformers runs it, and as poscli does, for which it was trained on `length` tokens."""
    checkpoint = make(family, folder / family, **changes)
    how = {"attn_implementation": "eager"} if family == "gpt2" else {}  # the only one that reads all keys
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, use_safetensors=True, **how)
    model = loaded.eval()
    known = architecture(json.loads((checkpoint / "config.json").read_text()), length)
    return model, converted(copy.deepcopy(model), known)


@cache
def tokens(length: int) -> Tensor:
    return torch.randint(ROWS, (2, length), generator=torch.Generator().manual_seed(length))


def apart(logits: Tensor, expected: Tensor) -> float:
    """The largest difference, in standard deviations of the logits."""
    return float((logits - expected).abs().max() / expected.std())


def in_slices(model: Any, length: int) -> Tensor:
    """The logits of a text, put together from its slices."""
    return torch.cat([logits for _, logits in model.logits_in_slices(tokens(length))], dim=1)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("family", COMPARED)
def test_own_positions_give_the_stock_logits(family: str, tmp_path: Path) -> None:
    """And the card of what transformers has saved names no fault."""
    theirs, ours = stock(family, tmp_path)
    assert card_of(read_subject(tmp_path / family)).grave == ()
    kind = ours.architecture.kind.name
    lengths = [LENGTH] if kind == "learned" or "mpt" in family else [LENGTH, 4 * LENGTH]
    for length in lengths:
        expected = theirs(input_ids=tokens(length), use_cache=False).logits
        assert apart(ours(tokens(length)), expected) < ROUNDING, (length, ours.architecture.spec)


@pytest.mark.skipif(VERSION_5, reason="transformers 5 computes them through the function that poscli replaces")
@pytest.mark.parametrize("family", SINCE_5)
def test_types_that_transformers_computes_in_code_of_their_own_are_refused(family: str, tmp_path: Path) -> None:
    checkpoint = make(family, tmp_path)
    known = architecture(json.loads((checkpoint / "config.json").read_text()))
    with pytest.raises(UsageError, match=r"pip install 'transformers>=5'"):
        load_checked(checkpoint, known, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("family", COMPARED)
def test_a_text_that_is_read_in_two_parts_has_the_logits_of_the_whole(family: str, tmp_path: Path) -> None:
    _, model = stock(family, tmp_path)
    first, second = tokens(LENGTH)[:, :40], tokens(LENGTH)[:, 40:]
    past = Cache()
    model(first, cache=past)
    whole = model(tokens(LENGTH))[:, 40:]
    for _ in range(2):  # the past stays as it is
        assert apart(model(second, cache=past.for_others()), whole) < ROUNDING
    assert apart(model(second, cache=past), whole) < ROUNDING


def test_what_was_read_under_one_encoding_gets_the_positions_of_another(tmp_path: Path) -> None:
    """In a model of one layer the keys before their positions are the same, however the first part was read."""
    _, model = stock("llama", tmp_path, num_hidden_layers=1)
    squeezed = with_encoding(model, "rope-linear(factor=3, base=5000.0)", model.architecture.spec)
    first, second = tokens(LENGTH)[:, :40], tokens(LENGTH)[:, 40:]
    past = Cache()
    model(first, cache=past)
    found = squeezed(second, cache=past.for_others())
    assert apart(found, squeezed(tokens(LENGTH))[:, 40:]) < ROUNDING
    assert apart(found, model(tokens(LENGTH))[:, 40:]) > 0.01


# Settings that change attention and not positions, each of which is off in FAMILIES.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon with groups": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon with many heads of keys": ("falcon", {"multi_query": False, "parallel_attn": False}),
    "mpt that clips": ("mpt", {"attn_config": {"clip_qkv": 0.5}}),
    "mpt with a scale": ("mpt", {"attn_config": {"softmax_scale": 0.9}}),
    "bloom with another residual": ("bloom", {"apply_residual_connection_post_layernorm": True}),
    "olmo that clips": ("olmo", {"clip_qkv": 0.5}),
    "phi with norms": ("phi", {"qk_layernorm": True}),
    "gpt_neox in sequence": ("gpt_neox", {"use_parallel_residual": False, "rotary_pct": 0.5}),
    "opt with norms behind": ("opt", {"do_layer_norm_before": False}),
    "gemma3 with a cap on logits": ("gemma3", {"final_logit_softcapping": 2.0}),
    "qwen3 with one head of keys": ("qwen3", {"num_key_value_heads": 1}),
    "gpt2 without a scale": ("gpt2", {"scale_attn_weights": False}),
    "gpt2 with a scale for each layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "llama with wide heads": ("llama", {"head_dim": 12, "attention_bias": True}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_settings_of_attention_leave_the_logits_those_of_the_stock_model(name: str, tmp_path: Path) -> None:
    family, changes = OPTIONS[name]
    theirs, ours = stock(family, tmp_path, **changes)
    plain, _ = stock(family, tmp_path / "plain")
    expected = theirs(input_ids=tokens(LENGTH), use_cache=False).logits
    assert apart(ours(tokens(LENGTH)), expected) < ROUNDING
    assert apart(plain(input_ids=tokens(LENGTH), use_cache=False).logits, expected) > 0.01  # the setting does something


def test_the_eager_attention_of_falcon_adds_its_alibi_twice(tmp_path: Path) -> None:
    """A claim of `poscli card`."""
    once, ours = stock("falcon-alibi", tmp_path)
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "falcon-alibi", use_safetensors=True, attn_implementation="eager"
    )
    twice = with_encoding(ours, "alibi(before_scale=true,scale=2)", ours.architecture.spec)
    eager = loaded.eval()(input_ids=tokens(LENGTH), use_cache=False).logits
    assert apart(in_slices(twice, LENGTH), eager) < ROUNDING
    assert apart(once(input_ids=tokens(LENGTH), use_cache=False).logits, eager) > 0.01


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_each_scaling_gives_the_stock_logits(family: str, scaling: str, tmp_path: Path) -> None:
    settings = {"rope_type": scaling} | SCALINGS[scaling]
    if family == "gpt_neox" and scaling == "longrope":
        settings |= {"short_factor": [1.0, 1.2], "long_factor": [1.0, 6.0]}
    changes: dict[str, Any] = {}
    if scaling == "longrope":  # as Phi-3 has it, version 4 reads the first length of training outside the scaling
        changes = {"max_position_embeddings": 4 * LENGTH, "original_max_position_embeddings": LENGTH}
    for length in (LENGTH, 4 * LENGTH):  # dynamic scaling remembers the longest input: a fresh model for each length
        theirs, ours = stock(family, tmp_path / str(length), rope_scaling=settings, **changes)
        plain = ours.under([get("rope")(ours.shape)] * len(ours.encodings))
        expected = theirs(input_ids=tokens(length), use_cache=False).logits
        assert apart(ours(tokens(length)), expected) < ROUNDING, ours.architecture.spec
        assert apart(plain(tokens(length)), expected) > 0.01  # the model hears of its positions at all


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}}),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ("phi3", {"rope_scaling": {"type": "longrope", **LISTS}, "original_max_position_embeddings": LENGTH // 2}),
    ],
)
def test_a_scaling_stays_that_of_the_configuration_whatever_length_the_model_was_trained_on(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    for length in (LENGTH // 2, 2 * LENGTH):
        theirs, ours = stock(family, tmp_path / str(length), length, **changes)
        assert ours.shape.length == length
        expected = theirs(input_ids=tokens(4 * LENGTH), use_cache=False).logits
        assert apart(in_slices(ours, 4 * LENGTH), expected) < ROUNDING, ours.architecture.spec


def longer(length: int) -> dict[str, Any]:
    """The keys of a model that LongRoPE lets read `length` tokens, as Phi-3 has them."""
    scaling = {"rope_type": "longrope", "factor": length / LENGTH, **LISTS}
    return {"rope_scaling": scaling, "max_position_embeddings": length, "original_max_position_embeddings": LENGTH}


def yarn(factor: float, original: int) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}}


@pytest.mark.parametrize(
    ("target", "own", "expected"),
    [
        ("rope-linear(factor=4)", {}, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        ("yarn(factor=4)", {}, yarn(4.0, LENGTH)),
        ("rope-dynamic(factor=2)", {}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
        ("yarn(factor=8)", yarn(4.0, 16), yarn(8.0, 16)),
        ("longrope(factor=16)", longer(4 * LENGTH), longer(16 * LENGTH)),
    ],
)
def test_a_scaling_put_on_a_trained_model_is_that_of_transformers(
    target: str, own: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    """Also in the place of one that the model has, which may have another factor on cos and sin."""
    _, trained = stock("llama", tmp_path, **own)
    spec = trained.architecture.spec
    under = with_encoding(trained, posthoc_spec(spec, target, trained.shape), spec)
    theirs, _ = stock("llama", tmp_path / "scaled", **expected)
    logits = theirs(input_ids=tokens(4 * LENGTH), use_cache=False).logits
    assert apart(in_slices(under, 4 * LENGTH), logits) < ROUNDING


def test_learned_sinks_stay_under_another_encoding(tmp_path: Path) -> None:
    """And keep a query that has nothing to read from reading it: without them the logits are others."""
    _, scaled = stock("gpt_oss", tmp_path)
    own = scaled.architecture.spec
    theirs, _ = stock("gpt_oss", tmp_path / "plain", rope_scaling={"rope_type": "default"})
    expected = theirs(input_ids=tokens(4 * LENGTH), use_cache=False).logits
    spec = "rope(base=2050)+window(16)+sink-logit|rope(base=2050)+sink-logit"
    under = with_encoding(scaled, posthoc_spec(own, spec, scaled.shape), own)
    assert apart(in_slices(under, 4 * LENGTH), expected) < ROUNDING
    fresh = under.under(build(parse(spec), under.shape, seed=0))
    assert apart(in_slices(fresh, 4 * LENGTH), expected) > 0.01


def test_a_window_joined_to_a_model_is_that_of_transformers(tmp_path: Path) -> None:
    _, ours = stock("mistral", tmp_path / "without", sliding_window=None)
    theirs, _ = stock("mistral", tmp_path / "with", sliding_window=24)
    expected = theirs(input_ids=tokens(4 * LENGTH), use_cache=False).logits
    assert apart(in_slices(with_joined(ours, "window(24)"), 4 * LENGTH), expected) < ROUNDING


def test_a_learned_table_ends_where_it_ends_and_can_be_interpolated(tmp_path: Path) -> None:
    for family in ("gpt2", "opt"):
        _, ours = stock(family, tmp_path)
        with pytest.raises(Unsupported, match="64 positions"):
            ours(tokens(65))
        spec = posthoc_spec("learned", "learned(beyond=interpolate)", ours.shape)
        longer = with_encoding(ours, spec, "learned")
        assert apart(in_slices(longer, LENGTH), ours(tokens(LENGTH))) < ROUNDING
        assert in_slices(longer, 4 * LENGTH).shape[1] == 4 * LENGTH


def test_slices_of_any_size_give_the_same_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for family in ("llama", "mpt", "gpt2"):
        _, ours = stock(family, tmp_path)
        whole = ours(tokens(LENGTH))
        for rows in (1, 7, 63):
            monkeypatch.setattr("poscli.checkpoints.checkpoint_model.SLICE_NUMBERS", rows * 2 * ROWS)
            parts = list(ours.logits_in_slices(tokens(LENGTH)))
            assert max(logits.shape[1] for _, logits in parts) == rows
            torch.testing.assert_close(torch.cat([logits for _, logits in parts], dim=1), whole)
