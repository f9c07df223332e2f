"""What to paste into transformers, vLLM and llama.cpp to run a checkpoint under another encoding: one file each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poscli.checkpoints.architecture import Architecture
from poscli.checkpoints.fields import Config
from poscli.checkpoints.paste import llama_cpp, transformers, vllm
from poscli.checkpoints.paste.asked import Asked, asked
from poscli.checkpoints.paste.fixed import fixed
from poscli.checkpoints.paste.snippet import Inexpressible, Keys, Snippet, json_lines, merged

MERGE, START = "merge into config.json", "start with"


def _keys(runtime: str, keys_of: Callable[[Asked], Keys]) -> Callable[[Asked, str], Snippet]:
    def write(wanted: Asked, model: str) -> Snippet:
        keys = keys_of(wanted)
        if not keys:
            return Snippet(runtime, notes=("Nothing to change: the model takes inputs of any length.",))
        return Snippet(runtime, MERGE, json_lines(keys), keys=keys)

    return write


def _vllm(wanted: Asked, model: str) -> Snippet:
    text, notes = vllm.command(wanted, model)
    return Snippet("vLLM", START, text, notes)


def _llama_cpp(wanted: Asked, model: str) -> Snippet:
    text, notes = llama_cpp.command(wanted)
    return Snippet("llama.cpp", START, text, notes)


# By the name of a program: what people paste there, by its versions where these differ.
RUNTIMES: dict[str, dict[str, Callable[[Asked, str], Snippet]]] = {
    "transformers": {
        "transformers 5": _keys("transformers 5", transformers.version_5),
        "transformers 4": _keys("transformers 4", transformers.version_4),
    },
    "vllm": {"vLLM": _vllm},
    "llama.cpp": {"llama.cpp": _llama_cpp},
}


def snippets(
    model: str,
    architecture: Architecture,
    config: Config,
    spec: str,
    target: int,
    runtimes: Sequence[str] = tuple(RUNTIMES),
) -> list[Snippet]:
    """What to paste for a checkpoint called `model` to read `target` tokens under a spec: one per program and version.

    `config` is the content of its config.json, and `architecture` what it says.
    """
    writers = {name: write for runtime in runtimes for name, write in RUNTIMES[runtime].items()}
    found = []
    for name, write in writers.items():
        try:
            _refuse_tables(architecture, target)
            found.append(write(asked(architecture, config, spec, target), model))
        except Inexpressible as why:
            found.append(Snippet(name, reason=str(why)))
    return found


def _refuse_tables(architecture: Architecture, target: int) -> None:
    if architecture.kind.name == "learned":
        raise Inexpressible(
            f"Its {architecture.length} learned positions are weights: inputs of {target} tokens need a table of "
            f"{target} rows, such as an interpolated one, and not a key."
        )


def cropped(model: str, length: int, runtimes: Sequence[str] = tuple(RUNTIMES)) -> list[Snippet]:
    """What to paste to read only the last `length` tokens of an input."""
    tokenizer = f'AutoTokenizer.from_pretrained("{model}", truncation_side="left")'
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


__all__ = ["RUNTIMES", "Snippet", "cropped", "fixed", "merged", "snippets"]
