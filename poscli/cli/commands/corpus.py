"""`poscli corpus`: what a text is, how far back it repeats itself, and what a longer context is worth on it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import Json, TextArgument, TokenizerOption
from poscli.config.request import LONGEST_PROFILED, SHORTEST_PROFILED
from poscli.system.console import emit, note, out

Document = dict[str, Any]


@command("corpus", after="new")
def corpus(
    text: TextArgument,
    tokenizer: TokenizerOption = "bytes",
    tokens_of: Annotated[
        str,
        typer.Option(
            "--tokens-of",
            help="Train the tokenizer on this corpus, as for models that are scored with --on.",
            show_default=False,
            autocompletion=complete.corpora,
        ),
    ] = "",
    length: Annotated[
        int,
        typer.Option(
            "--length", "-L", help="The training length L in tokens.", min=SHORTEST_PROFILED, max=LONGEST_PROFILED
        ),
    ] = 256,
    out_: Annotated[
        Path | None,
        typer.Option("--out", help="Also write a picture and JSON to OUT/corpus, for reports.", show_default=False),
    ] = None,
    json_: Json = False,
) -> None:
    """Say of any text how large it is, how far back it repeats itself, and what longer windows win on it.

    An n-gram with a cache of the window predicts the same held-out tokens with windows of L/8 to 16 L tokens. Where it
    wins nothing beyond L, do not expect an encoding to. It takes half a minute.
    """
    from poscli.system.files import check_folder, write_atomic
    from poscli.workflows import measure_text

    if out_ is not None:
        check_folder(out_ / "corpus", "--out")
    document = measure_text(text, tokenizer, length, tokens_of=tokens_of)
    if out_ is not None:
        path = out_ / "corpus" / f"{document['corpus']['fingerprint']}-L{length}"
        for suffix, content in ((".json", json.dumps(document, indent=2) + "\n"), (".png", _picture(document))):
            write_atomic(path.with_suffix(suffix), content)
            note(f"wrote {path.with_suffix(suffix)}")
    emit(json_, document, lambda: _show(document))


def _gain(document: Document) -> str:
    """Whether a longer window pays, in one sentence."""
    from poscli.report.verdicts import GAIN_BPB

    last, length = document["windows"][-1], document["length"]
    won = f"{last['window']} tokens win {last['won']:+.3f} bits per byte over {length}"
    if last["low"] is None:
        return f"{won}, in too few documents for an interval."
    won += f" [{last['low']:+.3f}, {last['high']:+.3f}]"
    if last["low"] >= GAIN_BPB:
        return f"A longer context pays: {won}."
    if last["high"] < GAIN_BPB:
        return f"An n-gram wins nothing beyond {length} tokens: {won}."
    return f"Not shown that a longer context pays: {won}."


def _copies(document: Document) -> str:
    """How many tokens could be copied, and how their number falls with the distance, in one sentence."""
    profile, (a, low, high) = document["profile"], document["profile"]["exponent"]
    share, (first, *_, last) = sum(profile["counts"]) / profile["tokens"], profile["octaves"]
    text = f"{share:.1%} of tokens could be copied from {first[0]} to {last[1]} tokens back"
    if a is not None:
        text += f"; p(d) falls as d^-a with a = {a:.2f}" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")
    return f"{text}."


def _how(document: Document) -> str:
    """What was measured."""
    profile = document["profile"]
    return (
        "Windows: an n-gram of the training split with a cache of the window, on the same tokens of "
        f"{profile['documents']} held-out documents for every window; 95 % intervals over documents. A token could be "
        f"copied if its {profile['ngram']} preceding tokens occurred before in its document, and were followed by the "
        "same token then; its distance is that to the last such place."
    )


def _show(document: Document) -> None:
    described, length, profile = document["corpus"], document["length"], document["profile"]
    tokenizer, mark = described.get("tokenizer", "bytes"), described["fingerprint"]
    out().print(f"{described['spec']} as {tokenizer}, fingerprint {mark}")
    splits = {"training": described["train"], "held out": described["valid"], "for tuning": described["tune"]}
    sizes = ("documents", "bytes", "tokens")
    _table(("split", *sizes), [(name, *(f"{split[key]:,}" for key in sizes)) for name, split in splits.items()])
    out().print(f"\n{_copies(document)}")
    octaves = zip(profile["octaves"], profile["counts"], profile["density"], strict=True)
    _table(("distance", "tokens", "p(d)"), [(f"{a} to {b}", f"{n:,}", f"{p:.2e}") for (a, b), n, p in octaves])
    out().print(f"\n{_gain(document)}")
    rows = []
    for row in document["windows"]:
        interval = "" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}"
        won = (f"{row['won']:+.3f}", interval) if row["window"] != length else ("", "")
        rows.append((str(row["window"]), f"{row['bpb']:.3f}", *won))
    _table(("window", "bits per byte", f"won over {length}", "95 %"), rows)
    note(_how(document))


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column == "split" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    out().print(table)


def _picture(document: Document) -> bytes:
    """A sheet with two panels, as PNG: bits per byte by window, and the distance profile."""
    from poscli.drawing.axes import length_axis, log_ticks, mark_length, name_axes
    from poscli.drawing.page import written
    from poscli.drawing.sheet import Contents, Sheet
    from poscli.drawing.style import PALETTE

    described, length, profile = document["corpus"], document["length"], document["profile"]
    title = f"{described['spec']}, {described.get('tokenizer', 'bytes')}"
    sheet = Sheet(1, 2, Contents(title, [], [], [], _how(document)))
    windows = [row["window"] for row in document["windows"]]
    axes = sheet.panel(0, 0, "an n-gram with a cache of the window", _gain(document))
    axes.plot(windows, [row["bpb"] for row in document["windows"]], color=PALETTE[0], marker="o", markersize=4)
    length_axis(axes, windows, length)
    name_axes(axes, "window, tokens", "bits per byte")
    mark_length(axes, length, length)
    what = "tokens that could be copied, by the distance back to the last occurrence"
    axes = sheet.panel(0, 1, what, _copies(document))
    octaves = zip(profile["octaves"], profile["density"], strict=True)
    if points := [(math.sqrt(first * last), density) for (first, last), density in octaves if density]:
        axes.plot(*zip(*points, strict=True), color=PALETTE[1], marker="o", markersize=4)
        length_axis(axes, windows, length)
        log_ticks(axes)
        name_axes(axes, "distance, tokens", "p(d)")
        mark_length(axes, length, length)
    else:
        sheet.say(axes, "No token could be copied.")
    return written(sheet.figure, "png")
