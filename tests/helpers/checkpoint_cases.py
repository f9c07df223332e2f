"""Configurations of checkpoints, many of each model type, and specs to paste into them: for tests of whole tables.

No number is a default, and no two numbers of one configuration are equal, so that a reader which takes one for the
other is noticed.
"""

from __future__ import annotations

from typing import Any

from published_configs import spaced

from poscli.checkpoints.architecture import KINDS

Config = dict[str, Any]
FULL, SLIDING, ORIGINAL = "full_attention", "sliding_attention", "original_max_position_embeddings"

# Sizes under the names of each model type: 6 heads of 8 channels, 3 layers.
SIZES: Config = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 99}
NAMES: dict[str, tuple[str, str, str]] = {
    "bloom": ("n_embed", "n_layer", "num_attention_heads"),
    "mpt": ("d_model", "n_layers", "n_heads"),
    "gpt2": ("n_embd", "n_layer", "n_head"),
}


def sizes(model_type: str) -> Config:
    """The smallest config.json of a model type: it says nothing about positions."""
    names = NAMES.get(model_type, ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    return {"model_type": model_type, **dict(zip(names, (48, 3, 6), strict=True)), "vocab_size": 99}


def llama(**keys: Any) -> Config:
    return sizes("llama") | {"max_position_embeddings": 96, "rope_theta": 500.0, "num_key_value_heads": 2} | keys


def scaled(kind: str, **numbers: Any) -> Config:
    return llama(rope_scaling={"rope_type": kind, **numbers})


def ramped(kind: str, **numbers: Any) -> Config:
    """A scaling of twelve pairs, enough for some that lie within a ramp."""
    return scaled(kind, original_max_position_embeddings=256, **numbers) | {
        "head_dim": 24,
        "max_position_embeddings": 1536,
    }


def of(model_type: str, **keys: Any) -> Config:
    return sizes(model_type) | {"max_position_embeddings": 80, "rope_theta": 700.0} | keys


LISTS = {"short_factor": spaced(1, 1.75, 4), "long_factor": spaced(1, 8.5, 4)}
ON = {"use_sliding_window": True, "sliding_window": 20}
MIXED = {"layer_types": [SLIDING, FULL, SLIDING]}
NESTED = {
    FULL: {"rope_type": "yarn", "factor": 5.0, ORIGINAL: 16, "rope_theta": 3000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 60.0},
}

READ: dict[str, Config] = {
    **{f"{name}, bare": sizes(name) for name in KINDS},
    # sizes and lengths under other names
    "a width of heads of its own": llama(head_dim=20),
    "as many heads of keys as of queries": llama(num_key_value_heads=None),
    "bloom with all sizes": sizes("bloom") | {"seq_length": 72},
    "bloom with other names": {"model_type": "bloom", "hidden_size": 40, "n_layer": 2, "n_head": 5, "vocab_size": 77},
    "both names of a width": sizes("bloom") | {"hidden_size": 12, "n_embd": 24},
    "mpt with its bias": sizes("mpt") | {"max_seq_len": 72, "attn_config": {"alibi_bias_max": 5}},
    "falcon with alibi": of("falcon", alibi=True),
    "falcon with rotations": of("falcon", alibi=False, multi_query=False),
    "falcon of the new form": of("falcon", new_decoder_architecture=True, num_kv_heads=3),
    "falcon of the new form without a number": of("falcon", new_decoder_architecture=True),
    "falcon with a window that it does not read": of("falcon", sliding_window=9),
    "gpt2 with its length": sizes("gpt2") | {"n_positions": 72, "n_ctx": 71},
    "opt with its length": of("opt"),
    # rope and its scalings
    "plain": llama(),
    "linear": scaled("linear", factor=2.5),
    "linear of version 3": llama(rope_scaling={"type": "linear", "factor": 3}),
    "dynamic": scaled("dynamic", factor=2.5),
    "yarn": scaled("yarn", factor=6.0, original_max_position_embeddings=16),
    "yarn with its ramp": ramped("yarn", factor=6.0, beta_fast=12, beta_slow=3),
    "yarn with all its numbers": ramped(
        "yarn", factor=5.0, attention_factor=1.3, beta_fast=12, beta_slow=3, truncate=False
    ),
    "yarn with two factors of attention": scaled(
        "yarn", factor=6.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.4
    ),
    "yarn with one factor of attention": scaled("yarn", factor=6.0, original_max_position_embeddings=16, mscale=0.7),
    "yarn by its lengths": scaled("yarn", original_max_position_embeddings=12),
    "yarn with the length at the top": scaled("yarn", factor=4.0) | {ORIGINAL: 32},
    "yarn with the length in both places": scaled("yarn", factor=4.0, **{ORIGINAL: 48}) | {ORIGINAL: 24},
    "yarn that squeezes nothing": scaled(
        "yarn", factor=1, original_max_position_embeddings=96, mscale=2, mscale_all_dim=3
    ),
    "yarn that truncates": ramped("yarn", factor=6.0, truncate=True),
    "llama3": ramped("llama3", factor=7.0, low_freq_factor=1.5, high_freq_factor=12.0),
    "llama3 with defaults": scaled("llama3", factor=7.0),
    "longrope": scaled("longrope", factor=4.0, **LISTS) | {ORIGINAL: 24},
    "longrope by its lengths": scaled("longrope", **LISTS) | {ORIGINAL: 32},
    "longrope with its attention": scaled("su", attention_factor=1.2, original_max_position_embeddings=32, **LISTS),
    "longrope of equal lengths": scaled("longrope", **LISTS) | {ORIGINAL: 96},
    "longrope of a shorter length": scaled("longrope", **LISTS) | {ORIGINAL: 192},
    "parameters of version 5": llama(rope_theta=None)
    | {"rope_parameters": {"rope_type": "linear", "factor": 3.5, "rope_theta": 800.0}},
    "parameters of both versions": scaled("linear", factor=2.0) | {"rope_parameters": {"rope_type": "yarn"}},
    "two names of the type": scaled("linear", factor=2.0, type="dynamic"),
    "a theta within": scaled("linear", factor=2.0, rope_theta=444.0),
    "nothing of rope": llama(rope_theta=None),
    # partial rotations
    "phi": of("phi", num_key_value_heads=3, partial_rotary_factor=0.75),
    "gpt_neox": sizes("gpt_neox") | {"max_position_embeddings": 80, "rotary_emb_base": 300, "rotary_pct": 0.5},
    "gpt_neox of version 5": sizes("gpt_neox")
    | {"rope_parameters": {"rope_theta": 321.0, "partial_rotary_factor": 0.75}},
    "gpt_neox with both names": sizes("gpt_neox") | {"partial_rotary_factor": 0.75, "rotary_pct": 0.5},
    "phi3 with a fraction and lists": of(
        "phi3", partial_rotary_factor=0.5, original_max_position_embeddings=20,
        rope_scaling={"type": "su", "short_factor": [1.0, 1.25], "long_factor": [2.0, 5.0]},
    ),
    # windows and types of layers
    "mistral": of("mistral", num_key_value_heads=3, sliding_window=20),
    "mistral without a window": of("mistral", num_key_value_heads=3, sliding_window=None),
    "mistral with types that it does not read": of("mistral", sliding_window=20, **MIXED),
    "phi3 with a window": of("phi3", sliding_window=20),
    "starcoder2 with a window": of("starcoder2", sliding_window=20),
    "qwen2 with a window": of("qwen2", **ON, max_window_layers=1),
    "qwen2 with a window from layer 28": of("qwen2", **ON, num_hidden_layers=30),
    "qwen2 with types": of("qwen2", **ON, **MIXED),
    "qwen2 without a length of its window": of("qwen2", use_sliding_window=True, max_window_layers=0),
    "qwen2 with its window off": of("qwen2", sliding_window=20, max_window_layers=0),
    "qwen2 with no window": of("qwen2", use_sliding_window=True, sliding_window=None, max_window_layers=0),
    "qwen3 with a window": of("qwen3", **ON, max_window_layers=2, head_dim=12),
    "qwen3 scaled": of(
        "qwen3", head_dim=8, rope_scaling={"rope_type": "yarn", "factor": 5.0, ORIGINAL: 16, "beta_fast": 8}
    ),
    "gemma": of("gemma", num_key_value_heads=1, head_dim=20, sliding_window=9),
    "gemma3": of("gemma3_text", num_hidden_layers=8, head_dim=12, sliding_window=20),
    "gemma3 with a rhythm": of("gemma3_text", head_dim=8, sliding_window=20, sliding_window_pattern=2),
    "gemma3 with types": of("gemma3_text", head_dim=8, sliding_window=20, rope_local_base_freq=60.0, **MIXED),
    "gemma3 scaled": of(
        "gemma3_text", head_dim=8, sliding_window=20, rope_scaling={"rope_type": "linear", "factor": 2.5}, **MIXED
    ),
    "gemma3 of version 5": sizes("gemma3_text")
    | {"head_dim": 8, "max_position_embeddings": 80, "sliding_window": 20, "rope_parameters": NESTED, **MIXED},
    "gemma3 of version 5 without types": of(
        "gemma3_text", head_dim=8, sliding_window=20, rope_theta=None, **MIXED,
        rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 750.0},
    ),
    "smollm3": of("smollm3", num_key_value_heads=3, no_rope_layers=[0, 1, 1]),
    "smollm3 by its interval": of("smollm3", no_rope_layer_interval=2, num_hidden_layers=5),
    "smollm3 with a window": of("smollm3", **ON, no_rope_layers=[0, 1, 1]),
    "smollm3 with types": of("smollm3", **ON, **MIXED, no_rope_layers=[0, 1, 1]),
    "smollm3 with a window of no length": of("smollm3", use_sliding_window=True, no_rope_layers=[0, 1, 1]),
    "smollm3 with a long list": of("smollm3", no_rope_layers=[0, 1, 1, 0, 0]),
    "granite": of("granite", num_key_value_heads=3, sliding_window=20),
    "olmo": of("olmo", num_key_value_heads=3, rope_scaling={"type": "dynamic", "factor": 3.0}),
}  # fmt: skip

# What makes no model, or one that poscli does not know.
REFUSED: dict[str, Config] = {
    "no model type": SIZES,
    "a model type that is no word": {"model_type": 3} | SIZES,
    "an unknown model type": {"model_type": "lama"} | SIZES,
    "another unknown model type": {"model_type": "t5"} | SIZES,
    "no width": {key: value for key, value in llama().items() if key != "hidden_size"},
    "no heads": llama(num_attention_heads=None),
    "no layers": llama(num_hidden_layers=None),
    "no vocabulary": llama(vocab_size=None),
    "a width of text": llama(hidden_size="48"),
    "too wide": llama(hidden_size=2**20 + 1),
    "too many heads": llama(num_attention_heads=2**20 + 1),
    "too many layers": llama(num_hidden_layers=10_001),
    "layers below 1": llama(num_hidden_layers=0),
    "more heads than channels": llama(num_attention_heads=49),
    "no vocabulary at all": llama(vocab_size=True),
    "too long": llama(max_position_embeddings=2**40 + 1),
    "half a token": llama(max_position_embeddings=95.5),
    "a head without channels": llama(head_dim=0),
    "heads of keys of text": llama(num_key_value_heads="2"),
    "heads of keys of falcon": of("falcon", new_decoder_architecture=True, num_kv_heads=-1),
    "theta below 0": llama(rope_theta=-500.0),
    "theta too large": llama(rope_theta=1.1e30),
    "theta of text": llama(rope_theta="500"),
    "theta that is a truth": llama(rope_theta=True),
    "theta of GPT-NeoX": sizes("gpt_neox") | {"rotary_emb_base": 0},
    "local theta": of("gemma3_text", head_dim=8, rope_local_base_freq=0, **MIXED),
    "an infinite fraction": of("phi", partial_rotary_factor=float("inf")),
    "no number": of("phi", partial_rotary_factor=float("nan")),
    "a scaling of text": llama(rope_scaling="yarn"),
    "parameters in a list": llama(rope_parameters=[1]),
    "an unknown scaling": scaled("yarm", factor=2.0),
    "a scaling that is no word": scaled("yarn") | {"rope_scaling": {"rope_type": [1]}},
    "linear without its factor": scaled("linear"),
    "dynamic without its factor": scaled("dynamic", factor=None),
    "llama3 without its factor": scaled("llama3"),
    "a factor of 0": scaled("linear", factor=0),
    "a factor below 1": scaled("yarn", factor=0.5),
    "a length before of 0": scaled("yarn", factor=2.0, original_max_position_embeddings=0),
    "a wrong beta": scaled("yarn", factor=2.0, beta_fast="x"),
    "a wrong mscale": scaled("yarn", factor=2.0, mscale=-1, mscale_all_dim=1),
    "a wrong factor of attention": scaled("yarn", factor=2.0, attention_factor=-1),
    "wrong bounds of llama3": scaled("llama3", factor=2.0, low_freq_factor=0),
    "no lists": scaled("longrope", factor=2.0),
    "a short list": scaled("longrope", factor=2.0, short_factor=[1.0] * 4, long_factor=[1.0] * 3),
    "a list with text": scaled("longrope", factor=2.0, short_factor=[1.0, "1", 1.0, 1.0], long_factor=[1.0] * 4),
    "a list for a fraction": of("phi3", partial_rotary_factor=0.5, rope_scaling={"type": "su", **LISTS}),
    "types of other layers": of("gemma3_text", head_dim=8, layer_types=[FULL, SLIDING]),
    "types in no list": of("qwen2", **ON, layer_types="all"),
    "an unknown type": of("smollm3", **ON, layer_types=[FULL, "chunked_attention", FULL]),
    "a window of 0": of("gemma3_text", head_dim=8, sliding_window=0),
    "a window of text": of("mistral", sliding_window="20"),
    "a rhythm of 0": of("gemma3_text", head_dim=8, sliding_window_pattern=0),
    "rotations of other layers": of("smollm3", no_rope_layers=[1, 0]),
    "rotations in no list": of("smollm3", no_rope_layers={"0": 1}),
    "an interval of 0": of("smollm3", no_rope_layer_interval=0),
    "a cap on scores": of("gemma3_text", head_dim=8, attn_logit_softcapping=50.0),
    "scores in both directions": of("gemma3_text", head_dim=8, use_bidirectional_attention=True),
    "a bias of mpt": sizes("mpt") | {"attn_config": {"alibi_bias_max": 0}},
    "attention of mpt in a list": sizes("mpt") | {"attn_config": [8]},
}

TOP = {ORIGINAL: 24}  # at the top of config.json
LONG = {"rope_type": "longrope", "factor": 4.0, **LISTS}

# Configurations with something to say about: the faults that lie in config.json itself.
FAULTY: dict[str, Config] = {
    # keys
    "keys that nobody reads": scaled("yarn", factor=4.0, original_max_position_embeddings=24, beta_fats=9, zzz=None),
    "keys of another scaling": scaled("linear", factor=4.0, beta_fast=9, original_max_position_embeddings=24),
    "lists of another scaling": scaled(
        "llama3", factor=4.0, original_max_position_embeddings=24, low_freq_factor=1, high_freq_factor=4, mscale=2,
        **LISTS,
    ),
    "keys of YaRN's authors": scaled(
        "yarn", factor=4.0, original_max_position_embeddings=24, attn_factor=2, extrapolation_factor=1, finetuned=True
    ),
    "dual chunks": llama() | {"dual_chunk_attention_config": {"original_max_position_embeddings": 24}},
    "a factor without a scaling": scaled("default", factor=4.0),
    "misspelt keys": sizes("llama") | {"rope_tetha": 5.0, "max_position_embedings": 9, "slidding_window": 5},
    "misspelt beside the right one": llama() | {"rope_thetas": 5.0, "max_positions_embeddings": 7},
    "keys of other model types": llama() | {
        "rotary_emb_base": 7, "rotary_pct": 0.5, "partial_rotary_factor": 0.25, "rope_local_base_freq": 9.0,
        "no_rope_layers": [1, 0, 1], "sliding_window": 5, "alibi": True, **MIXED,
    },
    "keys that ask for nothing": llama()
    | {"rotary_pct": None, "no_rope_layers": False, "sliding_window": 0, "layer_types": [FULL] * 3},
    "two thetas of GPT-NeoX": of("gpt_neox", rotary_emb_base=300),
    "theta of GPT-NeoX under another name": of("gpt_neox"),
    "two types that differ": scaled("yarn", factor=4.0, original_max_position_embeddings=24, type="linear"),
    "two types that agree": scaled("longrope", factor=4.0, type="su", **LISTS) | TOP,
    "two scalings of one type": scaled("linear", factor=2.0)
    | {"rope_parameters": {"type": "linear", "factor": 3.0, "rope_theta": 7.0}},
    "two scalings alike": scaled("linear", factor=2.0)
    | {"rope_parameters": {"type": "linear", "factor": 2.0, "rope_theta": 7.0}},
    # numbers
    "factors of 1": scaled("dynamic", factor=1.0) | {"rope_parameters": {"rope_type": "llama3", "factor": 1}},
    "a linear factor of 1": scaled("linear", factor=1),
    "lists of 1": llama(rope_scaling=LONG | {"short_factor": [1.0] * 4, "long_factor": [1] * 4}) | TOP,
    "equal lists": llama(rope_scaling=LONG | {"short_factor": LISTS["long_factor"]}) | TOP,
    "a factor of attention of 1": scaled(
        "yarn", factor=4.0, original_max_position_embeddings=24, attention_factor=1.0
    ),
    "equal factors of attention": scaled(
        "yarn", factor=4.0, original_max_position_embeddings=24, mscale=0.7, mscale_all_dim=0.7
    ),
    "a cancelled factor by lengths": scaled("yarn", original_max_position_embeddings=24, attention_factor=1),
    "the second of two factors alone": scaled(
        "yarn", factor=4.0, original_max_position_embeddings=24, mscale_all_dim=0.7
    ),
    "no length before yarn": scaled("yarn", factor=4.0),
    "no length before longrope": llama(rope_scaling=LONG),
    "a factor far too large": scaled("yarn", factor=9.0, original_max_position_embeddings=24),
    "a factor at the bound": scaled("yarn", factor=8.0, original_max_position_embeddings=24),
    "a factor at the other bound": scaled("yarn", factor=2.0, original_max_position_embeddings=24),
    "a factor far too small": llama(rope_scaling=LONG | {"factor": 1.5}) | TOP,
    "a longer text without a scaling": llama() | TOP,
    "a longer text with a scaling that is none": scaled("default", original_max_position_embeddings=32),
    "the length before llama3": scaled(
        "llama3", factor=4.0, original_max_position_embeddings=96, low_freq_factor=1, high_freq_factor=4
    ),
    "the length before su": llama(rope_scaling=LONG | {"rope_type": None, "type": "su"}) | {ORIGINAL: 96},
    "the length before yarn": scaled("yarn", factor=2.5, original_max_position_embeddings=96),
    "a dynamic scaling": scaled("dynamic", factor=1.5),
    # layers
    "scaled layers with a window": of("gemma3_text", head_dim=8, sliding_window=20, **MIXED)
    | {"rope_parameters": {SLIDING: NESTED[FULL], FULL: NESTED[FULL]}},
    "parameters of no layer": of("gemma3_text", head_dim=8, sliding_window=20, layer_types=[FULL] * 3)
    | {"rope_parameters": NESTED},
    "parameters by layers of llama": llama() | {"rope_parameters": NESTED},
    "a scaling of nothing": of("falcon", alibi=True, rope_scaling={"type": "linear", "factor": 3.0}),
    "alibi without a scaling": of("falcon", alibi=True, rope_scaling={"type": "default"}),
    # windows
    "a window as long as the text": of("mistral", sliding_window=80),
    "a window that some layers have": of("gemma3_text", head_dim=8, sliding_window=99, **MIXED),
    "a window that is off": of("qwen3", head_dim=8, sliding_window=79),
    "a window that is off and longer": of("qwen2", sliding_window=80),
    "a window of SmolLM3 that is off": of("smollm3", sliding_window=20, use_sliding_window=None, max_window_layers=2),
    "a window that is missing": of("qwen2", **MIXED),
    "a window of no length": of("smollm3", use_sliding_window=True, **MIXED),
    "a list that is too long": of("smollm3", no_rope_layers=[1, 0, 1, 0]),
    # model types
    "mpt with norms of queries and keys": sizes("mpt") | {"max_seq_len": 64, "attn_config": {"qk_ln": True}},
    "mpt that sees a prefix": sizes("mpt") | {"max_seq_len": 64, "attn_config": {"prefix_lm": True}},
    "quantised by gptq": llama(quantization_config={"quant_method": "gptq", "bits": 4}),
    "quantised by bitsandbytes": llama(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "a length beyond belief": llama(max_position_embeddings=10**8),
    "mpt without alibi": sizes("mpt") | {"attn_config": {"alibi": False}},
    "mpt with other slopes": sizes("mpt") | {"max_seq_len": 64, "attn_config": {"alibi": True, "alibi_bias_max": 6}},
    "falcon with alibi, long": of("falcon", alibi=True, max_position_embeddings=3000),
}  # fmt: skip

# Limits of the tokenizer on a model of 96 tokens, scaled or not.
LIMITS: tuple[tuple[Config, int], ...] = (
    (llama(), 95), (llama(), 96), (llama(), 384), (llama(), 385), (scaled("linear", factor=2.5), 960),
    (scaled("linear", factor=2.5), 961), (scaled("linear", factor=2.5), 50), (READ["yarn"], 1200),
)  # fmt: skip

# Configurations whose keys versions of transformers read from other places.
MISPLACED: dict[str, Config] = {
    "gpt2 without a scale": sizes("gpt2") | {"scale_attn_weights": False},
    "gpt2 with a scale for each layer": sizes("gpt2") | {"scale_attn_by_inverse_layer_idx": True},
    "parameters of version 5": READ["parameters of version 5"],
    "theta within, and none at the top": llama(
        rope_theta=None, rope_scaling={"rope_type": "linear", "factor": 2.0, "rope_theta": 444.0}
    ),
    "theta within, and another at the top": scaled("linear", factor=2.0, rope_theta=444.0),
    "theta within, and the same at the top": scaled("linear", factor=2.0, rope_theta=500.0),
    "the length before longrope within": llama(rope_scaling=LONG | TOP),
    "the length before longrope in both places": llama(rope_scaling=LONG | TOP) | TOP,
    "the length before yarn at the top": scaled("yarn", factor=4.0) | TOP,
    "the length before yarn in both places": scaled("yarn", factor=4.0, **TOP) | TOP,
}

WINDOWED = "rope(base=700)+window(20)"

# Specs to paste into some of the configurations.
PASTED: dict[str, tuple[str, ...]] = {
    "plain": (
        "rope(base=500)", "rope(base=9000)", "rope-linear(base=500)", "rope-linear(factor=1.5, base=300)",
        "rope-ntk(base=500)", "rope-dynamic(base=500)", "yarn(base=500)",
        "yarn(factor=5, beta_fast=16, beta_slow=2, truncate=false, base=500)", "yarn(factor=3, original=64, base=500)",
        "yarn(attention=1.05, base=500)", "yarn(beta_fast=20, base=400)", "yarn(ramp=turns, base=500)",
        "llama3(factor=5, low=2, high=6, original=48, base=500)",
        "longrope(start=ntk, original=48, attention=1.4, base=500)", "longrope(keep_first=2, base=500)",
        "self-extend(base=500)", "rerope(base=500)", "none", "alibi", "rope(base=500)+window(40)",
        "rope(base=500)+window", "rope(base=500)+interpolated(3)", "rope(base=500)+window|rope(base=500)",
        "rope(base=500)|rope(base=600)", "rope(fraction=0.5, base=500)", "rope(layout=interleaved, base=500)",
        "sink(2)+window(40)+rope(base=500)",
    ),
    "linear": ("rope(base=500)", "rope-linear(factor=2.5, base=500)", "yarn(base=500)"),
    "yarn": ("rope(base=500)", "yarn(factor=6, original=16, base=500)"),
    "llama3": ("rope(base=500)", "llama3(factor=7, low=1.5, high=12, original=256, base=500)", "yarn(base=500)"),
    "longrope": ("longrope(original=24, base=500)", "rope(base=500)"),
    "dynamic": ("rope-dynamic(factor=2.5, base=500)", "rope-dynamic(factor=4, base=500)", "rope(base=500)"),
    "parameters of version 5": ("rope(base=800)", "yarn(base=800)"),
    "yarn with the length at the top": ("yarn(original=32, base=500)", "rope-linear(base=500)"),
    "phi3 with a fraction and lists": (
        "longrope(original=20, base=700, fraction=0.5)", "longrope(original=20, attention=2, base=700, fraction=0.5)",
        "rope(base=700, fraction=0.5)", "yarn(base=700, fraction=0.5)",
    ),
    "phi": ("rope-linear(base=700, fraction=0.75)", "rope-ntk(base=700, fraction=0.75)", "rope(base=700)"),
    "gpt_neox": ("rope-linear(base=300, fraction=0.5)", "yarn(base=300, fraction=0.5)"),
    "mistral": (WINDOWED, "rope-linear(base=700)+window(20)", "rope(base=700)", "rope(base=700)+window(40)"),
    "mistral without a window": ("rope(base=700)+window(40)",),
    "qwen2, bare": ("rope+window(32)", "yarn"),
    "qwen2 with a window": ("rope(base=700)|yarn(base=700)+window(20)|yarn(base=700)+window(20)",),
    "qwen3 scaled": ("yarn(base=700, factor=5, beta_fast=8, original=16)",),
    "gemma3 with types": (
        "rope(base=60)+window(20)|rope(base=700)", "rope(base=60)+window(20)|yarn(base=700)",
        "yarn(base=60)+window(20)|yarn(base=700)", "rope(base=90)+window(20)|rope-linear(base=700)",
        "rope(base=60)+window(20)|none",
    ),
    "gemma3_text, bare": ("rope+window(4096)", "yarn(factor=2)+window(4096)"),
    "gemma3 of version 5": ("rope(base=60)+window(20)|rope(base=3000)",),
    "smollm3": ("none|yarn(base=700)|yarn(base=700)", "none|yarn(base=700)|rope(base=700)"),
    "olmo": ("rope-linear(base=700)", "yarn(base=700)", "llama3(base=700)"),
    "falcon with rotations": ("rope-linear(base=700)", "rope(base=700)+window(30)"),
    "falcon with alibi": ("alibi(before_scale=true)", "alibi"),
    "bloom with all sizes": ("alibi", "alibi+interpolated", "alibi+window(30)", "kerple-log"),
    "mpt with its bias": ("alibi(most=5)", "alibi"),
    "gpt2 with its length": ("learned(beyond=interpolate)",),
}  # fmt: skip
