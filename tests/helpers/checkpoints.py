"""Small random checkpoints of Hugging Face model families, with a tokenizer, for tests that read checkpoints.

`make("llama", folder)` writes a folder as `save_pretrained` of transformers does: config.json, model.safetensors,
tokenizer.json and tokenizer_config.json. The training length is 64 tokens and the tokenizer a byte-level BPE of 300
tokens; the models have more rows of embeddings than that, as published ones do. Settings are written with the keys of
transformers 4 (`rope_theta`, `rope_scaling`), which transformers 5 translates and saves in its own form.

Weights are larger than those of a fresh model: with the usual standard deviation of 0.02 attention is almost uniform,
logits almost constant, and a test of positions could not fail.
"""

from __future__ import annotations

import functools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn

LENGTH = 64  # tokens: the longest text of training that the configurations state
TOKENS = 300  # of the tokenizer
ROWS = 320  # of the embeddings: more than the tokenizer has tokens
BEGIN, END = "<|begin|>", "<|end|>"  # tokens 0 and 1
GAIN = 1.5  # of a weight matrix over one that keeps the variance of its input: attention scores vary by about 2

_SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "vocab_size": ROWS}
_GATED = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "max_position_embeddings": LENGTH}
_LAYERED = _GATED | {"num_hidden_layers": 4, "sliding_window": 16}  # three layers with a window, then one without
_ALIBI = {"hidden_size": 48, "n_layer": 2, "n_head": 8, "seq_length": LENGTH}
_MPT = {"d_model": 48, "n_layers": 2, "n_heads": 8, "max_seq_len": LENGTH, "expansion_ratio": 2}
_FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": LENGTH}

# Settings of every family's configuration. No base of RoPE is a default: a reader that loses it is noticed.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _GATED | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 5000.0},
    "gpt_neox": _GATED | {"num_attention_heads": 2, "rotary_pct": 0.25, "rotary_emb_base": 500},
    "qwen3": _GATED | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "rope_theta": 2000.0},
    "smollm3": _GATED
    | {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 700.0}
    | {"no_rope_layers": [1, 0, 1, 0]},
    "gemma3": _GATED
    | {"num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8}
    | {"rope_theta": 3000.0, "rope_local_base_freq": 100.0, "sliding_window": 16, "query_pre_attn_scalar": 12}
    | {"layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2},
    "olmo": _GATED | {"num_attention_heads": 4, "rope_theta": 900.0},
    "mistral": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1500.0, "sliding_window": 24},
    "gemma": _GATED | {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "rope_theta": 600.0},
    "olmo2": _GATED | {"num_attention_heads": 4, "rope_theta": 800.0},
    "phi": _GATED | {"num_attention_heads": 2, "rope_theta": 400.0, "partial_rotary_factor": 0.5},
    "phi3": _GATED | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1200.0},
    "qwen2": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 2500.0}
    | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    "starcoder2": _GATED | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 350.0},
    "granite": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 450.0}
    | {"attention_multiplier": 0.3, "logits_scaling": 1.5, "residual_multiplier": 0.8, "embedding_multiplier": 2.0},
    "arcee": _GATED | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 550.0},
    "seed_oss": _GATED | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "rope_theta": 650.0},
    "ernie4_5": _GATED | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 750.0},
    "cohere": _GATED | {"num_attention_heads": 4, "rope_theta": 850.0, "logit_scale": 0.7},
    "cohere2": _LAYERED | {"num_attention_heads": 4, "rope_theta": 950.0, "logit_scale": 0.7},
    "glm": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 1050.0}
    | {"partial_rotary_factor": 0.5},
    "glm4": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 1150.0}
    | {"partial_rotary_factor": 0.5},
    "helium": _GATED | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 1250.0},
    "exaone4": _LAYERED | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1350.0},
    "olmo3": _LAYERED
    | {"num_attention_heads": 4, "rope_theta": 1550.0}
    | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "flex_olmo": _GATED | {"num_attention_heads": 4, "rope_theta": 1650.0, "num_experts": 4, "num_experts_per_tok": 2},
    "mixtral": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1750.0, "sliding_window": 24}
    | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "rope_theta": 1850.0}
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "granitemoe": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1950.0, "attention_multiplier": 0.3}
    | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": _GATED
    | {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16}
    | {"rope_theta": 2050.0, "num_local_experts": 4, "num_experts_per_tok": 2}
    | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False}},
    "apertus": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 2150.0}
    | {
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 16}
    },
    "dots1": _LAYERED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 2250.0, "max_window_layers": 2}
    | {"moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    | {"n_shared_experts": 1},
    "ministral": _LAYERED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 2350.0}
    | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "bloom": _ALIBI,
    "bloom-6": _ALIBI | {"n_head": 6},
    "mpt": _MPT,
    "mpt-6": _MPT | {"n_heads": 6},
    "falcon": _FALCON | {"multi_query": True, "parallel_attn": True, "bias": False, "rope_theta": 300.0},
    "falcon-alibi": _FALCON | {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LENGTH},
    "opt": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"word_embed_proj_dim": 32, "max_position_embeddings": LENGTH, "dropout": 0.0},
}
# What transformers 4 computes in code of its own, so that only version 5 can be compared.
SINCE_5: dict[str, dict[str, Any]] = {
    "stablelm": _GATED
    | {"num_attention_heads": 2, "num_key_value_heads": 2, "rope_theta": 2450.0, "partial_rotary_factor": 0.25},
    "nemotron": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 2550.0, "partial_rotary_factor": 0.5},
    "olmoe": _GATED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 2650.0, "clip_qkv": 2.0}
    | {"num_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": _LAYERED
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 2750.0}
    | {"use_sliding_window": True, "max_window_layers": 3, "num_experts": 4, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
}
MODEL_TYPES = {"gemma3": "gemma3_text", "bloom-6": "bloom", "mpt-6": "mpt", "falcon-alibi": "falcon"}
OPENS = {"llama", "gemma3", "mistral", "opt"}  # their tokenizers put BEGIN in front of every text


def make(family: str, folder: Path, *, shard: str = "5GB", **changes: Any) -> Path:
    """Write the family's checkpoint, its settings changed, in weight files of at most `shard`; returns the folder."""
    import transformers

    settings = _SPECIAL | (FAMILIES | SINCE_5)[family] | changes
    config = transformers.AutoConfig.for_model(MODEL_TYPES.get(family, family), **settings)
    # Their own draw is that of what is not replaced below.
    with (
        torch.random.fork_rng(),
        warnings.catch_warnings(),
    ):  # of transformers itself, about how it draws the weights that are replaced here
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    randomise(model)
    model.save_pretrained(folder, max_shard_size=shard)
    write_tokenizer(folder, opens=family in OPENS)
    return folder


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 1) -> None:
    """Draw matrices that keep the variance of their input times GAIN squared; disturb biases and norms by 0.1."""
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        transposed = type(module).__name__ == "Conv1D"  # GPT-2 stores (inputs, outputs)
        for weight in module.parameters(recurse=False):
            noise = torch.randn(weight.shape, generator=draw)
            if weight.ndim == 2:
                weight.copy_(noise * GAIN / math.sqrt(weight.shape[0 if transposed else 1]))
            else:
                weight += 0.1 * noise


def write_tokenizer(folder: Path, opens: bool) -> None:
    """Write tokenizer.json and tokenizer_config.json; `opens`: every text is encoded with BEGIN in front of it."""
    tokenizer = Tokenizer.from_str(trained())
    if opens:
        template = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": LENGTH}
    config |= {"bos_token": BEGIN} if opens else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"clean_up_tokenization_spaces": False}))


@functools.cache
def trained() -> str:
    """The tokenizer.json of a byte-level BPE trained on a fixed text, as text."""
    return str(byte_pairs(TEXT.splitlines(keepends=True), TOKENS, [BEGIN, END]).to_str())


def byte_pairs(texts: list[str], size: int, special: list[str]) -> Tokenizer:
    """A byte-level BPE of this many tokens, the first of which are the special ones, trained on texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_corpus(path: Path) -> str:
    """Write a corpus of sixteen short documents to a file of JSON lines; returns its spec."""
    lines = [f"The keeper counted {n} ships and wrote {n * n} in the book of the year {n % 97}." for n in range(900)]
    texts = ["\n".join(lines[n * 56 : n * 56 + 56]) for n in range(16)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return f"jsonl:{path}"


def corpus(place: Path) -> str:
    """The spec of the corpus that lies as text.jsonl in a folder."""
    return f"jsonl:{place / 'text.jsonl'}"


TEXT = """\
The lighthouse keeper counted the ships that passed the cape at night and wrote their number in a book.
In the morning the harbour master read the book, counted the ships at the quay, and compared the two numbers.
When they differed, the keeper and the harbour master met on the road between the lighthouse and the harbour.
The road was long, and they talked about the wind, the tide, the price of herring and the ships that had not arrived.
A ship that is late is not lost, said the keeper; a ship that is lost was always late first, said the harbour master.
"""
