"""What the config.json of published checkpoints says of positions and sizes, and the limit of their tokenizers.

These are facts, copied key by key; keys that decide nothing about positions are left out, and the number of layers is
that of the first period where layers repeat, so that models are made quickly. LongRoPE's lists are shortened to a line
from their first to their last number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NO_LIMIT = 1000000000000000019884624838656  # as transformers writes it


def spaced(first: float, last: float, count: int) -> list[float]:
    return [first + (last - first) * n / (count - 1) for n in range(count)]


LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 64, "num_attention_heads": 32}
LLAMA |= {"num_hidden_layers": 2}

# By the name on the hub: config.json, and model_max_length of the tokenizer.
PUBLISHED: dict[str, tuple[dict[str, Any], int | None]] = {
    "Llama-2-7b-hf": (
        LLAMA
        | {"num_key_value_heads": 32, "max_position_embeddings": 4096, "rope_scaling": None, "vocab_size": 32000}
        | {"transformers_version": "4.31.0.dev0"},
        NO_LIMIT,
    ),
    "Meta-Llama-3-8B": (
        LLAMA
        | {"num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_scaling": None, "vocab_size": 128256}
        | {"rope_theta": 500000.0},
        NO_LIMIT,
    ),
    "Llama-3.1-8B": (
        LLAMA
        | {"num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_theta": 500000.0, "vocab_size": 128256}
        | {
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            }
        },
        131072,
    ),
    "Qwen2.5-7B-Instruct with YaRN, as its page tells": (
        {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 64, "num_attention_heads": 28}
        | {"num_key_value_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 32768, "vocab_size": 152064}
        | {"rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28}
        | {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}},
        131072,
    ),
    "Qwen3-8B with YaRN, as its page tells": (
        {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 64, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 2, "vocab_size": 151936}
        | {"max_position_embeddings": 40960, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False}
        | {"max_window_layers": 36}
        | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        131072,
    ),
    "AFM-4.5B": (
        {"model_type": "arcee", "hidden_size": 2560, "intermediate_size": 64, "num_attention_heads": 20}
        | {"num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 2, "vocab_size": 128256}
        | {"max_position_embeddings": 65536, "rope_theta": 10000.0}
        | {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 20.0,
                "original_max_position_embeddings": 4096,
                "mscale": 1.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            }
        },
        65536,
    ),
    "Yarn-Llama-2-7b-64k": (
        LLAMA
        | {"num_key_value_heads": 32, "max_position_embeddings": 65536, "vocab_size": 32000}
        | {
            "rope_scaling": {
                "factor": 16.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
                "finetuned": True,
            }
        },
        NO_LIMIT,
    ),
    "pythia-160m": (
        {"model_type": "gpt_neox", "hidden_size": 768, "intermediate_size": 64, "num_attention_heads": 12}
        | {"num_hidden_layers": 2, "max_position_embeddings": 2048, "rotary_emb_base": 10000, "rotary_pct": 0.25}
        | {"vocab_size": 50304},
        None,
    ),
    "SmolLM3-3B": (
        {"model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 64, "num_attention_heads": 16}
        | {"num_key_value_heads": 4, "num_hidden_layers": 4, "max_position_embeddings": 65536, "vocab_size": 128256}
        | {"rope_theta": 5000000.0, "rope_scaling": None, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0]}
        | {"layer_types": ["full_attention"] * 4, "sliding_window": None, "use_sliding_window": False}
        | {"max_window_layers": 28},
        131072,
    ),
    "gemma-3-1b-it": (
        {"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 64, "num_attention_heads": 4}
        | {"num_key_value_heads": 1, "head_dim": 256, "num_hidden_layers": 26, "max_position_embeddings": 32768}
        | {"rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": None, "sliding_window": 512}
        | {"sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "vocab_size": 262144}
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        NO_LIMIT,
    ),
    "Phi-3-mini-128k-instruct": (
        {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 64, "num_attention_heads": 32}
        | {"num_key_value_heads": 32, "num_hidden_layers": 2, "max_position_embeddings": 131072, "vocab_size": 32064}
        | {"original_max_position_embeddings": 4096, "rope_theta": 10000.0, "sliding_window": 262144}
        | {
            "rope_scaling": {
                "long_factor": spaced(1.07, 64.4, 48),
                "short_factor": spaced(1.1, 2.8, 48),
                "type": "longrope",
            }
        },
        131072,
    ),
    "Mistral-7B-v0.1": (
        {"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 64, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "num_hidden_layers": 2, "max_position_embeddings": 32768, "vocab_size": 32000}
        | {"rope_theta": 10000.0, "sliding_window": 4096},
        NO_LIMIT,
    ),
    "bloom-560m": (
        {"model_type": "bloom", "n_embed": 1024, "n_layer": 2, "num_attention_heads": 16, "seq_length": 2048}
        | {"offset_alibi": 100, "vocab_size": 250880},
        NO_LIMIT,
    ),
    "mpt-7b": (
        {"model_type": "mpt", "d_model": 4096, "expansion_ratio": 1, "n_heads": 32, "n_layers": 2, "max_seq_len": 2048}
        | {"attn_config": {"alibi": True, "alibi_bias_max": 8, "clip_qkv": None, "qk_ln": False}, "vocab_size": 50432},
        2048,
    ),
    "falcon-7b": (
        {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 2}
        | {"alibi": False, "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True}
        | {"bias": False, "vocab_size": 65024},
        2048,
    ),
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 2, "n_positions": 1024, "n_ctx": 1024}
        | {"vocab_size": 50257},
        1024,
    ),
    "opt-125m": (
        {"model_type": "opt", "hidden_size": 768, "ffn_dim": 64, "num_attention_heads": 12, "num_hidden_layers": 2}
        | {"word_embed_proj_dim": 768, "max_position_embeddings": 2048, "vocab_size": 50272},
        NO_LIMIT,
    ),
}


def write(folder: Path, config: dict[str, Any], tokenizer_limit: int | None = None) -> Path:
    """Write the files that a card reads; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer_limit is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": tokenizer_limit}))
    return folder
