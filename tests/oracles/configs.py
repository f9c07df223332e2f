"""Configurations of transformers' Llama with any scaling of rope, for its fourth and for its fifth version."""

from __future__ import annotations

from typing import Any

from oracles import libraries as lib

HEADS = 2


def llama(kind: str, width: int, length: int, base: float = 10000.0, **scaling: Any) -> Any:
    """A configuration with `rope_type=kind` and its further keys, for heads of `width` numbers.

    `length` is `max_position_embeddings`. The length of the first training is outside the keys of the scaling for
    LongRoPE, as in Phi-3's configuration, and among them for others.
    """
    lib.transformers.logging.set_verbosity_error()  # it warns of factors that do not follow from the lengths
    config = lib.transformers.LlamaConfig
    sizes = {"hidden_size": HEADS * width, "num_attention_heads": HEADS, "max_position_embeddings": length}
    if kind == "longrope" and (original := scaling.pop("original_max_position_embeddings", None)):
        sizes["original_max_position_embeddings"] = original
    if hasattr(config(), "rope_parameters"):
        return config(**sizes, rope_parameters={"rope_type": kind, "rope_theta": base, **scaling})
    return config(**sizes, rope_theta=base, rope_scaling=None if kind == "default" else {"rope_type": kind, **scaling})


def kinds() -> set[str]:
    """The scalings that the installed version has."""
    return {"default", *lib.rope_utils.ROPE_INIT_FUNCTIONS}
