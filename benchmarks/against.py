"""Models of poscli's sizes in another implementation, timed in turns with poscli's own: for maintainers.

    python benchmarks/against.py x-transformers -e alibi     the same model in another library
    python benchmarks/against.py nanogpt-like -e alibi       the same sizes in plain PyTorch

It takes the options of `poscli bench`, measures nothing but the comparison, and adds `against.csv` and a picture to the
folder of `--out`. docs/BENCH.md says what is equal in both models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer
from peers import Peer, PeerModel, PeerStep, batch_of, find_peer, forward_backward
from rich.console import Console
from rich.table import Table

from poscli.__main__ import main
from poscli.bench.cases import BenchCase, Refused, TimeEstimate, needs_of_model, outcome, refuse_large_case
from poscli.bench.commands import FLAGS, Folder, Resume, Threads, conclude, prepared
from poscli.bench.session import Bench, case_values, measured_values, model_values, once_message
from poscli.bench.settings import AUTO, BenchSettings
from poscli.bench.show import Bar, BarPage, how_measured, number_table, print_failures
from poscli.bench.tables import MEMORY_OF, OUTCOME, SHAPE, TIMES, WHERE, Columns, ResultFile
from poscli.bench.timing import Conditions, Row, Sizes, Work, ratio
from poscli.bench.workloads import forward, untrained_model, work_of
from poscli.cli.commands import command
from poscli.cli.options import Device, Json, from_model
from poscli.config.run import RunConfig
from poscli.drawing.page import written
from poscli.drawing.style import PALETTE
from poscli.drawing.text import amount, number
from poscli.system.console import note, out
from poscli.system.errors import UsageError
from poscli.system.files import write_atomic
from poscli.system.progress import Meter

FORWARD_BACKWARD = "forward+backward"  # workload: a training step without its optimizer
FILE = "against.csv"
COLUMNS: Columns = {
    "what": ("str", "train (a whole step with poscli's optimizer in both), forward+backward, or eval"),
    "encoding": ("str", "canonical spec"),
    "engine": ("str", "attention engine of poscli that ran"),
    "peer": ("str", "what poscli is compared with: a library and its version, or nanogpt-like"),
    "peer_attention": ("str", "fused, or eager where the peer has no fused path for this encoding and workload"),
    "peer_differs": ("str", "how its model and its version of the encoding differ; empty if they do not"),
    "length": ("int64", "tokens in a window"),
    "batch": ("int64", "windows at once"),
    "tokens": ("int64", "tokens that one run processes, equal for both"),
    **OUTCOME,
    **TIMES,
    "peer_seconds": ("float64", "time of one run in the peer: median over the same turns"),
    "peer_seconds_min": ("float64", "shortest turn"),
    "peer_seconds_max": ("float64", "longest turn"),
    "tokens_per_s": ("float64", "tokens / seconds"),
    "peer_tokens_per_s": ("float64", "tokens / peer_seconds"),
    "speedup": ("float64", "peer_seconds / seconds"),
    "speedup_low": ("float64", "smallest speedup of a turn"),
    "speedup_high": ("float64", "largest speedup of a turn"),
    "peak_mb": ("float64", "peak memory of one run in poscli above what was in use before it, MiB"),
    "peer_peak_mb": ("float64", "peak memory of one run in the peer"),
    **MEMORY_OF,
    "parameters": ("int64", "parameters of poscli's model, encoding included"),
    "peer_parameters": ("int64", "parameters of the peer's model"),
    **SHAPE,
    **WHERE,
}
# The columns that identify a comparison: `--resume` measures nothing again if a row with these values has a number.
KEY = ("what", "encoding", "peer", "length", "batch", *SHAPE, *WHERE)


class Against(Bench):
    """The comparison of all encodings that a peer has, too."""

    def __init__(
        self,
        settings: BenchSettings,
        device: torch.device,
        folder: Path,
        peer: Peer,
        *,
        resume: bool = False,
        sizes: Sizes | None = None,
    ) -> None:
        super().__init__(settings, device, folder, resume=resume, sizes=sizes)
        self.peer = peer
        known = {name: config for name, config in self.configs.items() if isinstance(config, RunConfig)}
        self.compared = {name: config for name, config in known.items() if name in peer.encodings()}
        if not self.compared:
            raise UsageError(
                f"{peer.title} has none of {', '.join(self.configs)}; it has {', '.join(peer.encodings())}"
            )
        self.comparisons = ResultFile(folder / FILE, COLUMNS, KEY)
        self.files = [self.comparisons]

    def run(self) -> None:
        """Measure everything. Raises Interrupted on a signal, with every row so far on disk."""
        if left_out := [name for name in self.configs if name not in self.peer.encodings()]:
            note(f"{self.peer.title} has no version of {', '.join(left_out)}: left out of the comparison")
        with self.writing(), Meter("against", len(self.compared)) as progress:
            for name, config in self.compared.items():
                model = self.peer.build(config, self.conditions.device)
                Comparison(self.conditions, config, model).run(self.cases, self.comparisons)
                progress.advance(1, f"{name} against {self.peer.title}")


class Comparison:
    """poscli's model of a run, and a peer's."""

    def __init__(self, conditions: Conditions, config: RunConfig, peer: PeerModel) -> None:
        self.conditions, self.config, self.peer = conditions, config, peer
        self.model = untrained_model(config, AUTO, conditions.device)
        self.time_of_poscli, self.time_of_peer = (TimeEstimate(conditions.settings.limit) for _ in range(2))

    def run(self, cases: list[BenchCase], file: ResultFile) -> None:
        """Add a row for every case of which the file has no number yet.

        Decoding is left out. A training step is timed a second time without its optimizer.
        """
        passes = [replace(case, what=FORWARD_BACKWARD) for case in cases if case.what == "train"]
        for case in [*passes, *(case for case in cases if case.what != "decode")]:
            values = self.conditions.where | self.peer.columns(case.training) | model_values(self.model, case)
            row = case_values(self.config, case) | file.known_columns(values)
            if not file.find(row):
                file.add(row | outcome(partial(self._measured, case)))

    def _measured(self, case: BenchCase) -> Row:
        """The measured columns of a case; those of poscli alone where the peer cannot be timed."""
        device, refused = self.conditions.device, {}
        self.time_of_poscli.check(case)
        refuse_large_case(self.config, needs_of_model(self.model, case.training), case, device)
        works = [self._work_of_poscli(case)]
        try:
            self.time_of_peer.check(case)
            refuse_large_case(self.config, self.peer.needs, case, device, f"{self.peer.title}: ")
            works.append(self._work_of_peer(case))
        except Refused as reason:
            refused = {"status": reason.status, "message": str(reason)}
        timings = self.conditions.time(works)
        for estimate, timing in zip((self.time_of_poscli, self.time_of_peer), timings, strict=False):
            estimate.note(case, timing.median)
        values = measured_values(case, timings[0])
        if len(timings) > 1:
            of_peer = measured_values(case, timings[1])
            names = ("seconds", "seconds_min", "seconds_max", "tokens_per_s", "peak_mb")
            values |= {f"peer_{name}": of_peer[name] for name in names}
            faster = ratio(timings[1], timings[0])
            values |= zip(("speedup", "speedup_low", "speedup_high"), faster, strict=True)
        return values | {"message": once_message(timings, self.conditions.settings.seconds)} | refused

    def _work_of_poscli(self, case: BenchCase) -> Work:
        if case.what == FORWARD_BACKWARD:
            batch = batch_of(self.config, self.conditions.device)
            return forward_backward(self.model, list(self.model.parameters()), batch)
        return work_of(self.model, self.config, case, self.conditions.device)

    def _work_of_peer(self, case: BenchCase) -> Work:
        model, device = self.peer.model, self.conditions.device
        if case.what == FORWARD_BACKWARD:
            return forward_backward(model, list(model.parameters()), batch_of(self.config, device))
        if case.what == "train":
            return PeerStep(model, self.config, device)
        return forward(model, case.batch, case.length, device)


def show(against: pd.DataFrame, console: Console) -> None:
    """Print a table for each peer, and below it the failures by cause."""
    for _, rows in against.groupby("peer", sort=False) if len(against) else ():
        console.print(comparison_table(rows))
        print_failures(rows, console)


def comparison_table(against: pd.DataFrame) -> Table:
    """A line per encoding, workload and length, for the rows of one peer."""
    peer = against["peer"].iloc[0]
    words = ("encoding", "work", "theirs")
    numbers = ["length", "poscli\ntokens/s", f"{peer.split()[0]}\ntokens/s", "times\nfaster", "least..most"]
    table = number_table(words, [*numbers, "poscli\nMiB", "theirs\nMiB", "parameters", "theirs"])
    table.title = f"beside {peer}"

    def pair(row: pd.Series, name: str) -> list[str]:
        return ["-" if pd.isna(value) else amount(value) for value in (row[name], row[f"peer_{name}"])]

    for _, row in against.iterrows():
        spread = f"{number(row['speedup_low'])}..{number(row['speedup_high'])}"
        table.add_row(
            *(row["encoding"], row["what"], row["peer_attention"], str(row["length"])),
            *pair(row, "tokens_per_s"),
            *(number(row["speedup"]), {0: "-", 1: "one run"}.get(row["repeats"], spread)),
            *pair(row, "peak_mb"),
            *pair(row, "parameters"),
        )
    return table


def draw_comparisons(against: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw a picture for each peer of which there are numbers; returns the files."""
    compared, files = against.dropna(subset=["speedup"]), []
    for peer, part in compared.groupby(compared["peer"].str.split().str[0], sort=False):
        files.append(folder / f"against-{peer}.png")
        draw_speed_beside_peer(part, files[-1])
    return files


def draw_speed_beside_peer(against: pd.DataFrame, path: Path) -> None:
    """Bars: speedup over a peer, in training and in the longest evaluation of each encoding."""
    library = against["peer"].iloc[0]
    peer = library.split()[0]
    groups = sorted(against.groupby("encoding"), key=lambda item: -item[1]["speedup"].max())
    bars = [bar for _, part in groups for bar in _bars(part)]
    page = BarPage(bars)
    page.name_axis(f"times faster than {peer}")
    faster = sum(bar.value >= 1 for bar in bars)
    share = f"all {faster}" if faster == len(bars) else f"{faster} of {len(bars)}"
    rest = "" if faster == len(bars) else f", {peer} in the rest"
    finding = f"poscli is the faster one in {share} comparisons{rest}."
    footnote = (
        f"{how_measured(against)} {library}: same layers, widths, heads, vocabulary, optimizer and tokens, in turns. "
        "Bars: its time over poscli's, medians; thin lines: from the least turn to the most. Blue: a training step; "
        f"orange: the longest evaluation of both; MiB: peak memory. Eager: {peer} has no fused attention for this "
        "encoding."
    )
    page.write(f"Models of one shape in poscli and in {peer}", finding, f"poscli : {peer}", footnote)
    write_atomic(path, written(page.figure, "png"))


def _bars(part: pd.DataFrame) -> Iterator[Bar]:
    """The bars of one encoding: a training step, then the longest evaluation."""
    shown = [part[part["what"] == "train"], part[part["what"] == "eval"].sort_values("length").tail(1)]
    for n, (_, row) in enumerate(pd.concat(shown).iterrows()):
        trained = row["what"] == "train"
        work = "training" if trained else f"reading {row['length']}"
        pairs = [f"{amount(row[name])} : {amount(row[f'peer_{name}'])}" for name in ("tokens_per_s", "peak_mb")]
        text = f"{row['speedup']:.2f}x {work}, {pairs[0]} tokens/s" + ("" if trained else f", {pairs[1]} MiB")
        if row["peer_attention"] == "eager":
            text += ", eager"
        spread = row["speedup_low"], row["speedup_high"]
        yield Bar("" if n else row["encoding"], row["speedup"], *spread, text, PALETTE[0 if trained else 1])


@from_model(FLAGS)
def against(
    settings: BenchSettings,
    peer: Annotated[str, typer.Argument(help="x-transformers, a library, or nanogpt-like, plain PyTorch.")],
    threads: Threads = None,
    resume: Resume = False,
    device: Device = "auto",
    out_: Folder = Path("results/bench"),
    json_: Json = False,
) -> None:
    """Time models of poscli's sizes in another implementation, in turns with poscli's own."""
    where = prepared(out_, threads, device)
    session = Against(settings, where, out_, find_peer(peer), resume=resume)
    session.run()
    table = session.comparisons.table()
    own = session.own(table)
    pictures = draw_comparisons(own, out_)
    conclude(where, {"against": table}, session.files, pictures, json_, lambda: show(own, out()))


if __name__ == "__main__":
    command("against")(against)  # with the options, the errors and the exit codes of poscli's own commands
    sys.argv.insert(1, "against")
    main()
