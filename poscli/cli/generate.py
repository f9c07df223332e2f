"""`poscli generate`: text from a trained model."""

from __future__ import annotations

import codecs
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli import complete
from poscli.cli.options import MOST, Device, Json, Out
from poscli.system.console import emit, note
from poscli.system.errors import UsageError
from poscli.system.text import printable

if TYPE_CHECKING:
    from poscli.runs.run import Run


@dataclass(frozen=True)
class Generated:
    """A continuation: its text, its number of tokens, the time it took, and why it ended early ('' if it did not)."""

    text: str
    tokens: int
    seconds: float
    note: str


def generate(
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The beginning of the text.")] = "def ",
    enc: Annotated[
        str | None,
        typer.Option("--enc", "-e", help="Use the newest run of this encoding.", autocompletion=complete.encodings),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", help="Use the run whose id is, or begins with, this.", autocompletion=complete.runs),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Largest number of tokens to generate.", min=1)] = 400,
    temperature: Annotated[
        float, typer.Option(help="Randomness of the draw; 0 always takes the likeliest token.", min=0.0)
    ] = 0.7,
    seed: Annotated[int, typer.Option(help="Seed of the draw.", min=0, max=MOST)] = 0,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Continue a prompt with a trained model, one token at a time, with keys and values cached."""
    from poscli.data.tokenizers import tokenizer
    from poscli.model.generate import generate as stream
    from poscli.runs.load import load_trained
    from poscli.system.device import device_of

    if not math.isfinite(temperature):
        raise UsageError(f"--temperature {temperature}: give a finite number; 0 always takes the likeliest token")
    where = device_of(device)
    chosen = _newest(out_ / "runs", run, enc)
    model, coder = load_trained(chosen, where), tokenizer(chosen.config.tokenizer)
    if model.vocab != coder.vocab:
        raise UsageError(f"{chosen.id} was trained on the task {chosen.config.task}, not on text; choose another")
    begun = coder.encode(os.fsencode(prompt)).tolist()  # as typed, even if it is not UTF-8
    ids = stream(model, begun, coder.end, tokens=tokens, temperature=temperature, seed=seed)
    made = _print_as_it_comes((coder.decode([token]) for token in ids), prompt, quiet=json_)
    emit(json_, {"run_id": chosen.id, "prompt": prompt, **vars(made)}, lambda: sys.stdout.write("\n"))
    speed = f"{chosen.id}: {made.tokens} tokens, {1000 * made.seconds / max(1, made.tokens):.1f} ms each"
    note(f"{made.note}; {speed}" if made.note else speed)


def _newest(runs: Path, id_: str | None, encoding: str | None) -> Run:
    """The newest complete run with this id and encoding, where given; UsageError if there is none."""
    from poscli.runs.select import select

    selected = select(runs, [id_] if id_ else [], [encoding] if encoding else [])
    complete = [run for run in selected if run.status()["state"] == "complete"]
    if not complete:
        raise UsageError(f"no such run in {runs} is complete; train one first: poscli train --enc alibi")
    return complete[-1]


def _print_as_it_comes(stream: Iterator[bytes], prompt: str, *, quiet: bool) -> Generated:
    """Print the prompt and then every token as it is generated; ends early where the encoding has no position."""
    from poscli.equation import Unsupported

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[str] = []
    start, ended = time.perf_counter(), ""
    try:
        for token in stream:
            pieces.append(decoder.decode(token))
            if not quiet:
                sys.stdout.write(_shown(pieces[-1] if len(pieces) > 1 else prompt + pieces[-1]))
                sys.stdout.flush()
    except Unsupported as error:
        ended = f"stopped: {error}"
    return Generated("".join(pieces), len(pieces), time.perf_counter() - start, ended)


def _shown(text: str) -> str:
    """A text as stdout can take it: a terminal must not obey the control characters that a model draws."""
    if sys.stdout.isatty():
        return printable(text, keep="\n\t")
    return text.encode(errors="surrogateescape").decode(errors="replace")
