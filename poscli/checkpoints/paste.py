"""What to paste into transformers, vLLM and llama.cpp to run a checkpoint under another encoding.

transformers takes keys of config.json, whose versions 4 and 5 have other names for rope. vLLM reads configurations
through transformers 5, so that the keys are those of version 5; its documentation calls them `--hf-overrides` with
`rope_parameters`, and `--rope-scaling` is gone. llama.cpp has options for linear scaling, YaRN and other bases; other
factors lie in GGUF files.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from poscli.checkpoints.architecture import (
    DUAL_CHUNKS,
    LENGTH,
    LOCAL,
    Architecture,
    RotaryKind,
    Types,
    everywhere,
    from_max_window_layers,
    where_used,
)
from poscli.checkpoints.gguf import SUFFIX
from poscli.checkpoints.scalings import ORIGINAL, grown_by_longrope
from poscli.checkpoints.values import Config
from poscli.checkpoints.wanted import EVERY_LAYER, Inexpressible, Keys, Wanted, original_of, rope_parameters, wanted_of
from poscli.specs.grammar import Leaf

LENGTH_KEY = "max_position_embeddings"
ByModelType = dict[str, tuple[str, ...]]
# The scalings that a model type takes in transformers, where its configuration refuses all others.
ONLY: ByModelType = {"phi3": ("default", "longrope")}
ONLY_IN_4: ByModelType = {"olmo": ("default", "linear", "dynamic"), "olmo2": ("default", "linear", "dynamic")}
# Model types whose configuration in version 4 wants exactly these keys of a scaling, besides its type.
EXACT_IN_4: ByModelType = {"olmo": ("factor",), "olmo2": ("factor",), "phi3": ("short_factor", "long_factor")}
# What says which layers have a window, and the keys with which it says that all have it.
WINDOWS: dict[Types, Keys] = {
    everywhere: {},
    where_used: {"use_sliding_window": True},
    from_max_window_layers: {"use_sliding_window": True, "max_window_layers": 0},
}
GROUPED = "self-extend"
GROWING = "rope-dynamic"  # whose base grows with the text; the file of a model with this scaling has plain rope
STALE = (
    "While it writes, keys in the cache keep the rotation of the shorter text; `poscli extrapolate --model ... --as "
    "rope-dynamic --baseline served` measures what that costs."
)
SERVER, COMPLETION = "llama-server", "llama-completion"
NOT_IN_LLAMA_CPP = ("flex_olmo", "helium", "ministral")  # model types, as far as known
# Model types whose windows llama.cpp computes; it leaves out those of the others.
WINDOWS_IN_LLAMA_CPP = ("cohere2", "exaone4", "gemma3_text", "gpt_oss", "olmo3")
# By the scaling whose factors its converter writes into the file, the model types for which it does.
FACTORS_IN_LLAMA_CPP = {
    "llama3": ("llama", "mistral", "mixtral", "arcee", "smollm3", "apertus"), "longrope": ("phi3",),
}  # fmt: skip
GGUF_NAMES = {
    "mistral": "llama", "mixtral": "llama", "phi": "phi2", "gpt_neox": "gptneox", "gemma3_text": "gemma3",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "cohere": "command-r", "glm": "chatglm", "gpt_oss": "gpt-oss",
    "olmo3": "olmo2",
}  # fmt: skip  # of model types; the names of the others are the same


@dataclass(frozen=True)
class Snippet:
    """What to paste for one program. Without a text, `reason` says why it cannot be done there."""

    runtime: str  # the program, such as "vLLM"
    action: str = ""  # what to do with the text
    text: str = ""
    notes: tuple[str, ...] = ()
    reason: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)  # of config.json, where the text consists of them


# What a program needs, what it loads the model by, and the commit of a repository of the hub, else "".
Writer = Callable[[Wanted, str, str], Snippet]


# ---- transformers


def transformers_5(wanted: Wanted) -> Keys:
    """Keys of a config.json for transformers 5: `rope_parameters`, nested by type of layer if these have own thetas."""
    ropes = {type_: rope_parameters(wanted, type_) for type_ in wanted.ropes}
    rope = ropes[wanted.main]
    _refuse_types(wanted, ONLY, rope["rope_type"], "transformers")
    keys: Keys = {"rope_parameters": ropes.get(EVERY_LAYER, ropes)}
    keys |= _original_beside(
        wanted, rope, always=wanted.architecture.model_type == "phi3" or rope["rope_type"] == "llama3"
    )
    stale = {"rope_scaling": None} if wanted.config.get("rope_scaling") else {}  # it would come first
    return keys | _head_dim(wanted, "mixtral") | longest(wanted, rope) | stale | window(wanted)


def transformers_4(wanted: Wanted) -> Keys:
    """Keys of a config.json for transformers 4: `rope_scaling` and `rope_theta`."""
    rope = rope_parameters(wanted, wanted.main)
    kind, model_type = rope["rope_type"], wanted.architecture.model_type
    _refuse_types(wanted, ONLY | ONLY_IN_4, kind, "transformers 4")
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    if kind != "default" and model_type in EXACT_IN_4:
        if "attention_factor" in scaling:
            raise Inexpressible(f"Models of type {model_type} in transformers 4 take no factor on cos and sin.")
        scaling = {"type": kind} | {key: scaling[key] for key in EXACT_IN_4[model_type]}
    keys: Keys = {"rope_scaling": None if kind == "default" else scaling, "rope_theta": rope["rope_theta"]}
    if model_type == "gpt_neox":
        keys["rotary_emb_base"] = rope["rope_theta"]  # version 4 reads this one, and writes both
    if "partial_rotary_factor" in rope:
        keys["rotary_pct" if model_type == "gpt_neox" else "partial_rotary_factor"] = rope["partial_rotary_factor"]
    keys |= _head_dim(wanted, "mistral", "mixtral")
    if LOCAL in wanted.ropes:
        local = rope_parameters(wanted, LOCAL)
        if local["rope_type"] != "default":
            raise Inexpressible("transformers 4 has no key for a scaling of the layers with a window.")
        if model_type == "gemma3_text":
            keys["rope_local_base_freq"] = local["rope_theta"]
    keys |= _original_beside(wanted, rope, always=kind in FACTORS_IN_LLAMA_CPP)  # whose converter reads it there alone
    stale = {"rope_parameters": None} if wanted.config.get("rope_parameters") else {}
    return keys | longest(wanted, rope) | stale | window(wanted)


def _head_dim(wanted: Wanted, *model_types: str) -> Keys:
    """`head_dim`, without which models of these types cannot compute scalings."""
    missing = wanted.architecture.model_type in model_types and wanted.config.get("head_dim") is None
    return {"head_dim": wanted.architecture.head_width} if missing else {}


def longest(wanted: Wanted, rope: Keys) -> Keys:
    """`max_position_embeddings`, which two scalings take for a part of their formula.

    Dynamic scaling begins at this length. Version 4 takes it for YaRN's and LongRoPE's factor times `original...`.
    """
    tokens = wanted.target
    if rope["rope_type"] == "dynamic":
        tokens = original_of(dict(wanted.ropes[wanted.main].options), wanted)
    elif rope["rope_type"] in ("yarn", "longrope"):
        tokens = max(1, math.ceil(round(rope["factor"] * rope[ORIGINAL], 6)))
    return {LENGTH_KEY: tokens}


def window(wanted: Wanted) -> Keys:
    """The keys of a window on all layers, for a model type whose code has one."""
    if wanted.window is None:
        return {}
    model_type, kind = wanted.architecture.model_type, wanted.architecture.kind
    if not isinstance(kind, RotaryKind) or kind.types not in WINDOWS:
        raise Inexpressible(
            f"Models of type {model_type} have no key for a window: cut the input to its last {wanted.window} tokens."
        )
    keys = WINDOWS[kind.types] | {"sliding_window": wanted.window}
    typed = "layer_types" in wanted.config or model_type.startswith("qwen")
    return keys | ({"layer_types": [LOCAL] * len(wanted.architecture.layers)} if typed else {})


def _original_beside(wanted: Wanted, rope: Keys, *, always: bool) -> Keys:
    """`original_max_position_embeddings` beside the scaling, where the code looks there first."""
    return {ORIGINAL: rope[ORIGINAL]} if ORIGINAL in rope and (always or ORIGINAL in wanted.config) else {}


def _refuse_types(wanted: Wanted, only: ByModelType, kind: str, runtime: str) -> None:
    allowed = only.get(wanted.architecture.model_type)
    if allowed and kind not in allowed:
        others = " or ".join(allowed[1:])
        raise Inexpressible(
            f"Models of type {wanted.architecture.model_type} in {runtime} take only the scaling {others}, not {kind}."
        )


def in_config(runtime: str, keys_of_rope: Callable[[Wanted], Keys]) -> Writer:
    """A writer of keys for the config.json of a version of transformers.

    `keys_of_rope` are the keys for a model with rotations; those of other models are the same in every version.
    """

    def write(wanted: Wanted, model: str, revision: str) -> Snippet:
        if wanted.ropes:
            keys = keys_of_rope(wanted)
        else:
            keys = {"max_seq_len": wanted.target} if "max_seq_len" in wanted.config else {}
            keys |= window(wanted)
        if not keys:
            return Snippet(runtime, notes=("Nothing to change: the model takes inputs of any length.",))
        # A line for each key, so that lists of many numbers stay short.
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in keys.items())
        main = wanted.ropes[wanted.main] if wanted.ropes else None
        notes = (STALE,) if main is not None and main.name == GROWING else ()
        of = " of the checkpoint that the file was converted from" if model.endswith(SUFFIX) else ""
        return Snippet(runtime, f"merge into config.json{of}", f"{{\n{lines}\n}}", notes, keys=keys)

    return write


def _nearest_fixed(wanted: Wanted) -> str:
    """What a program has that cannot scale with the length of the input, as the end of a sentence."""
    return f"rope-ntk(factor={wanted.target / wanted.architecture.length:g}) is the nearest that it has."


# ---- vLLM

# Keys beside `max_position_embeddings` of which vLLM takes the least, or the first, as the longest input.
LIMITS_OF_VLLM = ("model_max_length", "max_sequence_length", "max_seq_length", "seq_length", "seq_len")


def vllm(wanted: Wanted, model: str, revision: str) -> Snippet:
    """The command of vLLM that serves a model; Inexpressible if vLLM computes something else."""
    if wanted.window is not None:
        raise Inexpressible(
            f'vLLM has no option for a window: give "truncate_prompt_tokens": {wanted.window} in the request, which '
            "keeps the last tokens of the prompt."
        )
    notes: tuple[str, ...] = ()
    if wanted.ropes:
        keys = {key: value for key, value in transformers_5(wanted).items() if value is not None}
        ropes = keys["rope_parameters"]
        if ropes.get("rope_type") == "llama3":
            keys.pop(ORIGINAL, None)  # it is there for the converter of llama.cpp
        if wanted.architecture.model_type == "gpt_oss":
            if ropes["rope_type"] != "yarn" or "attention_factor" in ropes:
                raise Inexpressible("vLLM computes YaRN with its own factor on cos and sin for every gpt-oss.")
            keys["rope_parameters"] = ropes = {"beta_fast": 32.0, "beta_slow": 1.0} | ropes  # it takes no defaults
        if wanted.ropes != wanted.trained and wanted.config.get(DUAL_CHUNKS):
            raise Inexpressible(f"Remove {DUAL_CHUNKS} from config.json first: with it vLLM ignores scalings.")
        keys[LENGTH_KEY], notes = _adapt_to_vllm(wanted, ropes.get(wanted.main, ropes))
        keys |= {key: keys[LENGTH_KEY] for key in LIMITS_OF_VLLM if key in wanted.config}
    else:
        name = next((name for name in LENGTH if name in wanted.config), None)
        name = name or (LENGTH_KEY if wanted.architecture.model_type == "falcon" else None)  # vLLM takes its default
        keys = {name: wanted.target} if name else {}
    overrides = f" --hf-overrides {shlex.quote(json.dumps(keys))}" if keys else ""
    served = shlex.quote(model) + (f" --revision {revision}" if revision else "")
    text = f"vllm serve {served}{overrides} --max-model-len {wanted.target}"
    return Snippet("vLLM", "start with", text, notes)


def _adapt_to_vllm(wanted: Wanted, rope: Keys) -> tuple[int, tuple[str, ...]]:
    """Change parameters of rope to what vLLM reads; returns `max_position_embeddings` and notes."""
    kind = rope["rope_type"]
    if kind == "linear" and wanted.architecture.model_type != "gemma3_text":
        # vLLM allows inputs of the longest promised length times the factor, but for Gemma 3.
        return math.ceil(wanted.target / rope["factor"]), ()
    if kind == "dynamic":
        raise Inexpressible(
            "vLLM's dynamic scaling is fixed when the model is loaded and does not follow the input: "
            f"{_nearest_fixed(wanted)}"
        )
    if kind == "yarn":
        allowed = rope["factor"] * rope[ORIGINAL]
        if allowed < wanted.target:
            raise Inexpressible(
                f"vLLM allows inputs of factor times original, {allowed:g} tokens: give a larger factor."
            )
        read_late = "attention_factor" in rope
        return wanted.target, ("Older versions of vLLM do not read attention_factor.",) if read_late else ()
    if kind == "longrope":  # its factor on cos and sin has other names; without them it is taken from the length
        original = rope[ORIGINAL]
        attention = rope.pop("attention_factor", None) or grown_by_longrope(rope["factor"], original)
        rope |= {"short_mscale": attention, "long_mscale": attention}
        note = f"Above {original} tokens of --max-model-len vLLM uses long_factor for short inputs as well."
        return wanted.target, (note,)
    return wanted.target, ()


# ---- llama.cpp


def llama_cpp(wanted: Wanted, model: str, revision: str) -> Snippet:
    """The command of llama.cpp that serves a GGUF file; Inexpressible if llama.cpp computes something else."""
    model_type = wanted.architecture.model_type
    if model_type in NOT_IN_LLAMA_CPP:
        raise Inexpressible(f"llama.cpp has no models of type {model_type}, as far as known: use another program.")
    if model_type not in WINDOWS_IN_LLAMA_CPP and any("window(" in each.spec for each in wanted.architecture.layers):
        raise Inexpressible(
            f"llama.cpp reads models of type {model_type} without the window that they were trained with."
        )
    if wanted.window is not None:
        raise Inexpressible(
            f"llama.cpp has no option for a window: cut the prompt to its last {wanted.window} tokens, with -c "
            f"{wanted.window}."
        )
    program, options = SERVER, [f"-m MODEL.gguf -c {wanted.target}"]
    key = f"{GGUF_NAMES.get(model_type, model_type)}.context_length"
    first = f"gguf-set-metadata MODEL.gguf {key} {wanted.target}\n"
    notes: tuple[str, ...] = (
        "The server reads no more tokens than the file says. The first line (pip install gguf) changes the file: copy "
        "it first.",
    )
    if wanted.ropes and wanted.ropes[wanted.main].name == GROUPED:
        program, first = COMPLETION, ""
        groups, notes = _self_extend(wanted, wanted.ropes[wanted.main])
        options += groups
    elif wanted.ropes:
        options += _rope_options(wanted)
    return Snippet("llama.cpp", "start with", first + " ".join([program, *options]), notes)


def _rope_options(wanted: Wanted) -> list[str]:
    """The options of a rope that differs from the model's own, or that a GGUF file does not hold."""
    if wanted.ropes == wanted.trained and wanted.ropes[wanted.main].name != GROWING:
        return []
    model_type = wanted.architecture.model_type
    rope = rope_parameters(wanted, wanted.main)
    trained = rope_parameters(replace(wanted, ropes=wanted.trained), wanted.main)
    if model_type == "gpt_oss":
        raise Inexpressible("llama.cpp's options change only the layers of gpt-oss without a window.")
    if model_type == "olmo3" and rope["rope_theta"] != trained["rope_theta"]:
        raise Inexpressible("llama.cpp's option changes theta of the layers with a window, too.")
    if LOCAL in wanted.ropes and wanted.ropes[LOCAL] != wanted.trained[LOCAL]:
        raise Inexpressible("llama.cpp has no option for the rope of the layers with a window.")
    for kind in (trained["rope_type"], rope["rope_type"]):
        if kind in FACTORS_IN_LLAMA_CPP:
            if model_type not in FACTORS_IN_LLAMA_CPP[kind]:
                raise Inexpressible(
                    f"llama.cpp's converter writes no factors of {kind} for models of type {model_type}."
                )
            raise Inexpressible(
                f"llama.cpp reads the factors of {kind} from the GGUF file: put the keys for transformers into "
                "config.json and convert the model again."
            )
    kind = rope["rope_type"]
    if kind == "default":
        scaling = ["--rope-scaling none"] if trained["rope_type"] != "default" else []
    elif kind == "linear":
        scaling = ["--rope-scaling linear", f"--rope-scale {rope['factor']:.10g}"]
    elif kind == "yarn":
        scaling = _yarn_options(rope)
    else:
        raise Inexpressible(f"llama.cpp has one base for inputs of all lengths: {_nearest_fixed(wanted)}")
    base = [f"--rope-freq-base {rope['rope_theta']:.10g}"] if rope["rope_theta"] != trained["rope_theta"] else []
    return scaling + base


def _yarn_options(rope: Keys) -> list[str]:
    if "attention_factor" in rope:
        raise Inexpressible("llama.cpp computes YaRN's factor on cos and sin itself, and this one is another.")
    if rope.get("truncate") is False:
        raise Inexpressible("llama.cpp has YaRN's ramp between whole pairs only, and this one has truncate=false.")
    options = ["--rope-scaling yarn", f"--rope-scale {rope['factor']:.10g}", f"--yarn-orig-ctx {rope[ORIGINAL]}"]
    betas = {"--yarn-beta-fast": "beta_fast", "--yarn-beta-slow": "beta_slow"}
    return options + [f"{flag} {rope[key]:.10g}" for flag, key in betas.items() if key in rope]


def _self_extend(wanted: Wanted, leaf: Leaf) -> tuple[list[str], tuple[str, ...]]:
    """Self-Extend: a group's size, and the width of the near part, which must be a multiple of it."""
    import torch

    encoding: Any = leaf.make(wanted.architecture.shape)
    size = int(encoding.size(torch.tensor([wanted.target - 1])))
    width = max(size, encoding.window // size * size)
    note = (
        "llama.cpp moves the groups a block at a time while the context grows, so that the near part is between one "
        "and two blocks wide: it is close to what was measured, and not equal."
    )
    return [f"--grp-attn-n {size}", f"--grp-attn-w {width}"], (note, f"Only {COMPLETION} has these options.")


# ---- all of them

# By the name of a program: what people paste there, by its versions where these differ.
RUNTIMES: dict[str, dict[str, Writer]] = {
    "transformers": {
        "transformers 5": in_config("transformers 5", transformers_5),
        "transformers 4": in_config("transformers 4", transformers_4),
    },
    "vllm": {"vLLM": vllm},
    "llama.cpp": {"llama.cpp": llama_cpp},
}


def snippets(
    model: str,
    architecture: Architecture,
    config: Config,
    spec: str,
    target: int,
    runtimes: Sequence[str] = tuple(RUNTIMES),
    *,
    revision: str = "",
) -> list[Snippet]:
    """What to paste for a checkpoint called `model` to read `target` tokens under a spec: one per program and version.

    `revision` is the commit of a repository of the hub. `config` is the content of the checkpoint's config.json, and
    `architecture` what it says.
    """
    writers = {name: write for runtime in runtimes for name, write in RUNTIMES[runtime].items()}
    written = []
    for name, write in writers.items():
        try:
            if architecture.kind.name == "learned":
                raise Inexpressible(
                    f"Its {architecture.length} learned positions are weights: inputs of {target} tokens need a table "
                    f"of {target} rows, such as an interpolated one, and not a key."
                )
            written.append(write(wanted_of(architecture, config, spec, target), model, revision))
        except Inexpressible as why:
            written.append(Snippet(name, reason=str(why)))
    return written


def cropped(model: str, length: int, runtimes: Sequence[str] = tuple(RUNTIMES), *, revision: str = "") -> list[Snippet]:
    """What to paste to read only the last `length` tokens of an input; `revision` as `snippets` takes it."""
    where = f'"{model}"' + (f', revision="{revision}"' if revision else "")
    if model.endswith(SUFFIX):
        folder, file = os.path.split(model)
        where = f'"{folder}", gguf_file="{file}"'
    tokenizer = f'AutoTokenizer.from_pretrained({where}, truncation_side="left")'
    room = f"The tokens of the answer count too: leave room for them below {length}."
    made = {
        "transformers": Snippet(
            "transformers", "read inputs with", f"tokenizer = {tokenizer}\ntokenizer(text, truncation=True, "
            f"max_length={length})", (room,),
        ),
        "vllm": Snippet("vLLM", "put into each request", f'"truncate_prompt_tokens": {length}', (room,)),
        "llama.cpp": Snippet("llama.cpp", reason=f"Start it with -c {length}, and cut the prompt to its last tokens."),
    }  # fmt: skip
    return [made[runtime] for runtime in runtimes]
