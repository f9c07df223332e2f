"""`poscli generate`: text or an image from a trained model."""

from __future__ import annotations

import codecs
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import MOST, AddedOptions, Device, Json, Out
from poscli.config.validate import LONGEST_WINDOW
from poscli.system.console import data, emit, note
from poscli.system.errors import UsageError
from poscli.system.text import printable

if TYPE_CHECKING:
    import torch

    from poscli.config.run import RunConfig
    from poscli.data.tokenizers import Tokenizer
    from poscli.model.generate import Repetition
    from poscli.model.language_model import LanguageModel
    from poscli.runs.run import Run

PROMPT, TOKENS = "def ", 400
LARGEST_SIDE = 4096  # cells

Prompt = Annotated[
    str | None, typer.Option("--prompt", "-p", help="The beginning of the text.", show_default=f"'{PROMPT}'")
]
After = Annotated[
    int | None,
    typer.Option(
        "--after", help="Read so many held-out tokens before the prompt, which is then empty by default.", min=1,
        max=LONGEST_WINDOW,
    ),
]  # fmt: skip
As = Annotated[
    str | None,
    typer.Option(
        "--as", help="Read and write under another encoding, such as 'yarn(factor=4)'.", autocompletion=complete.specs
    ),
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
class Writer:
    """A model that continues texts, with its own tokenizer."""

    name: str
    config: RunConfig
    model: LanguageModel
    coder: Tokenizer
    opening: tuple[int, ...]  # the tokens that a text begins with
    ends: frozenset[int]  # the tokens that a text ends with
    tokens_of: Callable[[str], list[int]]  # of a prompt


class OtherWriters(AddedOptions):
    """Options of `poscli generate` that name a model which is not a run that poscli has trained."""

    def writer(self, device: torch.device, prompt: str | None, after: int | None, selected: list[str]) -> Writer | None:
        """The model, None if none is named; UsageError for options that do not go together.

        `selected` are the trained run and the encoding that the command names.
        """
        raise NotImplementedError


@command("generate", after="run")
def generate(
    prompt: Prompt = None,
    enc: Enc = None,
    run: RunId = None,
    *,
    others: list[OtherWriters],
    as_: As = None,
    after: After = None,
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

    Beyond its trained length many a model repeats itself: how much is said for each stretch of L tokens, and --after
    begins far into a text. A model of images continues one that was held out, and writes a picture.
    """
    from poscli.runs.select import newest_complete
    from poscli.system.device import device_of
    from poscli.system.files import check_folder
    from poscli.tasks import TASKS

    if not math.isfinite(temperature):
        raise UsageError(f"--temperature {temperature}: give a finite number; 0 always takes the likeliest token")
    if to is not None and to.is_dir():
        raise UsageError(f"--to {to} is a folder; name a file in it, such as {to / 'image.png'}")
    if to is not None:
        check_folder(to.parent, "--to")
    sampling = Sampling(temperature, seed, device_of(device))
    text_options: dict[str, object] = {"--prompt": prompt, "--tokens": tokens, "--after": after, "--as": as_}
    image_options: dict[str, object] = {"--rows": rows, "--side": side, "--image": image, "--to": to}
    selected = [each for each in (run, enc) if each is not None]
    for writer in filter(None, (other.writer(sampling.device, prompt, after, selected) for other in others)):
        _refuse(writer.name, "text", image_options)
        _continue_text(writer, prompt, as_, after, tokens or TOKENS, sampling, json_)
        return
    chosen = newest_complete(out_ / "runs", run or "", enc or "")
    task = TASKS.get(chosen.config.task)
    if continue_image := task.generator():
        _refuse(chosen.id, "images", text_options)
        file = to or out_ / "generated" / f"{chosen.id}.png"
        continue_image(chosen, {"rows": rows, "side": side, "image": image or 1}, file, sampling, json_)
    elif task.axes > 1:
        raise UsageError(f"{chosen.id} was trained on the task {task.name}, which has no images; choose another")
    else:
        _refuse(chosen.id, "text", image_options)
        _continue_text(_trained(chosen, sampling.device), prompt, as_, after, tokens or TOKENS, sampling, json_)


def _refuse(name: str, kind: str, options: Mapping[str, object]) -> None:
    """UsageError if one of `options`, by name, has a value: they mean nothing for a model trained on `kind`."""
    if names := [option for option, value in options.items() if value is not None]:
        raise UsageError(f"{name} was trained on {kind}, for which {names[0]} means nothing; leave it out")


def _trained(run: Run, device: torch.device) -> Writer:
    """A trained run as a writer; UsageError if it was not trained on text."""
    from poscli.model.load import load_tokenizer, load_trained

    model, coder = load_trained(run, device), load_tokenizer(run)
    if model.vocab != coder.vocab:
        raise UsageError(f"{run.id} was trained on the task {run.config.task}, not on text; choose another")
    return Writer(run.id, run.config, model, coder, (coder.end,), frozenset({coder.end}), plainly(coder))


def plainly(coder: Tokenizer) -> Callable[[str], list[int]]:
    """How a prompt becomes tokens: as typed, even if it is not UTF-8."""
    return lambda prompt: coder.encode(os.fsencode(prompt)).tolist()


def _continue_text(
    writer: Writer, prompt: str | None, as_: str | None, after: int | None, tokens: int, sampling: Sampling, json_: bool
) -> None:
    """Print a prompt and its continuation."""
    from poscli.evaluation.posthoc import spec_under, with_encoding
    from poscli.model.generate import generate as stream
    from poscli.model.generate import repetitions

    if prompt is None:
        prompt = PROMPT if after is None else ""
    config, model, coder = writer.config, writer.model, writer.coder
    begun = [*writer.opening, *_held_out(writer, after or 0), *writer.tokens_of(prompt)] or [coder.end]
    spec = config.encoding if as_ is None else spec_under(config, as_)
    if spec != config.encoding:
        model = with_encoding(model, spec, config.encoding)
    shorter = "give a shorter --prompt" if after is None else "give a smaller --after"
    refuse_long_input(config.model_copy(update={"encoding": spec}), len(begun), sampling, shorter)
    ids = stream(
        model,
        begun,
        writer.ends,
        tokens=tokens,
        temperature=sampling.temperature,
        seed=sampling.seed,
        known=coder.vocab,
    )
    text, made, seconds, ended = _print_as_it_comes(ids, coder, prompt, quiet=json_)
    repeated = repetitions(made, len(begun), config.length)
    record = {
        "run_id": writer.name, "encoding": spec, "read": len(begun), "prompt": _as_utf8(prompt), "text": text,
        "tokens": len(made), "seconds": seconds, "note": ended, "repeated": [vars(each) for each in repeated],
    }  # fmt: skip
    emit(json_, record, lambda: data().write("\n"))
    data().flush()  # before what is said of it, where both streams go to one file
    words = speed(writer.name, len(made), "tokens", seconds)
    note("; ".join(filter(None, [ended, words, _in_words(repeated, config.length)])))


def _held_out(writer: Writer, count: int) -> list[int]:
    """The first tokens of the held-out text of a model's corpus; UsageError if it has not so many."""
    from poscli.data import load_corpus

    if not count:
        return []
    corpus = load_corpus(writer.config.corpus, tokenizer=writer.coder)
    text = corpus.valid.tokens[1:]  # without the token that opens the first document
    if len(text) < count:
        raise UsageError(f"--after {count}: the corpus {corpus.spec} holds out {len(text)} tokens; ask for fewer")
    return text[:count].tolist()


def _in_words(repeated: list[Repetition], length: int) -> str:
    """What is said of repetitions in a text that goes beyond the trained length."""
    if not repeated or repeated[-1].end <= length:
        return ""
    shares = ", ".join(f"{each.share:.0%} of tokens {each.begin:,} to {each.end:,}" for each in repeated)
    return f"4-grams that stand there twice: {shares} (L = {length:,})"


def speed(name: str, count: int, unit: str, seconds: float) -> str:
    """How many tokens a model has generated, and the time that each took, in words; `unit` is what they are called."""
    return f"{name}: {count} {unit}, {1000 * seconds / max(1, count):.1f} ms each"


def refuse_long_input(config: RunConfig, length: int, sampling: Sampling, fix: str) -> None:
    """UsageError if reading `length` tokens at once certainly does not fit the memory; `fix` says what to change."""
    from poscli.estimate import unaffordable_window

    if why := unaffordable_window(config, length, sampling.device, loaded=True):
        raise UsageError(f"reading {length:,} tokens with {config.encoding} {why}; {fix}")


def _print_as_it_comes(
    stream: Iterator[int], coder: Tokenizer, prompt: str, *, quiet: bool
) -> tuple[str, list[int], float, str]:
    """Print the prompt and then every token as it is generated; ends early where the encoding has no position.

    Returns the text that follows the prompt, its tokens, the seconds, and why it ended early ('' if it did not).
    """
    from poscli.equation import Unsupported

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[str] = []
    ids: list[int] = []
    start, ended = time.perf_counter(), ""
    if not quiet:
        data().write(_shown(prompt))
        data().flush()
    try:
        for token in stream:
            ids.append(token)
            pieces.append(decoder.decode(coder.decode([token])))
            if not quiet:
                data().write(_shown(pieces[-1]))
                data().flush()
    except Unsupported as error:
        ended = f"stopped: {error}"
    pieces.append(decoder.decode(b"", final=True))  # of a character that has not ended
    if not quiet:
        data().write(_shown(pieces[-1]))
    return "".join(pieces), ids, time.perf_counter() - start, ended


def _shown(text: str) -> str:
    """A text as stdout can take it: a terminal must not obey the control characters that a model draws."""
    if data().isatty():
        return printable(text, keep="\n\t")
    return _as_utf8(text)


def _as_utf8(text: str) -> str:
    """A text with a replacement character for each byte of the command line that is not UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="replace")
