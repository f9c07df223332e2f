"""`poscli doctor`: what this machine can do, and why not what it cannot."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from poscli.cli.options import Json, Out
from poscli.console import emit, out
from poscli.errors import FAILED

if TYPE_CHECKING:
    from poscli.attention import Engine

OPTIONAL = {
    "datasets": "corpora jsonl:, parquet: and hf:",
    "triton": "the engine triton and the rotation of q and k in one kernel, on CUDA",
    "transformers": "oracles of the tests",
}


def doctor(out_: Out = Path("results"), json_: Json = False) -> None:
    """Check the torch build, devices, engines, corpora and the results folder."""
    checks = _checks(out_)
    emit(json_, checks, lambda: _show(checks))
    if any(check["state"] == "broken" for check in checks):
        raise typer.Exit(FAILED)


def _checks(out_: Path) -> list[dict[str, str]]:
    import torch

    from poscli.attention import ENGINES
    from poscli.encodings import names
    from poscli.encodings.registry import missing
    from poscli.environment import cpu_has_bfloat16, describe, device_name

    facts = describe(torch.device("cpu"))
    checks = [
        _check("poscli", "ok", f"{facts['poscli']} {facts['commit']}".strip()),
        _check("python", "ok", f"{facts['python']} on {facts['platform']}"),
        _check("torch", "ok", f"{facts['torch']}, {facts['threads']} threads on {facts['cores']} cores"),
        _check("cpu bfloat16", "ok" if cpu_has_bfloat16() else "missing", _bfloat16(cpu_has_bfloat16())),
        _cuda(torch.cuda.is_available(), torch.version.cuda, lambda: device_name(torch.device("cuda"))),
        *(_engine(engine) for engine in ENGINES.values()),
        _check("encodings", "ok", _encodings([name for name in names() if not missing(name)])),
    ]
    checks += [_check(f"encoding {name}", "missing", why) for name in names() if (why := missing(name))]
    checks += [_package(name, use) for name, use in OPTIONAL.items()]
    return [*checks, *_corpora(), _folder(out_)]


def _check(name: str, state: str, detail: str) -> dict[str, str]:
    return {"check": name, "state": state, "detail": detail}


def _encodings(usable: list[str]) -> str:
    return f"{len(usable)}: {', '.join(usable)}"


def _bfloat16(native: bool) -> str:
    return "native products: used from width 256 on" if native else "no native products: float32 is used throughout"


def _engine(engine: Engine) -> dict[str, str]:
    import torch

    here = "cpu" in engine.devices or torch.cuda.is_available()
    return _check(f"engine {engine.name}", "ok" if here else "missing", engine.summary + (not here) * "; needs CUDA")


def _cuda(available: bool, build: str | None, name: Any) -> dict[str, str]:
    if available:
        return _check("cuda", "ok", f"{name()} with CUDA {build}")
    why = "this torch is a CPU build" if build is None else f"torch has CUDA {build}, but finds no device or driver"
    return _check("cuda", "missing", f"{why}; everything runs on the CPU")


def _package(name: str, use: str) -> dict[str, str]:
    found = importlib.util.find_spec(name) is not None
    return _check(name, "ok" if found else "missing", use if found else f"pip install {name}, for {use}")


def _corpora() -> list[dict[str, str]]:
    from poscli.data import CORPORA, load_corpus
    from poscli.errors import PoscliError

    checks = []
    for name, kind in CORPORA.items():
        reason = kind.available()
        checks.append(_check(f"corpus {name}", "missing" if reason else "ok", reason or kind.about))
    try:
        corpus = load_corpus("stdlib")
        detail = f"{corpus.train.bytes:,} bytes to train on, {corpus.valid.bytes:,} held out, {corpus.fingerprint}"
        checks.append(_check("default corpus", "ok", detail))
    except PoscliError as error:
        checks.append(_check("default corpus", "broken", str(error)))
    return checks


def _folder(path: Path) -> dict[str, str]:
    nearest = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return _check("results", "ok", f"{path} can be written")
    return _check("results", "broken", f"{nearest} cannot be written; choose another folder with --out")


def _show(checks: list[dict[str, str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "state", "detail"):
        table.add_column(column, no_wrap=column != "detail")
    styles = {"ok": "green", "missing": "yellow", "broken": "red"}
    for check in checks:
        table.add_row(
            check["check"], f"[{styles[check['state']]}]{check['state']}[/]", check["detail"].replace("[", r"\[")
        )
    out().print(table)
