"""Keys of config.json for transformers, whose versions 4 and 5 have other names for rope."""

from __future__ import annotations

import math

from poscli.checkpoints.architecture import LOCAL
from poscli.checkpoints.paste.asked import ALL, Asked
from poscli.checkpoints.paste.parameters import original_of, parameters
from poscli.checkpoints.paste.snippet import Inexpressible, Keys

LENGTHS = ("original_max_position_embeddings", "max_position_embeddings")
Types = dict[str, tuple[str, ...]]  # by model type
# The scalings that a model type takes in transformers, where its configuration refuses all others.
ONLY: Types = {"phi3": ("default", "longrope")}
ONLY_IN_4: Types = {"olmo": ("default", "linear", "dynamic"), "olmo2": ("default", "linear", "dynamic")}
# Model types whose configuration in version 4 wants exactly these keys of a scaling.
EXACT_IN_4: Types = {
    "olmo": ("type", "factor"),
    "olmo2": ("type", "factor"),
    "phi3": ("type", "short_factor", "long_factor"),
}
# Model types with a window on all layers as soon as these keys say so.
WINDOWS: dict[str, Keys] = {
    "mistral": {},
    "phi3": {},
    "starcoder2": {},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 0},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 0},
}


def version_5(asked: Asked) -> Keys:
    """Keys of a config.json for transformers 5: `rope_parameters`, nested by type of layer if these have own thetas."""
    if not asked.ropes:
        return _length(asked) | window(asked)
    found = {type_: parameters(asked, type_) for type_ in asked.ropes}
    _refuse_types(asked, ONLY, found[asked.main]["rope_type"], "transformers")
    keys: Keys = {"rope_parameters": found.get(ALL, found)}
    keys |= _original_beside(asked, found[asked.main], always=asked.architecture.model_type == "phi3")
    stale = {"rope_scaling": None} if asked.config.get("rope_scaling") else {}  # it would come first
    return keys | longest(asked, found[asked.main]) | stale | window(asked)


def version_4(asked: Asked) -> Keys:
    """Keys of a config.json for transformers 4: `rope_scaling` and `rope_theta`."""
    if not asked.ropes:
        return _length(asked) | window(asked)
    rope = parameters(asked, asked.main)
    kind, model_type = rope.pop("rope_type"), asked.architecture.model_type
    _refuse_types(asked, ONLY | ONLY_IN_4, kind, "transformers 4")
    keys: Keys = {"rope_scaling": None if kind == "default" else _scaling_4(model_type, kind, rope)}
    keys["rope_theta"] = rope["rope_theta"]
    if model_type == "gpt_neox":
        keys["rotary_emb_base"] = rope["rope_theta"]  # version 4 reads this one, and writes both
    if "partial_rotary_factor" in rope:
        keys["rotary_pct" if model_type == "gpt_neox" else "partial_rotary_factor"] = rope["partial_rotary_factor"]
    if model_type == "mistral" and asked.config.get("head_dim") is None:
        keys["head_dim"] = asked.architecture.head_width  # version 4 cannot compute scalings without it
    keys |= _local_theta(asked)
    keys |= _original_beside(asked, rope, always=kind == "longrope")
    stale = {"rope_parameters": None} if asked.config.get("rope_parameters") else {}
    return keys | longest(asked, {"rope_type": kind, **rope}) | stale | window(asked)


def longest(asked: Asked, rope: Keys) -> Keys:
    """`max_position_embeddings`, which two scalings take for a part of their formula.

    Dynamic scaling begins at this length. Version 4 takes it for YaRN's and LongRoPE's factor times `original...`.
    """
    if rope["rope_type"] == "dynamic":
        return {LENGTHS[1]: original_of(dict(asked.ropes[asked.main].options), asked)}
    whole = asked.target
    if rope["rope_type"] in ("yarn", "longrope"):
        whole = max(1, math.ceil(round(rope["factor"] * rope[LENGTHS[0]], 6)))
    return {LENGTHS[1]: whole}


def window(asked: Asked) -> Keys:
    """The keys of a window on all layers, for a model type whose code has one."""
    if asked.window is None:
        return {}
    model_type = asked.architecture.model_type
    if model_type not in WINDOWS:
        raise Inexpressible(
            f"Models of type {model_type} have no key for a window: cut the input to its last {asked.window} tokens."
        )
    keys = WINDOWS[model_type] | {"sliding_window": asked.window}
    typed = "layer_types" in asked.config or model_type.startswith("qwen")
    return keys | ({"layer_types": [LOCAL] * len(asked.architecture.layers)} if typed else {})


def _scaling_4(model_type: str, kind: str, rope: Keys) -> Keys:
    outside = ("rope_theta", "partial_rotary_factor")
    scaling = {key: value for key, value in rope.items() if key not in outside}
    if model_type not in EXACT_IN_4:
        return {"rope_type": kind} | scaling
    wanted = EXACT_IN_4[model_type]
    if "attention_factor" in scaling:
        raise Inexpressible(f"Models of type {model_type} in transformers 4 take no factor on cos and sin.")
    return {"type": kind} | {key: scaling[key] for key in wanted[1:]}


def _local_theta(asked: Asked) -> Keys:
    """The theta of the layers with a window, which version 4 cannot scale."""
    if LOCAL not in asked.ropes:
        return {}
    local = parameters(asked, LOCAL)
    if local["rope_type"] != "default":
        raise Inexpressible("transformers 4 has no key for a scaling of the layers with a window.")
    return {"rope_local_base_freq": local["rope_theta"]}


def _original_beside(asked: Asked, rope: Keys, *, always: bool) -> Keys:
    """`original_max_position_embeddings` beside the scaling, where the code looks there first."""
    given = LENGTHS[0] in asked.config
    return {LENGTHS[0]: rope[LENGTHS[0]]} if LENGTHS[0] in rope and (always or given) else {}


def _refuse_types(asked: Asked, only: Types, kind: str, runtime: str) -> None:
    allowed = only.get(asked.architecture.model_type)
    if allowed and kind not in allowed:
        others = " or ".join(allowed[1:])
        raise Inexpressible(
            f"Models of type {asked.architecture.model_type} in {runtime} take only the scaling {others}, not {kind}."
        )


def _length(asked: Asked) -> Keys:
    """The key of the longest input, for a model without rotations."""
    return {"max_seq_len": asked.target} if "max_seq_len" in asked.config else {}
