"""The command line of llama.cpp, which has linear scaling, YaRN and other bases; other factors lie in GGUF files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from poscli.checkpoints.architecture import LOCAL
from poscli.checkpoints.paste.asked import Asked
from poscli.checkpoints.paste.parameters import parameters
from poscli.checkpoints.paste.snippet import Inexpressible, Keys
from poscli.specs.grammar import Leaf

GROUPED = "self-extend"
IN_FILE = ("llama3", "longrope")  # scalings whose factors convert_hf_to_gguf.py writes into the file
NOT_IN_FILE = "rope-dynamic"  # the file of a model with this scaling has plain rope
SERVER, COMPLETION = "llama-server", "llama-completion"


def command(asked: Asked) -> tuple[str, tuple[str, ...]]:
    """The command that serves a GGUF file, and notes; Inexpressible if llama.cpp computes something else."""
    if asked.window is not None:
        raise Inexpressible(
            f"llama.cpp has no option for a window: cut the prompt to its last {asked.window} tokens, with -c "
            f"{asked.window}."
        )
    start = f"-m MODEL.gguf -c {asked.target}"
    if asked.ropes and asked.ropes[asked.main].name == GROUPED:
        options, notes = _grouped(asked, asked.ropes[asked.main])
        return " ".join([COMPLETION, start, *options]), notes
    return " ".join([SERVER, start, *(_options(asked) if asked.ropes else [])]), ()


def _options(asked: Asked) -> list[str]:
    """The options of a rope that differs from the model's own, or that a GGUF file does not hold."""
    if asked.ropes == asked.own and asked.ropes[asked.main].name != NOT_IN_FILE:
        return []
    rope, own = parameters(asked, asked.main), _own(asked)
    if LOCAL in asked.ropes and asked.ropes[LOCAL] != asked.own[LOCAL]:
        raise Inexpressible("llama.cpp has no option for the rope of the layers with a window.")
    for kind in (own["rope_type"], rope["rope_type"]):
        if kind in IN_FILE:
            raise Inexpressible(
                f"llama.cpp reads the factors of {kind} from the GGUF file: put the keys for transformers into "
                "config.json and convert the model again."
            )
    base = [f"--rope-freq-base {rope['rope_theta']:.10g}"] if rope["rope_theta"] != own["rope_theta"] else []
    return [*_scaling(asked, rope, scaled=own["rope_type"] != "default"), *base]


def _own(asked: Asked) -> Keys:
    """The rope that the model was trained with."""
    return parameters(replace(asked, ropes=asked.own), asked.main)


def _scaling(asked: Asked, rope: Keys, *, scaled: bool) -> list[str]:
    kind = rope["rope_type"]
    if kind == "default":
        return ["--rope-scaling none"] if scaled else []
    if kind == "linear":
        return ["--rope-scaling linear", f"--rope-scale {rope['factor']:.10g}"]
    if kind == "yarn":
        return _yarn(rope)
    factor = f"{asked.target / asked.architecture.length:g}"
    raise Inexpressible(
        f"llama.cpp has one base for inputs of all lengths: rope-ntk(factor={factor}) is the nearest that it has."
    )


def _yarn(rope: Keys) -> list[str]:
    if "attention_factor" in rope:
        raise Inexpressible("llama.cpp computes YaRN's factor on cos and sin itself, and this one is another.")
    if rope.get("truncate") is False:
        raise Inexpressible("llama.cpp has YaRN's ramp between whole pairs only, and this one has truncate=false.")
    original = rope["original_max_position_embeddings"]
    options = ["--rope-scaling yarn", f"--rope-scale {rope['factor']:.10g}", f"--yarn-orig-ctx {original}"]
    betas = {"--yarn-beta-fast": "beta_fast", "--yarn-beta-slow": "beta_slow"}
    return options + [f"{flag} {rope[key]:.10g}" for flag, key in betas.items() if key in rope]


def _grouped(asked: Asked, leaf: Leaf) -> tuple[list[str], tuple[str, ...]]:
    """Self-Extend: a group's size, and the width of the near part, which must be a multiple of it."""
    import torch

    encoding: Any = leaf.make(asked.shape)
    size = int(encoding.size(torch.tensor([asked.target - 1])))
    width = max(size, encoding.window // size * size)
    note = (
        "llama.cpp moves the groups a block at a time while the context grows, so that the near part is between one "
        "and two blocks wide: it is close to what was measured, and not equal."
    )
    return [f"--grp-attn-n {size}", f"--grp-attn-w {width}"], (note, f"Only {COMPLETION} has these options.")
