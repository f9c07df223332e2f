"""Every key of a config.json that decides about positions, given and left out, is read as transformers reads it.

The readings of transformers are those of its own modules, built without memory for weights. Keys are those of version
4, which versions 4 and 5 read; what only version 5 writes is compared with the same statement in the keys of version 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from published_configs import spaced, write

transformers = pytest.importorskip("transformers")

from poscli.checkpoints.architecture import (  # noqa: E402
    KINDS,
    RotaryKind,
    architecture,
    without_window,
)
from poscli.checkpoints.card import read_subject  # noqa: E402
from poscli.specs import parse  # noqa: E402
from poscli.system.errors import DataError, UsageError  # noqa: E402

FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS = 3
SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": LAYERS, "vocab_size": 99}
SIZES |= {"num_attention_heads": 4, "pad_token_id": None}
ON = {"use_sliding_window": True}
MIXED = {"layer_types": [SLIDING, FULL, FULL]}
ORIGINAL = "original_max_position_embeddings"

# Of all model types with rotations: nothing about positions; and windows, which each type treats in its own way.
EVERY: tuple[dict[str, Any], ...] = ({}, {"sliding_window": 16}, ON | {"sliding_window": 16, "max_window_layers": 2})
ONE: dict[str, tuple[dict[str, Any], ...]] = {
    "llama": (
        {"rope_theta": 700.0, "head_dim": 12},
        {"max_position_embeddings": 96, "rope_scaling": {"type": "linear", "factor": 3.0}},
        {"max_position_embeddings": 96, "rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
        {"max_position_embeddings": 96, "rope_scaling": {"rope_type": "yarn", "factor": 3.0}},
        {"max_position_embeddings": 96, "rope_scaling": {"rope_type": "yarn", "factor": 3.0, "mscale": 0.5}},
        {"max_position_embeddings": 96, "rope_scaling": {"rope_type": "yarn", "factor": 3.0, ORIGINAL: 48}},
        {
            "max_position_embeddings": 96,
            "rope_scaling": {"rope_type": "llama3", "factor": 3.0, ORIGINAL: 24}
            | {"low_freq_factor": 1.5, "high_freq_factor": 3.0},
        },
    ),
    "mistral": ({"sliding_window": None}, {"head_dim": 12}),
    "qwen2": (ON, ON | {"num_hidden_layers": 30}, ON | MIXED, ON | {"sliding_window": None}, MIXED),
    "qwen3": (ON | {"num_hidden_layers": 30, "sliding_window": 16}, ON | MIXED, {"rope_theta": 700.0}),
    "gemma3_text": (
        {"num_hidden_layers": 7},
        {"sliding_window_pattern": 3},
        {"_sliding_window_pattern": 3},
        {"rope_local_base_freq": 70.0, "rope_theta": 700.0, "sliding_window_pattern": 2},
        {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "sliding_window_pattern": 2},
        MIXED | {"sliding_window": 16},
    ),
    "phi": ({"partial_rotary_factor": 1.0}, {"partial_rotary_factor": 0.25}),
    "phi3": (
        {"sliding_window": None},
        {
            "max_position_embeddings": 96, ORIGINAL: 24,
            "rope_scaling": {"type": "longrope", "short_factor": spaced(1, 2, 4), "long_factor": spaced(1, 4, 4)},
        },
    ),
    "gpt_neox": ({"rotary_pct": 0.5, "rotary_emb_base": 300}, {"rotary_pct": 1.0}),
    "smollm3": (
        {"no_rope_layer_interval": 3},
        {"no_rope_layers": [0, 1, 1]},
        ON,
        ON | {"sliding_window": 16, "no_rope_layers": [0, 1, 1]},
        ON | MIXED | {"sliding_window": 16},
        {"rope_theta": 700.0},
    ),
}  # fmt: skip
ROTARY = {name: kind for name, kind in KINDS.items() if type(kind) is RotaryKind}
WINDOWLESS = {name for name, kind in ROTARY.items() if kind.types is without_window}
CASES = [(name, keys) for name in ROTARY for keys in (*EVERY[: 2 if name in WINDOWLESS else 3], *ONE.get(name, ()))]


def named(value: object) -> str:
    return value if isinstance(value, str) else ", ".join(value) or "nothing"  # type: ignore[arg-type]


@pytest.mark.parametrize(("model_type", "keys"), CASES, ids=named)
def test_rotations_and_windows_are_those_of_transformers(model_type: str, keys: dict[str, Any], tmp_path: Path) -> None:
    narrow = {"head_dim": 8} if ROTARY[model_type].head_width else {}  # the default is far wider than this model
    subject = read_subject(write(tmp_path, {"model_type": model_type} | SIZES | narrow | keys))
    assert not subject.stock.refusal
    ours = [layer.measured for layer in subject.layers]
    assert [layer.window for layer in ours] == [layer.window for layer in subject.stock.layers]
    for own, theirs in zip(ours, subject.stock.layers, strict=True):
        for turns, expected in ((own.short, theirs.short), (own.long, theirs.long)):
            assert turns.speeds == pytest.approx(expected.speeds, rel=1e-5)
            assert turns.amplitude == pytest.approx(expected.amplitude, rel=1e-6)


# Sizes and lengths.

NAMES = {  # of the same sizes in other model types
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
}


@pytest.mark.parametrize("model_type", KINDS)
def test_sizes_that_config_json_leaves_out_are_those_of_transformers(model_type: str) -> None:
    sizes = NAMES.get(model_type, {key: value for key, value in SIZES.items() if key != "pad_token_id"})
    theirs: Any = transformers.CONFIG_MAPPING[model_type](**sizes)
    found = architecture({"model_type": model_type, "vocab_size": 99} | sizes)
    lengths = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    stated = next((getattr(theirs, name) for name in lengths if hasattr(theirs, name)), 2048)  # BLOOM's is not stated
    assert (found.width, found.heads, len(found.layers), found.vocab) == (32, 4, sizes.get("num_hidden_layers", 2), 99)
    assert found.length == stated
    assert found.head_width == (getattr(theirs, "head_dim", None) or 8)
    shared = 1 if model_type == "falcon" else getattr(theirs, "num_key_value_heads", 4)
    assert found.kv_heads == shared


@pytest.mark.parametrize(
    ("model_type", "keys", "length", "kv_heads"),
    [
        ("llama", {"max_position_embeddings": 96, "num_key_value_heads": 2}, 96, 2),
        ("mistral", {"max_position_embeddings": 96, "num_key_value_heads": None}, 96, 4),
        ("bloom", {"seq_length": 96}, 96, 4),
        ("mpt", {"max_seq_len": 96}, 96, 4),
        ("gpt2", {"n_positions": 96}, 96, 4),
        ("opt", {"max_position_embeddings": 96}, 96, 4),
        ("falcon", {"multi_query": False}, 2048, 4),
        ("falcon", {"multi_query": True}, 2048, 1),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, 2048, 2),
        ("falcon", {"new_decoder_architecture": True}, 2048, 4),
        ("falcon", {"num_kv_heads": 2, "multi_query": False}, 2048, 4),
    ],
)
def test_lengths_and_heads_of_keys_are_read_under_the_names_of_the_model_type(
    model_type: str, keys: dict[str, Any], length: int, kv_heads: int
) -> None:
    found = architecture({"model_type": model_type, "vocab_size": 99} | NAMES.get(model_type, SIZES) | keys)
    assert (found.length, found.kv_heads) == (length, kv_heads)
    assert (
        architecture({"model_type": model_type, "vocab_size": 99} | NAMES.get(model_type, SIZES) | keys, 40).length
        == 40
    )


# What several keys say of one thing, and what only version 5 writes.

LLAMA = {"model_type": "llama"} | SIZES | {"max_position_embeddings": 96}
GEMMA = {"model_type": "gemma3_text", "head_dim": 8} | SIZES | MIXED
NEOX = {"model_type": "gpt_neox"} | SIZES
LONG = {"short_factor": spaced(1, 2, 4), "long_factor": spaced(1, 4, 4), ORIGINAL: 24}
YARN = {"rope_type": "yarn", "factor": 3.0}
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "theta of version 5": (LLAMA | {"rope_theta": 700.0}, LLAMA | {"rope_parameters": {"rope_theta": 700.0}}),
    "a scaling of version 5": (
        LLAMA | {"rope_theta": 700.0, "rope_scaling": YARN},
        LLAMA | {"rope_parameters": YARN | {"rope_theta": 700.0}},
    ),
    "a fraction of version 5": (
        NEOX | {"rotary_pct": 0.5, "rotary_emb_base": 300},
        NEOX | {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 300.0}},
    ),
    "types of layers of version 5": (
        GEMMA | {"rope_theta": 700.0, "rope_local_base_freq": 70.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
        GEMMA
        | {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 3.0, "rope_theta": 700.0},
                SLIDING: {"rope_type": "default", "rope_theta": 70.0},
            }
        },
    ),
    "parameters without types of layers leave the layers with a window alone": (
        GEMMA | {"rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
        GEMMA | {"rope_parameters": {"rope_theta": 700.0, "rope_type": "linear", "factor": 3.0}},
    ),
    "rope_scaling comes before rope_parameters": (
        LLAMA | {"rope_scaling": YARN},
        LLAMA | {"rope_scaling": YARN, "rope_parameters": {"rope_type": "linear", "factor": 5.0}},
    ),
    "rope_type comes before type": (
        LLAMA | {"rope_scaling": YARN},
        LLAMA | {"rope_scaling": YARN | {"type": "linear"}},
    ),
    "the length before the scaling at the top comes first": (
        LLAMA | {"rope_scaling": YARN | {ORIGINAL: 24}},
        LLAMA | {"rope_scaling": YARN | {ORIGINAL: 48}, ORIGINAL: 24},
    ),
    "su is longrope": (
        LLAMA | {"rope_scaling": LONG | {"type": "longrope"}},
        LLAMA | {"rope_scaling": LONG | {"type": "su"}},
    ),
    "a factor that the lengths give": (
        LLAMA | {"rope_scaling": LONG | {"type": "longrope", "factor": 4.0}},
        LLAMA | {"rope_scaling": LONG | {"type": "longrope"}},
    ),
    "a factor that the lengths give to yarn": (
        LLAMA | {"rope_scaling": YARN | {"factor": 4.0, ORIGINAL: 24}},
        LLAMA | {"rope_scaling": {"rope_type": "yarn", ORIGINAL: 24}},
    ),
    "defaults of yarn": (
        LLAMA | {"rope_scaling": YARN | {"beta_fast": 32, "beta_slow": 1, "truncate": True, ORIGINAL: 96}},
        LLAMA | {"rope_scaling": YARN},
    ),
    "defaults of llama3": (
        LLAMA | {"rope_scaling": {"type": "llama3", "factor": 3.0, "low_freq_factor": 1, "high_freq_factor": 4}},
        LLAMA | {"rope_scaling": {"type": "llama3", "factor": 3.0}},
    ),
    "nothing is what null says": (LLAMA, LLAMA | dict.fromkeys(("rope_theta", "rope_scaling", "head_dim", ORIGINAL))),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_two_ways_to_say_one_thing_are_read_alike(name: str) -> None:
    first, second = (architecture(config) for config in SAME[name])
    assert parse(first.spec) == parse(second.spec)
    assert [layer.numbers for layer in first.layers] == [layer.numbers for layer in second.layers]
    assert first.spec != architecture({"model_type": "llama"} | SIZES).spec or name == "nothing is what null says"


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        ({"model_type": "bloom"} | NAMES["bloom"], "alibi"),
        ({"model_type": "mpt"} | NAMES["mpt"], "alibi(most=8)"),
        ({"model_type": "mpt", "attn_config": {"alibi_bias_max": 4}} | NAMES["mpt"], "alibi(most=4)"),
        ({"model_type": "falcon", "alibi": True} | SIZES, "alibi(before_scale=true)"),
        ({"model_type": "falcon", "alibi": False} | SIZES, "rope(base=10000.0)"),
        ({"model_type": "opt"} | SIZES, "learned"),
        (SIZES | {"model_type": "smollm3", "num_hidden_layers": 5, "no_rope_layers": [1, 0, 0, 1, 0]},
         "rope(base=2000000.0)|none|none"),
        (SIZES | {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0]},
         "rope(base=2000000.0)|none"),
    ],
)  # fmt: skip
def test_positions_are_said_as_the_shortest_spec(config: dict[str, Any], spec: str) -> None:
    assert parse(architecture(config | {"vocab_size": 99}).spec) == parse(spec)


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"layer_types": ["chunked_attention"] * LAYERS}, "chunked_attention"),
    ],
)
def test_scores_that_poscli_does_not_compute_are_refused(keys: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        architecture({"model_type": "gemma3_text"} | SIZES | keys)


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "rope_theta", "max_position_embeddings"])
@pytest.mark.parametrize("value", [0, -1, True, "4", [4]])
def test_a_number_that_cannot_be_is_refused_with_its_key(key: str, value: object) -> None:
    with pytest.raises(DataError, match=key):
        architecture(LLAMA | {key: value})
