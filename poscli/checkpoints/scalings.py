"""What a config.json says about rope: its theta, its scaling and the share of channels, as a spec of poscli.

transformers 4 writes `rope_theta` and `rope_scaling`; version 5 writes both as `rope_parameters`, for models of several
thetas one for each type of layer. GPT-NeoX has `rotary_emb_base` and `rotary_pct`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from poscli.checkpoints.values import Config, positive_number, section, whole
from poscli.system.errors import DataError, UsageError, near

ORIGINAL = "original_max_position_embeddings"  # the key of the trained length before a scaling
Options = dict[str, Any]  # of a spec


@dataclass(frozen=True)
class Rope:
    """Rope as transformers takes it where config.json is silent."""

    theta: float = 10000.0
    fraction: float = 1.0
    layout: str = "half"  # or interleaved; config.json never says
    scaling: Mapping[str, Any] = field(default_factory=dict)


DEFAULT = Rope()


def rope_of(config: Config, default: Rope, layer_type: str, local_theta: float | None) -> dict[str, Any]:
    """The parameters of a layer's rope in the names of transformers 5, from whichever version wrote config.json.

    `local_theta` is given for a layer that has a theta of its own and no scaling.
    """
    parameters = section(config, "rope_parameters")
    nested = parameters.get(layer_type)
    if isinstance(nested, dict):
        rope = dict(nested)
    elif local_theta is not None:
        rope = {"rope_theta": positive_number(config, "rope_local_base_freq", local_theta)}
    else:
        flat = {key: value for key, value in parameters.items() if not isinstance(value, dict)}
        silent = not {"rope_scaling", "rope_parameters"} & {*config}
        # Both versions of transformers prefer `rope_scaling`.
        rope = dict(default.scaling) if silent else section(config, "rope_scaling") or flat
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    top = positive_number(config, "rope_theta", positive_number(config, "rotary_emb_base", default.theta))
    if rope.get("rope_theta") is None:
        rope["rope_theta"] = top
    if rope.get("partial_rotary_factor") is None:
        fraction = positive_number(config, "rotary_pct", default.fraction)
        rope["partial_rotary_factor"] = positive_number(config, "partial_rotary_factor", fraction)
    if config.get(ORIGINAL) is not None:  # Phi-3 has it beside the scaling
        rope[ORIGINAL] = config[ORIGINAL]
    return rope


def spec_of_rope(
    rope: dict[str, Any], head_width: int, length: int, trained: int, layout: str
) -> tuple[str, dict[str, list[float]]]:
    """The spec of a layer with these parameters, and LongRoPE's two lists of a factor for each pair, by name.

    `length` is what config.json states, to which its scalings refer, and `trained` the length that specs refer to.

    UsageError for a scaling that poscli does not know, DataError for one whose numbers are missing or wrong.
    """
    kind = rope["rope_type"]
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise UsageError(f"config.json has the rope scaling {kind!r}: {near(str(kind), SCALINGS)}")
    name, options_of = SCALINGS[kind]
    options = {"base": positive_number(rope, "rope_theta", DEFAULT.theta), **options_of(rope, length)}
    if (kind == "dynamic" and length != trained) or (kind == "linear" and length < trained):
        options["original"] = length  # the other scalings write it out
    fraction = positive_number(rope, "partial_rotary_factor", DEFAULT.fraction)
    if layout != DEFAULT.layout:
        options["layout"] = layout
    if fraction != DEFAULT.fraction:
        options["fraction"] = fraction
    written = {key: str(value).lower() if isinstance(value, bool) else value for key, value in options.items()}
    spec = f"{name}({', '.join(f'{key}={value}' for key, value in written.items())})"
    return spec, _factors(rope, int(head_width * fraction)) if name == SCALINGS["longrope"][0] else {}


def _by_factor(rope: dict[str, Any], length: int) -> Options:
    return {"factor": _factor(rope)}


def _linear(rope: dict[str, Any], length: int) -> Options:
    return _by_factor(rope, length) | ({"original": _original(rope, length)} if rope.get(ORIGINAL) else {})


def _yarn(rope: dict[str, Any], length: int) -> Options:
    original = _original(rope, length)
    factor = _factor(rope, length / original)
    options: Options = {"factor": factor, "original": original, **_yarn_attention(rope, factor)}
    options |= {key: positive_number(rope, key, default) for key, default in (("beta_fast", 32), ("beta_slow", 1))}
    return options | ({"truncate": False} if rope.get("truncate") is False else {})


def _yarn_attention(rope: dict[str, Any], factor: float) -> Options:
    """The factor on cos and sin that is given, or that of DeepSeek's two numbers.

    Without either, and where the number is the same, it is that of YaRN's paper, which the encoding computes. It is not
    written out, because it would stay where another factor is put in the place of the checkpoint's own.
    """
    if rope.get("attention_factor") is not None:
        attention = positive_number(rope, "attention_factor", 1.0)
        return {} if math.isclose(attention, grown_by_yarn(factor), rel_tol=1e-9) else {"attention": attention}
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        mscale, of_all = (positive_number(rope, key, 1.0) for key in ("mscale", "mscale_all_dim"))
        return {"attention": grown_by_yarn(factor, mscale) / grown_by_yarn(factor, of_all)}
    return {}


def grown_by_yarn(factor: float, times: float = 1.0) -> float:
    """The factor on cos and sin by the formula of YaRN's paper, which DeepSeek multiplies by `times`."""
    return 0.1 * times * math.log(factor) + 1 if factor > 1 else 1.0


def grown_by_longrope(factor: float, original: int) -> float:
    """The factor on cos and sin by the formula of LongRoPE; `original` is the trained length before the scaling."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _llama3(rope: dict[str, Any], length: int) -> Options:
    low, high = positive_number(rope, "low_freq_factor", 1), positive_number(rope, "high_freq_factor", 4)
    return {"factor": _factor(rope), "original": _original(rope, length), "low": low, "high": high}


def _longrope(rope: dict[str, Any], length: int) -> Options:
    original = _original(rope, length, least=2)  # the formula divides by its logarithm
    factor = _factor(rope, length / original)
    options: Options = {"factor": max(1.0, factor), "original": original}
    if rope.get("attention_factor") is not None:
        options["attention"] = positive_number(rope, "attention_factor", 1.0)
    return options


# By the `rope_type` of transformers: the encoding of poscli, and its options.
SCALINGS: dict[str, tuple[str, Callable[[dict[str, Any], int], Options]]] = {
    "default": ("rope", lambda rope, length: {}),
    "linear": ("rope-linear", _linear),
    "dynamic": ("rope-dynamic", _by_factor),
    "yarn": ("yarn", _yarn),
    "llama3": ("llama3", _llama3),
    "longrope": ("longrope", _longrope),
    "su": ("longrope", _longrope),  # its name in early Phi-3 checkpoints
}


def _factor(rope: dict[str, Any], default: float | None = None) -> float:
    if rope.get("factor") is None and default is None:
        raise DataError(f"config.json has the rope scaling {rope['rope_type']!r} without its factor")
    return positive_number(rope, "factor", default or 1.0)


def _original(rope: dict[str, Any], length: int, least: int = 1) -> int:
    return whole(rope, (ORIGINAL,), length, least=least)


def _factors(rope: dict[str, Any], width: int) -> dict[str, list[float]]:
    """LongRoPE's two lists of a factor for each pair."""
    lists: dict[str, list[float]] = {}
    for name in ("short_factor", "long_factor"):
        factors = rope.get(name)
        if not isinstance(factors, list) or len(factors) != width // 2:
            raise DataError(f"config.json has the rope scaling longrope, whose {name} must list {width // 2} numbers")
        lists[name] = [positive_number({name: factor}, name, 1.0) for factor in factors]
    return lists
