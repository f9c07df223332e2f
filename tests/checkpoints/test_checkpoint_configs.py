"""Every key of a config.json that decides about positions, given and left out, is read as transformers reads it.

The readings of transformers are those of its own modules, built without memory for weights. Keys are those of version
4, which versions 4 and 5 read; how what only version 5 writes is read stands in test_snapshots_checkpoints.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from published_configs import spaced, write

transformers = pytest.importorskip("transformers")

from poscli.checkpoints.architecture import KINDS, RotaryKind, architecture, without_window  # noqa: E402
from poscli.checkpoints.card import read_subject  # noqa: E402

FULL, SLIDING = "full_attention", "sliding_attention"
SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "vocab_size": 99}
SIZES |= {"num_attention_heads": 4, "pad_token_id": None}
# Without these, version 4 of transformers cannot build these models.
NEEDED: dict[str, dict[str, Any]] = {
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 4},
}
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
if transformers.__version__.startswith("4."):  # which reads no window for this type, and cannot run it under poscli
    CASES.remove(("qwen2_moe", EVERY[2]))


def named(value: object) -> str:
    return value if isinstance(value, str) else ", ".join(value) or "nothing"  # type: ignore[arg-type]


@pytest.mark.parametrize(("model_type", "keys"), CASES, ids=named)
def test_rotations_and_windows_are_those_of_transformers(model_type: str, keys: dict[str, Any], tmp_path: Path) -> None:
    narrow = {"head_dim": 8} if ROTARY[model_type].head_width else {}  # the default is far wider than this model
    needed = NEEDED.get(model_type, {})
    subject = read_subject(write(tmp_path, {"model_type": model_type} | SIZES | narrow | needed | keys))
    assert not subject.stock.refusal
    ours = [layer.measured for layer in subject.layers]
    assert [layer.window for layer in ours] == [layer.window for layer in subject.stock.layers]
    for layer, theirs in zip(ours, subject.stock.layers, strict=True):
        for turns, expected in ((layer.short, theirs.short), (layer.long, theirs.long)):
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
    assert architecture({"model_type": model_type, "vocab_size": 99} | sizes, 40).length == 40
    assert found.head_width == (getattr(theirs, "head_dim", None) or 8)
    shared = 1 if model_type == "falcon" else getattr(theirs, "num_key_value_heads", 4)
    assert found.kv_heads == (shared or found.heads)
