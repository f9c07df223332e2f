"""`poscli generate`: text from a trained model."""

from __future__ import annotations

import codecs
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from poscli.cli.options import Device, Json, Out
from poscli.console import emit, note
from poscli.errors import UsageError


def generate(
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What the text begins with.")] = "def ",
    enc: Annotated[str | None, typer.Option("--enc", "-e", help="The newest run of this encoding.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="The run of this id, or of this beginning.")] = None,
    tokens: Annotated[int, typer.Option(help="Bytes to generate at most.", min=1)] = 400,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest byte.", min=0.0)] = 0.7,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Continue a prompt with a trained model, decoding token by token through its cache."""
    from poscli import pipeline
    from poscli.data import VOCAB
    from poscli.encodings import Unsupported
    from poscli.environment import device_of
    from poscli.generate import generate as stream
    from poscli.train import load_trained

    where = device_of(device)
    chosen = pipeline.select(out_ / "runs", [run] if run else [], [enc] if enc else [])
    complete = [r for r in chosen if r.status()["state"] == "complete"]
    if not complete:
        raise UsageError(f"no such run in {out_ / 'runs'} is complete; train one first: poscli train --enc alibi")
    model = load_trained(complete[-1], VOCAB, where)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, made, start, ended = "", 0, time.perf_counter(), ""
    try:
        for byte in stream(model, prompt.encode(), tokens=tokens, temperature=temperature, seed=seed):
            piece = decoder.decode(bytes([byte]))
            text, made = text + piece, made + 1
            if not json_:
                sys.stdout.write(prompt + piece if made == 1 else piece)
                sys.stdout.flush()
    except Unsupported as error:
        ended = f"stopped: {error}"
    seconds = time.perf_counter() - start
    payload = {
        "run_id": complete[-1].id,
        "prompt": prompt,
        "text": text,
        "tokens": made,
        "seconds": seconds,
        "note": ended,
    }
    emit(json_, payload, lambda: sys.stdout.write("\n"))
    note(f"{ended + '; ' if ended else ''}{complete[-1].id}: {made} bytes, {1000 * seconds / max(1, made):.1f} ms each")
