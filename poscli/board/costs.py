"""What an encoding of the board costs, and what its texts hold.

Costs are those of a training step and of reading the longest windows, timed in turns with a model without an encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from poscli.bench.cases import BenchCase, eval_batch
from poscli.bench.settings import AUTO, YARDSTICK
from poscli.bench.timing import TurnPace, time_in_turns
from poscli.bench.workloads import untrained_model, work_of
from poscli.board.cells import MADE_ON, CostCell, MadeBy, TextProfile, cost_file, profile_file, write_kept
from poscli.board.gather import BoardJob, labels_of
from poscli.board.season import Season
from poscli.config.code import MEASURING, TRAINING, code_of
from poscli.config.run import RunConfig
from poscli.equation import Unsupported
from poscli.evaluation.evaluate import settings_of
from poscli.evaluation.measure import PASS_TOKENS
from poscli.runs.run import AS
from poscli.statistics import Triple
from poscli.sweep.job import Job
from poscli.system.console import note
from poscli.system.device import threads
from poscli.system.errors import DataError
from poscli.system.progress import Meter
from poscli.system.provenance import measured_on
from poscli.system.text import utc_stamp
from poscli.workflows import measure_text

BYTES = "bytes"  # the tokenizer that is not trained on a text
PACE = TurnPace(repeats=15, seconds=6.0, sample=0.05)


def measure_costs(jobs: Sequence[BoardJob], season: Season, cells: Path, device: torch.device) -> None:
    """Measure and keep the costs of every encoding of these jobs that has none yet, on one core.

    A model that is read under another encoding has the training cost of its own. What cannot read the longest windows
    has none.
    """
    wanted: dict[tuple[str, str], Job] = {}
    tables = {table.name for table in season.table}
    for of in jobs:
        table, job = of.table, of.job
        if table in tables and job.config.length == min(each.job.config.length for each in jobs if each.table == table):
            for label in labels_of(job):
                if not (cells / cost_file(season.name, table, label)).exists():
                    wanted.setdefault((table, label), job)
    with threads(1), Meter("cost", len(wanted)) as progress:
        trained: dict[tuple[str, str], Triple] = {}
        for (table, label), job in wanted.items():
            none = job.config.model_copy(update={"encoding": YARDSTICK, "plugins": {}})
            own = job.config.encoding
            if (table, own) not in trained:
                trained[table, own] = _ratio(job.config, none, BenchCase("train", none.length, none.batch), device)
            longest = settings_of(job.config, job.extrapolate).lengths[-1]
            case = BenchCase("eval", longest, eval_batch(longest, PASS_TOKENS))
            read_as = job.config.model_copy(update={"encoding": label.rpartition(AS)[2]})
            try:
                reading = _ratio(read_as, none, case, device)
            except Unsupported as error:  # as its losses, and it has no rank
                note(f"no costs of {label}: {error}")
                continue
            cost = CostCell(
                season=season.name,
                table=table,
                encoding=label,
                training=trained[table, own],
                reading=reading,
                origin=_made_here(read_as.encoding, device),
            )
            write_kept(cells / cost_file(season.name, table, label), cost)
            progress.advance(1, label)


def measure_texts(season: Season, cells: Path) -> None:
    """Measure and keep how far back the season's texts repeat themselves, where that is not done."""
    train = season.train
    assert train.length is not None
    for text in season.scored:
        if (cells / profile_file(season.name, text)).exists():
            continue
        try:
            found = measure_text(text, train.tokenizer, train.length, "" if train.tokenizer == BYTES else train.corpus)
        except DataError as error:  # the ranks do not need it
            note(f"no profile of {text}: {error}")
            continue
        profile, last = found["profile"], found["windows"][-1]
        kept = TextProfile(
            season=season.name,
            text=text,
            ngram=profile["ngram"],
            octaves=tuple((first, stop) for first, stop in profile["octaves"]),
            density=tuple(float(f"{each:.4g}") for each in profile["density"]),
            exponent=_triple(profile["exponent"]),
            won=_triple([last[name] for name in ("won", "low", "high")]),
        )
        write_kept(cells / profile_file(season.name, text), kept)


def _triple(values: Sequence[float | None]) -> Triple | None:
    """An estimate with its interval, rounded; None if one of them is not known."""
    known = [round(each, 4) for each in values if each is not None]
    return (known[0], known[1], known[2]) if len(known) == len(values) else None


def _ratio(config: RunConfig, none: RunConfig, case: BenchCase, device: torch.device) -> Triple:
    """The seconds of a case over those of the yardstick: the median over turns, and the quartiles."""
    works = [work_of(untrained_model(each, AUTO, device), each, case, device) for each in (none, config)]
    base, own = time_in_turns(works, PACE, device)
    low, median, high = np.quantile([a / b for a, b in zip(own.seconds, base.seconds, strict=True)], [0.25, 0.5, 0.75])
    return round(float(median), 3), round(float(low), 3), round(float(high), 3)


def _made_here(spec: str, device: torch.device) -> MadeBy:
    here, code = measured_on(device), f"{code_of(spec, TRAINING)} {code_of(spec, MEASURING)}"
    return MadeBy(**{name: here[name] for name in MADE_ON}, code=code, date=utc_stamp())
