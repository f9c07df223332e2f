"""`poscli doctor`: what works on this machine, and why the rest does not."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from poscli.cli.commands import command
from poscli.cli.options import Json, Out
from poscli.system.console import emit, note, out
from poscli.system.errors import FAILED
from poscli.system.text import printable

if TYPE_CHECKING:
    import torch

    from poscli.attention import Engine
    from poscli.attention.selfcheck import Variant

OPTIONAL = {
    "datasets": "corpora of the kind hf:",
    "triton": "the engine triton, on CUDA",
    "ray": "suites on a cluster, poscli run --ray",
    "transformers": "checkpoints: --model, card, advise and audit",
    "gguf": "checkpoints of llama.cpp",
    "tokenizers": "tokenizers of the kinds bpe: and hf:",
    "torchdiffeq": "the encoding floater",
}

ENOUGH = 2**16  # bytes written to see whether there is space: more than the first block of a file system


@command("doctor", after="rm")
def doctor(out_: Out = Path("results"), json_: Json = False) -> None:
    """Check the torch build, the devices, engines, encodings and corpora, and the results folder."""
    checks = _checks(out_)
    emit(json_, checks, lambda: _show(checks))
    if any(check["state"] == "broken" for check in checks):
        raise typer.Exit(FAILED)


def _checks(out_: Path) -> list[dict[str, str]]:
    import torch

    from poscli.attention import ENGINES
    from poscli.encodings import missing, names
    from poscli.system.provenance import describe

    facts = describe(torch.device("cpu"))
    usable = [name for name in names() if not missing(name)]
    checks = [
        _check("poscli", "ok", f"{facts['poscli']} {facts['commit']}".strip()),
        _check("python", "ok", f"{facts['python']} on {facts['platform']}"),
        _check("torch", "ok", f"{facts['torch']}, {facts['threads']} threads on {facts['cores']} cores"),
        _check("cpu bfloat16", "ok", "native, used from model width 256 on")
        if facts["cpu_bfloat16"]
        else _check("cpu bfloat16", "missing", "not native, so float32 is used at every width"),
        _check("machine", "ok", f"{facts['machine']} in results; set POSCLI_MACHINE for another name"),
        _check("cpu", "ok", facts["cpu"]),
        _cuda(),
        *(_engine(engine) for engine in ENGINES.values()),
        _compiled_kernels(),
        *_kernels(),
        _check("encodings", "ok", f"{len(usable)}: {', '.join(usable)}"),
    ]
    checks += [*_unusable_plugins()]
    checks += [_package(name, use) for name, use in OPTIONAL.items()]
    return [*checks, *_corpora(), _folder(out_)]


def _check(name: str, state: str, detail: str) -> dict[str, str]:
    return {"check": name, "state": state, "detail": detail}


def _engine(engine: Engine) -> dict[str, str]:
    import torch

    from poscli.native import why_not

    why = why_not() if engine.name == "native" else ""
    if "cpu" not in engine.devices and not torch.cuda.is_available():
        why = "needs CUDA"
    return _check(f"engine {engine.name}", "missing" if why else "ok", "; ".join(filter(None, [engine.summary, why])))


def _kernels() -> Iterator[dict[str, str]]:
    """What trials of the Triton kernels find on this machine's GPU, in the precision that `auto` chooses there."""
    import torch

    from poscli.attention import selfcheck
    from poscli.attention.triton import DTYPES
    from poscli.system.device import precision_name

    why = selfcheck.unavailable() if torch.cuda.is_available() else "they run on CUDA devices, and torch finds none"
    if why:
        yield _check("triton kernels", "missing", f"none was tried: {why}")
        return
    device = torch.device("cuda")
    used = getattr(torch, precision_name("auto", device, 0))
    note("trying the Triton kernels, which are compiled at the first time; that takes a minute")
    yield from tried(selfcheck.examples(used), device)
    others = " and ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES if dtype != used)
    yield _check("triton kernels", "untried", f"{others}, and other widths: when a run needs them")


def tried(variants: Sequence[Variant], device: torch.device) -> Iterator[dict[str, str]]:
    """A check for each variant: proven, off with the reason, or untried for lack of memory. A breakdown ends them."""
    from poscli.attention import selfcheck
    from poscli.system.memory import is_out_of_memory

    for number, variant in enumerate(variants, 1):
        name = f"triton kernel {number}"
        try:
            fault = selfcheck.trial_fault(variant, device)
        except selfcheck.BrokenDevice as error:
            yield _check(name, "broken", str(error))
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            yield _check(name, "untried", f"{variant}: the device has no memory left")
        else:
            yield _check(name, "off" if fault else "ok", fault or f"{variant}: proven, it equals the formula")


def _compiled_kernels() -> dict[str, str]:
    """Whether our own kernels run on this CPU, which compiles them here if they are not there yet."""
    from poscli.native import library, why_not

    kernels = library()
    if kernels is None:
        return _check("compiled kernels", "missing", f"{why_not()}; torch's kernels run instead, more slowly")
    return _check("compiled kernels", "ok", f"proven on this CPU: they equal the formula; {kernels._name}")


def _cuda() -> dict[str, str]:
    import torch

    from poscli.system.device import device_name

    build = torch.version.cuda
    if torch.cuda.is_available():
        return _check("cuda", "ok", f"{device_name(torch.device('cuda'))} with CUDA {build}")
    why = "this torch is a CPU build" if build is None else f"torch has CUDA {build} but finds no device or driver"
    return _check("cuda", "missing", f"{why}; everything runs on the CPU")


def _unusable_plugins() -> Iterator[dict[str, str]]:
    """Every registered name that cannot be used here, with the reason; corpora have their own lines."""
    from poscli.cli.commands import COMMANDS
    from poscli.data.known_limit import SOURCES
    from poscli.data.tokenizers import TOKENIZERS
    from poscli.encodings.registry import ENCODINGS
    from poscli.evaluation.baseline import BASELINES
    from poscli.evaluation.protocol import PROTOCOLS
    from poscli.layouts import LAYOUTS
    from poscli.tasks import TASKS

    for registry in (ENCODINGS, LAYOUTS, TASKS, TOKENIZERS, SOURCES, PROTOCOLS, BASELINES, COMMANDS):
        for name in registry.names():
            if why := registry.missing(name):
                yield _check(f"{registry.kind} {name}", "missing", why)


def _package(name: str, use: str) -> dict[str, str]:
    installed = importlib.util.find_spec(name) is not None
    return _check(name, "ok" if installed else "missing", use if installed else f"pip install {name}, for {use}")


def _corpora() -> list[dict[str, str]]:
    from poscli.data import load_corpus
    from poscli.data.corpora import CORPORA, describe_corpora
    from poscli.system.errors import PoscliError

    checks = []
    for name, kind in zip(CORPORA.names(), describe_corpora(), strict=True):
        reason = kind["unavailable"]
        checks.append(_check(f"corpus {name}", "missing" if reason else "ok", reason or kind["what"]))
    try:
        corpus = load_corpus("stdlib")
        detail = f"{corpus.train.bytes:,} bytes to train on, {corpus.valid.bytes:,} held out, {corpus.fingerprint}"
        checks.append(_check("default corpus", "ok", detail))
    except PoscliError as error:
        checks.append(_check("default corpus", "broken", str(error)))
    return checks


def _folder(path: Path) -> dict[str, str]:
    """Whether results can be written: tried with a file that has no name, in the nearest folder that exists."""
    nearest = next(p for p in (path.absolute(), *path.absolute().parents) if os.path.lexists(p))
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(bytes(ENOUGH))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        detail = f"{nearest} cannot be written ({error.strerror or error}); choose another folder with --out"
        return _check("results", "broken", detail)
    return _check("results", "ok", f"{path} can be written")


def _show(checks: list[dict[str, str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "state", "detail"):
        table.add_column(column, no_wrap=column != "detail")
    styles = {"ok": "green", "untried": "dim", "off": "yellow", "missing": "yellow", "broken": "red"}
    for check in checks:
        state = Text(check["state"], style=styles[check["state"]])
        table.add_row(printable(check["check"]), state, printable(check["detail"]))
    out().print(table)
