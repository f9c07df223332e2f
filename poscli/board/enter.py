"""An encoding of one's own on the board: verified, trained as all others, ranked among them, and bundled."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poscli.board.bundle import NAME, Again, Bundle, compare_again, refuse_taken, write_bundle
from poscli.board.cells import encoding_folder, read_cells
from poscli.board.gather import BoardJob, gather, refuse_other_source, source_of_encoding
from poscli.board.progress import missing_jobs, plan_jobs, run_missing, tune
from poscli.board.ranking import SPENT
from poscli.board.season import Season, SeasonTable, table_names
from poscli.board.standings import Standings, standings_of
from poscli.board.tables import number_text
from poscli.config.suite import Suite
from poscli.specs import parse
from poscli.sweep.crew import Crew
from poscli.sweep.job import Job, jobs_of, perform, trials_of, tunings_of
from poscli.system.console import note
from poscli.system.device import device_of, threads
from poscli.system.errors import PoscliError, UsageError
from poscli.system.files import write_atomic
from poscli.verify import verify
from poscli.workflows import prepare

FOLDER = "rank"  # in the folder of results
SUBMISSION = "submission.txt"  # beside a bundle
CELLS_OF = "cells-"  # begins the names of the folders of cells there, before the hash of a source
SEEDS = min(SPENT)
IN_FILE = r"[^|+(]*\.py:"  # the file of a class in a spec
WORD_BEGINS = r"(?<=[a-z0-9])(?=[A-Z])"


@dataclass(frozen=True)
class Contender:
    """An encoding that enters a table of a season. Its cells and its bundle lie in `folder`, its runs in `out`."""

    spec: str
    name: str
    source: Path | None  # its file, if it has one
    text: str  # of that file when it was verified
    code: str  # hash of the source of its encodings
    season: Season
    table: SeasonTable
    board: Path  # the folder of the board's cells
    out: Path

    @property
    def folder(self) -> Path:
        """The folder of its own cells and of its bundle."""
        return self.out / FOLDER / encoding_folder(self.name)

    @property
    def cells(self) -> Path:
        """The folder of the cells of its source. Each source of a name has its own, in `folder`."""
        return self.folder / f"{CELLS_OF}{self.code}"

    @property
    def shared_spec(self) -> str:
        """Its spec for others to read: with the name of its file alone, because the path is private to this machine."""
        name = self.source.name if self.source else ""
        return re.sub(IN_FILE, lambda _: f"{name}:", self.spec)

    @property
    def tried(self) -> list[str]:
        """The hashes of all sources that were ranked under its name."""
        return sorted(path.name.removeprefix(CELLS_OF) for path in self.folder.glob(f"{CELLS_OF}*"))

    def suite(self, *, tuned: bool) -> Suite:
        """Its training and evaluation, as those of all others."""
        return self.season.suite(self.table, self.season.seeds(SEEDS), [self.spec], tuned=tuned)

    def jobs(self, device: str, *, tuned: bool, to_plan: bool = False) -> list[BoardJob]:
        """Its jobs for the board; with `to_plan`, those that wait for trials, too (`jobs_of`).

        UsageError if its source was edited since it was verified.
        """
        jobs = jobs_of(self.suite(tuned=tuned), device, self.out / "runs", to_plan=to_plan)
        if any(source_of_encoding(self.spec, job.config) != self.code for job in jobs):
            raise UsageError(f"{self.source} was edited since it was verified; repeat the command, which ranks it anew")
        return [BoardJob(self.season.name, self.table.name, job, {self.spec: self.name}) for job in jobs]

    def jobs_with_tuned_rates(self, device: str) -> list[Job]:
        """Its trials that are not made yet, and its jobs with the rates that they find: to plan, not to be done."""
        trials = trials_of(tunings_of(self.suite(tuned=True), device, self.out), device)
        return [*trials, *(each.job for each in self.jobs(device, tuned=True, to_plan=True))]

    def write_bundle(self) -> Path:
        """Write its cells and its source as a bundle; returns the path."""
        return write_bundle(
            self.folder / "bundle.zip",
            name=self.name,
            spec=self.shared_spec,
            season=self.season,
            table=self.table.name,
            tried=self.tried,
            folder=self.cells,
            source=(self.source.name, self.text) if self.source else None,
        )


def contender_of(enc: str, name: str | None, season: Season, table: str, board: Path, out: Path) -> Contender:
    """The entry of an encoding, after it was verified.

    UsageError for a name that is taken, a spec that is on the board already, or one of several files; PoscliError if a
    check fails; DataError without cells to rank it among.
    """
    chosen = season.table_named(table)
    spec, ranked = str(parse(enc)), {str(parse(each)) for each in chosen.encodings}
    if spec in ranked:
        raise UsageError(f"{spec} is on the board already; `poscli board build` shows its row")
    files = sorted({file[:-1] for file in re.findall(IN_FILE, spec)})
    if len(files) > 1:
        raise UsageError(f"{spec} is of {' and '.join(files)}, and a bundle holds one file; write its classes into one")
    source = Path(files[0]) if files else None
    text = source.read_text(encoding="utf-8") if source else ""
    name = name or re.sub(r"[^|+(]*:(\w+)", lambda leaf: re.sub(WORD_BEGINS, "-", leaf[1]).lower(), spec)
    if not re.fullmatch(NAME, name):
        raise UsageError(f"--name {name!r} has other characters than letters, digits and .+|(),=-; choose another one")
    cells = read_cells(board, season.name)
    standings_of(board, season)  # first: without a board there are no ranks
    seeds = season.seeds(1)
    (config,) = prepare(season.suite(chosen, seeds, [spec]).train, [spec], seeds, device_of("cpu")).configs
    code = source_of_encoding(spec, config)
    refuse_taken(name, {code}, cells, ranked)
    verdict = verify(spec)
    if verdict.status != "passed":
        faults = ", ".join(each.check for each in verdict.findings if each.status in ("failed", "unavailable"))
        raise PoscliError(f"{enc} does not hold what every encoding must: {faults}; `poscli verify {enc}` shows why")
    note(f"{name}: all checks of `poscli verify` hold")
    return Contender(spec, name, source, text, code, season, chosen, board, out)


def tune_entry(entry: Contender, crew: Crew, device: str) -> None:
    """Choose its learning rates by nine trials, as `poscli tune` does, unless that was done before."""
    (tuning,) = tunings_of(entry.suite(tuned=True), device, entry.out)
    if tuning.known() is None:
        note(f"{entry.name}: nine trials with half of the tokens")
        tune([tuning], crew, device)


def enter(entry: Contender, crew: Crew, device: str, *, tuned: bool) -> list[dict[str, str]]:
    """Train and score what is missing of an entry; returns the jobs that failed, each with the cause."""
    left = missing_jobs(entry.jobs(device, tuned=tuned), entry.cells)
    if not left:
        return []
    fitting, planned = plan_jobs(crew, [each.job for each in left])
    return run_missing(left, planned, fitting, entry.cells, entry.out / "runs")


def row_of_entry(entry: Contender, *, tuned: bool) -> Standings | None:
    """The table in which an entry stands, with its row; None if nothing of it was scored."""
    tables = standings_of(entry.board, entry.season, entry.cells)
    own = [each for each in tables if (each.table, each.tuned) == (entry.table.name, tuned)]
    return next((each for each in own if any(row.encoding == entry.name for row in each.rows)), None)


def write_submission(entry: Contender, rows: Sequence[Mapping[str, Any]], bundle: Path) -> str:
    """Write the text to submit a bundle with into a file beside it, and return the text with the path of the bundle.

    `rows` are the records of its rows; each also says, as `of`, how many encodings of that table have a rank.
    """
    lines = []
    for row in rows:
        rank = f"rank {row['ranks']} of {row['of']}" if row["of"] > 1 else "no rank, as the only one"
        rank = rank if row["ranks"] else row["status"]
        regret = number_text(math.nan if row["regret"][0] is None else row["regret"][0], "z.2f")
        lines.append(f"  {row['label']}: {rank} on table {entry.table.name}, regret {regret}")
    tried = f"sources ranked under this name: {len(entry.tried)}"
    head = f"  {entry.name}, season {entry.season.name}, spec {entry.shared_spec}; {tried}"
    check = f"  whoever receives {bundle.name} runs `poscli board check {bundle.name}`"
    text = "\n".join([head, *lines, check])
    write_atomic(bundle.with_name(SUBMISSION), text + "\n")
    return f"to submit it, send {bundle} with this text, which lies beside it:\n{text}"


def made_again(bundle: Bundle, season: Season, out: Path, device: str) -> list[Again]:
    """Train the models of the cells that the hash of a bundle draws, from the source in it, and compare them.

    `out` is the folder of the runs. PoscliError if a cell cannot be made.
    """
    if bundle.table not in table_names(season, []):
        raise UsageError(f"the bundle is of table {bundle.table!r}, which season {season.name} does not have")
    table, spec = season.table_named(bundle.table), bundle.spec
    table = table.model_copy(update={"readings": {}})  # cells of other readings are not in the bundle
    if bundle.source_file is not None:
        spec = re.sub(IN_FILE, lambda _: f"{bundle.source_file}:", spec)
    results = []
    for cell in bundle.drawn():
        suite = season.suite(table, [cell.seed], [spec])
        suite = suite.model_copy(update={"extrapolate": suite.extrapolate.model_copy(update={"on": [cell.text]})})
        (job,) = jobs_of(suite, device, out / "runs")
        if cell.recipe:
            recipe = job.config.recipe.model_copy(update=dict(cell.recipe))
            job = job.model_copy(
                update={"config": job.config.model_copy(update={"recipe": recipe, "tuning": "bundle"})}
            )
        refuse_other_source([job])
        note(f"again: {cell.text}, seed {cell.seed}")
        with threads(1):
            outcome = perform(job)
        if outcome.error:
            raise PoscliError(f"{cell.file.name} cannot be made again: {outcome.error}")
        gather(BoardJob(season.name, table.name, job, {str(parse(spec)): bundle.name}), out / "cells")
        made = next((each for each in read_cells(out / "cells", season.name) if each.key == cell.key), None)
        if made is None:
            raise PoscliError(
                f"{cell.file.name} cannot be made again: its source or its recipe is not that of this version; "
                f"it was made at commit {cell.origin.commit}"
            )
        results.append(compare_again(bundle, made))
    return results
