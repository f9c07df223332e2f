"""`poscli audit`: whether a server computes the positions that its model's config.json states."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from poscli.checkpoints import CORPUS
from poscli.checkpoints.commands import PLACE, PROSE
from poscli.cli import complete, plan
from poscli.cli.commands import command
from poscli.cli.options import Device, Json
from poscli.system.console import emit, out
from poscli.system.errors import FAILED
from poscli.system.text import printable

if TYPE_CHECKING:
    from poscli.checkpoints.served.audit import Audit


@command("audit", after="card")
def audit_server(
    url: Annotated[str, typer.Argument(help="The server, such as http://localhost:8000.", metavar="URL")],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="The checkpoint that it should serve: a folder, hf:ORG/NAME@REVISION or a file of GGUF.",
            metavar=PLACE,
        ),
    ],
    as_: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="The positions that it was told to compute, by default those of config.json.",
            autocompletion=complete.specs,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="The longest inputs to try: tokens, such as 8192, 32k or 2x; by default what the server says that it "
            "takes, at most twice the trained length.",
        ),
    ] = None,
    served: Annotated[
        str | None, typer.Option("--served", help="The server's name of the model, if it has several.")
    ] = None,
    corpus: Annotated[
        str, typer.Option("--corpus", help="The text to read.", autocompletion=complete.corpora)
    ] = CORPUS,
    yes: plan.Yes = False,
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Say whether a server computes the positions that its model's config.json states, and how far it reads.

    The server must give log-probabilities of a prompt: vLLM, SGLang and llama.cpp do. The same checkpoint is read here,
    and both are compared. A key is read from POSCLI_API_KEY; OPENAI_API_KEY is sent to openai.com only. The exit code
    is 1 if there are faults.
    """
    from poscli.checkpoints.served.audit import audited, open_audit

    auditor, seconds = open_audit(url, model, as_=as_, target=target, served=served, corpus=corpus, device_name=device)
    plan.confirm(seconds, "--target", yes=yes)
    audit = audited(auditor)
    emit(json_, asdict(audit), lambda: _show(audit))
    if audit.faults:
        raise typer.Exit(FAILED)


def _show(audit: Audit) -> None:
    """Print the answer in a sentence, then what it rests on."""
    from poscli.checkpoints.served.audit import audit_verdict

    style = "bold red" if audit.faults else "bold green"
    out().print(
        Padding(Text(printable(audit_verdict(audit)), style=style), expand=False), width=min(out().width, PROSE)
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("tokens", "served", "here"):
        table.add_column(name, justify="right")
    for reading in audit.readings:
        said = "refused" if reading.served is None else f"{reading.served:.3f}"
        table.add_row(str(reading.tokens), said, f"{reading.own:.3f}")
    out().print(
        Text(f"\nLoss of a passage at the end of so many tokens, in nats per token; here: under {audit.explains}")
    )
    out().print(Padding(table, (0, 0, 0, 2)))
    lines = [f"{audit.served} by {audit.program}, beside {audit.model}"]
    lines.append(f"difference of log-probabilities from {audit.expected}: {audit.residual:.3f} nats")
    if audit.explains != audit.expected:
        lines.append(f"difference of log-probabilities from {audit.explains}: {audit.residual_explained:.3f} nats")
    for line in lines:
        out().print(Text(printable(line), style="dim"), soft_wrap=True)
