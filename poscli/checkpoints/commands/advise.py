"""`poscli advise`: under which encoding a checkpoint reads longer inputs best, and what to paste for that."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from poscli.checkpoints.commands import Checkpoint
from poscli.checkpoints.request import AdviceRequest
from poscli.cli import plan
from poscli.cli.commands import command
from poscli.cli.options import Device, Json, Out, from_model
from poscli.system.console import emit, note, out
from poscli.system.errors import UsageError, near
from poscli.system.text import counted, printable

if TYPE_CHECKING:
    from poscli.checkpoints.budget import Dropped
    from poscli.checkpoints.matrix import Matrix
    from poscli.checkpoints.paste import Snippet
    from poscli.checkpoints.search import Found

SEARCH_SHARE = 1 / 3  # of --minutes, after which no further number is looked for
SEARCHED = 5  # evaluations of the model as it is, which take about as long as the search and what it adds
PROGRAMS = ("transformers", "vllm", "llama.cpp")  # the keys of RUNTIMES in poscli.checkpoints.paste, which is slow

Target = Annotated[
    str,
    typer.Option(
        "--target",
        help="The length of the inputs: tokens, such as 8192, 32k (32,768) or 1M, or 4x the trained length.",
    ),
]
Runtime = Annotated[
    list[str] | None,
    typer.Option(
        "--runtime", help="What you run the model with: transformers, vllm or llama.cpp, by default all; repeatable.",
        autocompletion=lambda: list(PROGRAMS),
    ),
]  # fmt: skip


@command("advise", after="extrapolate")
@from_model({"baselines": ("--baseline",)})
def advise(
    model: Checkpoint,
    target: Target,
    request: AdviceRequest,
    *,
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
    With --minutes, the encodings that do worse on the first inputs are left out of the next ones.
    """
    from poscli.checkpoints import budget, matrix
    from poscli.checkpoints.advice import advice_on, answer, show_advice
    from poscli.checkpoints.search import searched
    from poscli.estimate import evaluations
    from poscli.statistics.comparison import LossTable

    begun = time.monotonic()
    for name in runtime or ():
        if name not in PROGRAMS:
            raise UsageError(f"--runtime {name!r}: {near(name, PROGRAMS)}")
    runs = out_ / "advise" / "runs"  # of their own: what `extrapolate` measured with other settings stays
    asked = matrix.opened(model, target, request, device_name=device, runs=runs)
    if dry_run:
        plan.show(evaluations(asked.work, why=False), json_)
        if request.minutes is not None:
            note(f"this is without a limit: --minutes {request.minutes:g} leaves encodings out, or reads less text")
        if request.search:
            note("this is without --search, and without the encodings that it would add")
        return
    _confirm(asked, request, yes=yes)
    found: list[Found] = []
    if request.search:
        found = searched(asked, until=begun + 60 * SEARCH_SHARE * (request.minutes or math.inf))
        specs = [each.spec for each in found]
        asked = matrix.opened(model, target, request, device_name=device, runs=runs, found=specs)
    left_out: tuple[budget.Dropped, ...] = ()
    if request.minutes is not None:
        spent = budget.within(asked, request.minutes, begun=begun)
        tables, left_out = spent.tables, spent.left_out
    else:
        tables = matrix.measured(asked)
    advice = advice_on(
        tables.rows, LossTable(tables.details["units"]), asked.checkpoint.name, asked.target, dropped=len(left_out)
    )
    advice = replace(advice, unfollowed=len(left_out), more="--tokens" if request.minutes is None else "--minutes")
    pasted, other, others = matrix.to_paste(asked, advice, runtime or PROGRAMS)
    document = {"answer": answer(advice), **advice.record(), "paste": [asdict(each) for each in pasted]}
    document |= {"left_out": [asdict(each) for each in left_out], "search": [asdict(each) for each in found]}
    if other is not None:
        document["instead"] = {"spec": other.spec, "paste": [asdict(each) for each in others]}

    def show() -> None:
        for each in found:
            line = f"search for {each.number}: {each.spec}, {each.loss:.3f} bits per byte at the ends of other inputs"
            out().print(Text(printable(line), style="dim"))
        show_advice(advice, out())
        _show_left_out(left_out)
        _show(pasted)
        if other is not None:
            when = "The best that these programs can run" if advice.chosen else "If inputs must be read whole"
            out().print(Text(f"\n{when}: {printable(other.name)}.", style="bold"))
            _show(others)

    emit(json_, document, show)


def _confirm(asked: Matrix, request: AdviceRequest, *, yes: bool) -> None:
    """Ask whether to go on, if the measurement takes long; `yes` is the answer beforehand."""
    from poscli.estimate import evaluations

    if request.minutes is not None:
        plan.confirm(60 * request.minutes, "--minutes", yes=yes)
        return
    seconds = sum(job.seconds for job in evaluations(asked.work, why=False))
    if request.search:
        seconds += SEARCHED * evaluations(asked.work[:1], why=False, anew=True)[0].seconds
    plan.confirm(seconds, "--target or --tokens, or give --minutes", yes=yes)


def _show_left_out(left_out: tuple[Dropped, ...]) -> None:
    """Print which encodings were not followed to the end, those that were longest there first."""
    from poscli.drawing.text import listed

    for inputs in dict.fromkeys(each.inputs for each in left_out):
        group = [each for each in left_out if each.inputs == inputs]
        when = f"after {counted(inputs, 'input')} of each" if inputs else "on a screening (docs/CHECKPOINTS.md)"
        behind = [f"{each.spec} (+{each.behind:.2f})" for each in group if each.behind is not None]
        if behind:
            names = printable(listed(behind, most=len(behind)))
            out().print(Text(f"left out {when}, with the bits per byte above the best: {names}", style="dim"))
        for each in group:
            if each.behind is None:
                out().print(Text(printable(f"{each.spec}: {each.reason}"), style="dim"))


def _show(snippets: list[Snippet]) -> None:
    """Print what to paste, unbroken, so that it can be copied; or why there is nothing."""
    for each in snippets:
        out().print()
        out().print(Text(f"{each.runtime}: {each.action}" if each.action else each.runtime, style="bold"))
        if each.text:
            out().print(Text(printable(each.text, keep="\n")), soft_wrap=True)
        for line in filter(None, (each.reason, *each.notes)):
            out().print(Padding(Text(printable(line), style="dim"), (0, 0, 0, 2), expand=False))
