"""The command line of vLLM: keys of config.json that are replaced when the model is loaded.

vLLM reads configurations through transformers 5, so that the keys are those of version 5. Its documentation calls them
`--hf-overrides` with `rope_parameters`; `--rope-scaling` is gone.
"""

from __future__ import annotations

import json
import shlex

from poscli.checkpoints.fields import LENGTH
from poscli.checkpoints.paste.asked import Asked
from poscli.checkpoints.paste.snippet import Inexpressible, Keys
from poscli.checkpoints.paste.transformers import version_5


def command(asked: Asked, model: str) -> tuple[str, tuple[str, ...]]:
    """The command that serves a model, and notes; Inexpressible if vLLM computes something else."""
    keys, notes = overrides(asked)
    replaced = f" --hf-overrides {shlex.quote(json.dumps(keys))}" if keys else ""
    return f"vllm serve {shlex.quote(model)}{replaced} --max-model-len {asked.target}", notes


def overrides(asked: Asked) -> tuple[Keys, tuple[str, ...]]:
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
    rope = keys["rope_parameters"].get(asked.main, keys["rope_parameters"])
    return _fitting(rope["rope_type"], keys), _checked(asked, rope)


def _fitting(kind: str, keys: Keys) -> Keys:
    """The keys without the one that vLLM multiplies by the factor once more, for the length that it allows."""
    return {key: value for key, value in keys.items() if kind != "linear" or key != "max_position_embeddings"}


def _checked(asked: Asked, rope: Keys) -> tuple[str, ...]:
    """Notes on where vLLM differs; Inexpressible if it differs at the target."""
    kind, attention = rope["rope_type"], rope.get("attention_factor")
    if kind == "dynamic":
        factor = f"{asked.target / asked.architecture.length:g}"
        raise Inexpressible(
            f"vLLM's dynamic scaling is fixed when the model is loaded and does not follow the input: rope-ntk(factor="
            f"{factor}) is the nearest that it has."
        )
    if kind == "longrope":
        if attention is not None:
            raise Inexpressible("vLLM computes LongRoPE's factor on cos and sin itself, and this one is another.")
        original = rope["original_max_position_embeddings"]
        return (f"Above {original} tokens of --max-model-len vLLM uses long_factor for short inputs as well.",)
    return ("Older versions of vLLM do not read attention_factor.",) if attention is not None else ()
