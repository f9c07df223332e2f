"""What repairs a damaged evaluation: the command that makes it again, under the settings it was made under."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from poscli.config.run import OtherCorpus, Recalibration
from poscli.runs.run import AS, EVAL, EVALUATED, EXPLAINED, LOSSES, Run, evaluated_as
from poscli.system.errors import CorruptError


class DamagedEvaluation(CorruptError):
    """The evaluation of a run is damaged, while its model may be whole. `command` makes the evaluation again."""

    def __init__(self, run: Run, fault: str, *, why: bool = False) -> None:
        command = repairing(run, why=why)
        super().__init__(f"{fault}; repair it: {command}")
        self.run_id, self.fault, self.command = run.id, fault, command


def repairing(run: Run, *, why: bool = False) -> str:
    """The command that evaluates a run again as it was evaluated; `why`: and makes the analyses beside it again."""
    settings, judge = _settings(run), ""
    if why:
        judge = str(_object(run, EXPLAINED).get("judge", ""))
    words: list[object] = ["poscli", "extrapolate", "--run", run.home.name]
    words += evaluation_options(settings, run.config.encoding if run.under_another else "", run.recalibration)
    words += ["--on", run.corpus] if run.other_corpus else []
    words += ["--why"] if why else []
    words += ["--judge", judge] if judge else []
    if (out := run.home.parent.parent) != Path("results"):
        words += ["--out", out]
    return command_line(*words)


def part_of(home: Run, known: Mapping[str, Any]) -> Run:
    """The post-hoc evaluation of a trained run that an eval.json with this content belongs to."""
    how = Recalibration.model_validate(known["recalibration"]) if "recalibration" in known else None
    on = OtherCorpus.model_validate(known["on"]) if "on" in known else None
    return evaluated_as(home, str(known.get("encoding")), how, on)


def damaged_part(home: Run, folder: Path, fault: str) -> CorruptError:
    """The error of a post-hoc evaluation whose eval.json is damaged.

    What is left of that file, or of eval.csv, tells the encoding; the name of the folder shows whether that is right.
    """
    for known in _remains(home, folder):
        try:
            part = part_of(home, known)
        except (ValueError, TypeError):
            continue
        if part.folder == folder:
            return DamagedEvaluation(part, fault)
    return CorruptError(f"{fault}; repeat the `poscli extrapolate --run {home.id} --as` that made it")


def _remains(home: Run, folder: Path) -> Iterator[Mapping[str, Any]]:
    """What damaged files may still say of the encoding that a model was evaluated as, in the form of eval.json."""
    with suppress(OSError, ValueError, RecursionError):
        if isinstance(known := json.loads((folder / EVALUATED).read_bytes()), dict):
            yield known
    with suppress(OSError, ValueError, IndexError):
        row = (folder / EVAL).read_text().splitlines()[1]
        yield from ({"encoding": cell.removeprefix(f"{home.config.encoding}{AS}")} for cell in next(csv.reader([row])))


def evaluation_options(
    settings: Mapping[str, Any], encoding: str = "", recalibration: Recalibration | None = None
) -> list[object]:
    """The options of `poscli extrapolate` for settings as in eval.json, but for those that choose a run.

    `encoding` is the one that the model is evaluated as, if it was trained with another one.
    """
    words: list[object] = []
    for name in ("max_len", "tokens", "stride", "ngram"):
        words += [f"--{name.replace('_', '-')}", settings[name]] if name in settings else []
    if "ratios" in settings:  # with all digits: others would be other settings
        words += ["--lengths", ",".join(repr(float(ratio)).removesuffix(".0") for ratio in settings["ratios"])]
    for option, name in (("--baseline", "baselines"), ("--protocol", "protocols")):
        words += [word for value in settings.get(name, ()) for word in (option, value)]
    if encoding:
        words += ["--as", encoding]
    if recalibration is not None:
        words += ["--recalibrate", recalibration.tokens, "--recalibrate-length", recalibration.length]
    return words


def command_line(*words: object) -> str:
    """Words as a command that a shell takes."""
    return " ".join(shlex.quote(str(word)) for word in words)


def _settings(run: Run) -> Mapping[str, Any]:
    """The settings of an evaluation: from eval.json, else from the analyses or the losses; empty if all are damaged."""
    if settings := _object(run, EVALUATED).get("settings") or _object(run, EXPLAINED):
        return settings
    newest_first = sorted((run.folder / LOSSES).glob("*.parquet"), key=lambda file: file.lstat().st_mtime, reverse=True)
    # Some files may be left from an evaluation under other settings.
    return next(filter(None, (_settings_of_losses(run, file.name) for file in newest_first)), {})


def _object(run: Run, name: str) -> dict[str, Any]:
    """The JSON object in a sealed file; an empty one if there is none, or it is damaged."""
    try:
        return run.files.read_object(name)
    except CorruptError:
        return {}


def _settings_of_losses(run: Run, name: str) -> Mapping[str, Any]:
    """The settings that losses were measured under, which their file holds as well."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(io.BytesIO(run.files.read(f"{LOSSES}/{name}"))).metadata or {}
        key = json.loads(metadata[b"key"])
    except (CorruptError, pa.ArrowException, OSError, ValueError, KeyError):
        return {}
    return key[2] if isinstance(key, list) and len(key) > 2 and isinstance(key[2], dict) else {}
