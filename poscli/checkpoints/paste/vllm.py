"""The command line of vLLM: keys of config.json that are replaced when the model is loaded.

vLLM reads configurations through transformers 5, so that the keys are those of version 5. Its documentation calls them
`--hf-overrides` with `rope_parameters`; `--rope-scaling` is gone.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable

from poscli.checkpoints.fields import LENGTH
from poscli.checkpoints.paste.asked import Asked
from poscli.checkpoints.paste.snippet import Inexpressible, Keys
from poscli.checkpoints.paste.transformers import version_5

Overrides = tuple[Keys, tuple[str, ...]]  # keys of config.json, and notes


def command(asked: Asked, model: str) -> tuple[str, tuple[str, ...]]:
    """The command that serves a model, and notes; Inexpressible if vLLM computes something else."""
    keys, notes = overrides(asked)
    replaced = f" --hf-overrides {shlex.quote(json.dumps(keys))}" if keys else ""
    return f"vllm serve {shlex.quote(model)}{replaced} --max-model-len {asked.target}", notes


def overrides(asked: Asked) -> Overrides:
    """The keys that are replaced, and notes."""
    if asked.window is not None:
        raise Inexpressible(
            f'vLLM has no option for a window: give "truncate_prompt_tokens": {asked.window} in the request, which '
            "keeps the last tokens of the prompt."
        )
    if not asked.ropes:
        name = next((name for name in LENGTH if name in asked.config), None)
        return ({name: asked.target} if name else {}), ()
    keys = {key: value for key, value in version_5(asked).items() if value is not None}
    ropes = keys["rope_parameters"]
    rope = ropes.get(asked.main, ropes)
    keys["max_position_embeddings"] = asked.target
    if rope["rope_type"] in SPECIAL:
        return SPECIAL[rope["rope_type"]](asked, keys, rope)
    return keys, ()


def _linear(asked: Asked, keys: Keys, rope: Keys) -> Overrides:
    """The length that vLLM allows is the longest promised one times the factor."""
    return keys | {"max_position_embeddings": math.ceil(asked.target / rope["factor"])}, ()


def _dynamic(asked: Asked, keys: Keys, rope: Keys) -> Overrides:
    factor = f"{asked.target / asked.architecture.length:g}"
    raise Inexpressible(
        "vLLM's dynamic scaling is fixed when the model is loaded and does not follow the input: rope-ntk(factor="
        f"{factor}) is the nearest that it has."
    )


def _yarn(asked: Asked, keys: Keys, rope: Keys) -> Overrides:
    allowed = rope["factor"] * rope["original_max_position_embeddings"]
    if allowed < asked.target:
        raise Inexpressible(f"vLLM allows inputs of factor times original, {allowed:g} tokens: give a larger factor.")
    return keys, ("Older versions of vLLM do not read attention_factor.",) if "attention_factor" in rope else ()


def _longrope(asked: Asked, keys: Keys, rope: Keys) -> Overrides:
    """The factor on cos and sin has other names; without them vLLM takes it from the promised length."""
    original = rope["original_max_position_embeddings"]
    attention = rope.pop("attention_factor", None) or math.sqrt(1 + math.log(rope["factor"]) / math.log(original))
    rope |= {"short_mscale": attention, "long_mscale": attention}
    return keys, (f"Above {original} tokens of --max-model-len vLLM uses long_factor for short inputs as well.",)


# By the `rope_type`: what vLLM wants to be told otherwise than transformers.
SPECIAL: dict[str, Callable[[Asked, Keys, Keys], Overrides]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
}
