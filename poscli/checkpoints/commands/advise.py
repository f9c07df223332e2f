"""`poscli advise`: under which encoding a checkpoint reads longer inputs best, and what to paste for that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from poscli.cli import complete, plan
from poscli.cli.commands import command
from poscli.cli.options import Device, Json, Out, read_option
from poscli.system.console import emit, out
from poscli.system.errors import UsageError, near
from poscli.system.text import printable

if TYPE_CHECKING:
    from poscli.checkpoints.paste import Snippet

PROGRAMS = ("transformers", "vllm", "llama.cpp")  # the keys of RUNTIMES in poscli.checkpoints.paste, which is slow

Model = Annotated[str, typer.Argument(metavar="DIR|hf:ORG/NAME", help="A checkpoint of transformers.")]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        help="The length of the inputs: tokens, such as 8192, 32k (32,768) or 1M, or 4x the trained length.",
    ),
]
Corpus = Annotated[
    str,
    typer.Option("--corpus", help="The text to measure on, like your own.", autocompletion=complete.corpora),
]
Tokens = Annotated[str, typer.Option("--tokens", help="Tokens to score per length and protocol, such as 8k or 1M.")]
As = Annotated[
    list[str] | None,
    typer.Option(
        "--as", help="Compare these encodings, by default all that need no training; repeatable.",
        autocompletion=complete.specs,
    ),
]  # fmt: skip
Runtime = Annotated[
    list[str] | None,
    typer.Option(
        "--runtime", help="What you run the model with: transformers, vllm or llama.cpp, by default all; repeatable.",
        autocompletion=lambda: list(PROGRAMS),
    ),
]  # fmt: skip


@command("advise", after="extrapolate")
def advise(
    model: Model,
    target: Target,
    corpus: Corpus = "stdlib",
    tokens: Tokens = "8k",
    as_: As = None,
    runtime: Runtime = None,
    dry_run: plan.DryRun = False,
    yes: plan.Yes = False,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Say under which encoding a checkpoint reads longer inputs best, what that costs, and what to paste for it.

    It is measured under every encoding that needs no training, with the factor for the target written out, at the
    target and at its trained length. Where nothing is better than to read the last tokens of an input, it says so.
    """
    from poscli.checkpoints import matrix
    from poscli.config.validate import TokenCount
    from poscli.estimate import evaluations
    from poscli.report.advice import advice_on, answer, show_advice
    from poscli.statistics.comparison import LossTable

    for name in runtime or ():
        if name not in PROGRAMS:
            raise UsageError(f"--runtime {name!r}: {near(name, PROGRAMS)}")
    count = read_option(TokenCount, tokens, "--tokens")
    asked = matrix.opened(
        model, target, corpus=corpus, tokens=count, encodings=as_ or (), device_name=device, runs=out_ / "runs"
    )
    jobs = evaluations(asked.work, why=False)
    if dry_run:
        plan.show(jobs, json_)
        return
    plan.confirm(sum(job.seconds for job in jobs), "--target or --tokens", yes=yes)
    tables = matrix.measured(asked)
    advice = advice_on(tables.rows, LossTable(tables.details["units"]), asked.name, asked.target)
    pasted, other, others = matrix.to_paste(asked, advice, runtime or PROGRAMS)
    document = {"answer": answer(advice), **advice.record(), "paste": [each.record() for each in pasted]}
    if other is not None:
        document["instead"] = {"spec": other.spec, "paste": [each.record() for each in others]}

    def show() -> None:
        show_advice(advice, out())
        _show(pasted)
        if other is not None:
            out().print(Text(f"\nThe best of those that these programs have: {printable(other.name)}.", style="bold"))
            _show(others)

    emit(json_, document, show)


def _show(snippets: list[Snippet]) -> None:
    """Print what to paste, unbroken, so that it can be copied; or why there is nothing."""
    for each in snippets:
        out().print()
        out().print(Text(f"{each.runtime}: {each.action}" if each.action else each.runtime, style="bold"))
        if each.text:
            out().print(Text(printable(each.text, keep="\n")), soft_wrap=True)
        for line in filter(None, (each.reason, *each.notes)):
            out().print(Padding(Text(printable(line), style="dim"), (0, 0, 0, 2), expand=False))
