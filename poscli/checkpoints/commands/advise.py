"""`poscli advise`: under which encoding a checkpoint reads longer inputs best, and what to paste for that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from poscli.cli import complete, plan
from poscli.cli.commands import command
from poscli.cli.options import Device, Json, Out
from poscli.system.console import emit, out
from poscli.system.errors import UsageError, near
from poscli.system.text import printable

if TYPE_CHECKING:
    from poscli.checkpoints.matrix import Matrix
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
        autocompletion=complete.encodings,
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
    from poscli.checkpoints.matrix import Question, opened
    from poscli.estimate import evaluations

    programs = _programs(runtime or [])
    question = Question(model, target, corpus, _count(tokens), tuple(as_ or ()), device)
    matrix = opened(question, out_ / "runs")
    jobs = evaluations(matrix.work, why=False)
    if dry_run:
        plan.show(jobs, json_)
        return
    plan.confirm(sum(job.seconds for job in jobs), "--target or --tokens", yes=yes)
    _measure_and_tell(matrix, programs, json_)


def _measure_and_tell(matrix: Matrix, programs: list[str], json_: bool) -> None:
    """Make the evaluations, and print the advice with what to paste."""
    from poscli.checkpoints.matrix import measured, to_paste
    from poscli.report.advice import advice_on, answer, show_advice
    from poscli.statistics.comparison import LossTable

    tables = measured(matrix)
    advice = advice_on(tables.rows, LossTable(tables.details["units"]), matrix.name, matrix.target)
    pasted, other, others = to_paste(matrix, advice, programs)
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


def _programs(names: list[str]) -> list[str]:
    """The programs to write for; UsageError for one that is not known."""
    for name in names:
        if name not in PROGRAMS:
            raise UsageError(f"--runtime {name!r}: {near(name, PROGRAMS)}")
    return names or list(PROGRAMS)


def _count(text: str) -> int:
    """The number of tokens to score; UsageError for a text that is none."""
    from pydantic import TypeAdapter, ValidationError

    from poscli.config.validate import TokenCount, rule

    try:
        return int(TypeAdapter(TokenCount).validate_python(text))
    except ValidationError as error:
        raise UsageError(f"--tokens {text!r}: {rule(error)}") from error


def _show(snippets: list[Snippet]) -> None:
    """Print what to paste, unbroken, so that it can be copied; or why there is nothing."""
    for each in snippets:
        out().print()
        out().print(Text(f"{each.runtime}: {each.action}" if each.action else each.runtime, style="bold"))
        if each.text:
            out().print(Text(printable(each.text, keep="\n")), soft_wrap=True)
        for line in filter(None, (each.reason, *each.notes)):
            out().print(Padding(Text(printable(line), style="dim"), (0, 0, 0, 2), expand=False))
