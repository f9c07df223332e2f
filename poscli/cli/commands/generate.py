"""`poscli generate`: text or an image from a trained model."""

from __future__ import annotations

import codecs
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import MOST, Device, Json, Out
from poscli.system.console import data, emit, note
from poscli.system.errors import UsageError
from poscli.system.text import printable

if TYPE_CHECKING:
    import torch

    from poscli.runs.run import Run

PROMPT, TOKENS = "def ", 400
LARGEST_SIDE = 4096  # cells

Prompt = Annotated[
    str | None, typer.Option("--prompt", "-p", help="The beginning of the text.", show_default=f"'{PROMPT}'")
]
Enc = Annotated[
    str | None,
    typer.Option("--enc", "-e", help="Use the newest run of this encoding.", autocompletion=complete.specs),
]
RunId = Annotated[
    str | None,
    typer.Option("--run", help="Use the run whose id is, or begins with, this.", autocompletion=complete.runs),
]
Tokens = Annotated[
    int | None, typer.Option(help="Largest number of tokens to generate.", min=1, show_default=str(TOKENS))
]
Temperature = Annotated[
    float, typer.Option(help="Randomness of the draw; 0 always takes the likeliest token.", min=0.0)
]
Seed = Annotated[int, typer.Option(help="Seed of the draw.", min=0, max=MOST)]
Rows = Annotated[
    int | None, typer.Option(help="Rows of an image to keep; the others are generated.", min=1, show_default="half")
]
Side = Annotated[
    int | None,
    typer.Option(
        help="Rows and columns of the image, in cells.", min=2, max=LARGEST_SIDE, show_default="twice the training's"
    ),
]
Image = Annotated[int | None, typer.Option(help="Number of the held-out image to continue.", min=1, show_default="1")]
To = Annotated[Path | None, typer.Option(help="File of the picture.", show_default="OUT/generated/RUN.png")]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, and where the model runs."""

    temperature: float
    seed: int
    device: torch.device


@dataclass(frozen=True)
class Generated:
    """A continuation: its text, its number of tokens, the time it took, and why it ended early ('' if it did not)."""

    text: str
    tokens: int
    seconds: float
    note: str


@command("generate", after="run")
def generate(
    prompt: Prompt = None,
    enc: Enc = None,
    run: RunId = None,
    tokens: Tokens = None,
    rows: Rows = None,
    side: Side = None,
    image: Image = None,
    to: To = None,
    temperature: Temperature = 0.7,
    seed: Seed = 0,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Continue a prompt with a trained model, one token at a time, with keys and values cached.

    A model that was trained on images continues the upper rows of one that was held out, and writes a picture.
    """
    from poscli.system.device import device_of
    from poscli.system.files import check_folder
    from poscli.tasks import TASKS

    if not math.isfinite(temperature):
        raise UsageError(f"--temperature {temperature}: give a finite number; 0 always takes the likeliest token")
    if to is not None and to.is_dir():
        raise UsageError(f"--to {to} is a folder; name a file in it, such as {to / 'image.png'}")
    if to is not None:
        check_folder(to.parent, "--to")
    sampling, chosen = Sampling(temperature, seed, device_of(device)), _newest(out_ / "runs", run, enc)
    task = TASKS.get(chosen.config.task)
    if continue_image := task.generator():
        _refuse(chosen, "images", {"--prompt": prompt, "--tokens": tokens})
        file = to or out_ / "generated" / f"{chosen.id}.png"
        continue_image(chosen, {"rows": rows, "side": side, "image": image or 1}, file, sampling, json_)
    elif task.axes > 1:
        raise UsageError(f"{chosen.id} was trained on the task {task.name}, which has no images; choose another")
    else:
        _refuse(chosen, "text", {"--rows": rows, "--side": side, "--image": image, "--to": to})
        _continue_text(chosen, PROMPT if prompt is None else prompt, tokens or TOKENS, sampling, json_)


def _refuse(run: Run, kind: str, options: Mapping[str, object]) -> None:
    """UsageError if one of `options`, by name, has a value: they mean nothing for a run that was trained on `kind`."""
    if names := [name for name, value in options.items() if value is not None]:
        raise UsageError(f"{run.id} was trained on {kind}, for which {names[0]} means nothing; leave it out")


def _continue_text(run: Run, prompt: str, tokens: int, sampling: Sampling, json_: bool) -> None:
    """Print a prompt and its continuation."""
    from poscli.model.generate import generate as stream
    from poscli.model.load import load_tokenizer, load_trained

    model, coder = load_trained(run, sampling.device), load_tokenizer(run)
    if model.vocab != coder.vocab:
        raise UsageError(f"{run.id} was trained on the task {run.config.task}, not on text; choose another")
    begun = coder.encode(os.fsencode(prompt)).tolist()  # as typed, even if it is not UTF-8
    refuse_long_input(run, 1 + len(begun), sampling, "give a shorter --prompt")
    ids = stream(model, begun, coder.end, tokens=tokens, temperature=sampling.temperature, seed=sampling.seed)
    generated = _print_as_it_comes((coder.decode([token]) for token in ids), prompt, quiet=json_)
    emit(json_, {"run_id": run.id, "prompt": prompt, **vars(generated)}, lambda: data().write("\n"))
    words = speed(run, generated.tokens, "tokens", generated.seconds)
    note(f"{generated.note}; {words}" if generated.note else words)


def speed(run: Run, count: int, unit: str, seconds: float) -> str:
    """How many tokens a run has generated, and the time that each took, in words; `unit` is what they are called."""
    return f"{run.id}: {count} {unit}, {1000 * seconds / max(1, count):.1f} ms each"


def refuse_long_input(run: Run, length: int, sampling: Sampling, fix: str) -> None:
    """UsageError if reading `length` tokens at once certainly does not fit the memory; `fix` says what to change."""
    from poscli.estimate import unaffordable_window

    if why := unaffordable_window(run.config, length, sampling.device):
        raise UsageError(f"reading {length:,} tokens with {run.config.encoding} {why}; {fix}")


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
                data().write(_shown(pieces[-1] if len(pieces) > 1 else prompt + pieces[-1]))
                data().flush()
    except Unsupported as error:
        ended = f"stopped: {error}"
    return Generated("".join(pieces), len(pieces), time.perf_counter() - start, ended)


def _shown(text: str) -> str:
    """A text as stdout can take it: a terminal must not obey the control characters that a model draws."""
    if data().isatty():
        return printable(text, keep="\n\t")
    return text.encode(errors="surrogateescape").decode(errors="replace")
