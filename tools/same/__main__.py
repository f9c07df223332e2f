"""Does this checkout compute and say what another one does? For changes that are to change nothing.

`make same BASE=COMMIT` trains and evaluates with both checkouts what the suites beside this file name (every encoding
for 20 steps, combinations, a task, grids, several corpora and tokenizers, a checkpoint, runs that fail), lets both make
reports of the runs of COMMIT, and lists every weight, number and sentence that differs. It speaks to both through the
command line alone. What depends on the time of day, on speed or on the checkout itself is left out.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from safetensors.torch import load_file

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SUITES = ("every", "language", "grid", "task", "corpora", "bytes", "bpe", "after", "limit", "seeds")
# Columns and keys that say how fast something was, or when, or by which checkout.
TIMED = ("seconds", "tokens_per_s", "peak", "memory", "time", "created", "commit", "poscli", "measured_ms")
RESULTS = {"tokenizers": ["bytes", "bpe"]}  # results of several suites in one folder


def main() -> int:
    """Record both checkouts, and print how they differ; the exit code is 1 if they do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path, help="folder of the checkout to compare with")
    parser.add_argument("--to", type=Path, default=Path("/tmp/same"), help="folder for what is recorded")
    parser.add_argument("--only", nargs="*", default=[], help="names of suites, instead of all")
    chosen = parser.parse_args()
    base, here = chosen.to / "base", chosen.to / "here"
    wanted = [name for name in (*SUITES, "checkpoint", "failures") if name in chosen.only or not chosen.only]
    for tree, folder in ((chosen.base, base), (ROOT, here)):
        _train_and_evaluate(tree.absolute(), folder.absolute(), wanted)
    told = {}
    for tree, name in ((chosen.base, "base"), (ROOT, "here")):
        told[name] = _reports(tree.absolute(), base.absolute(), (chosen.to / f"reports-{name}").absolute(), wanted)
    differences = [*_differing(_numbers(base), _numbers(here)), *_differing(told["base"], told["here"])]
    sys.stdout.writelines(f"{line}\n" for line in differences or ["the same weights, numbers and sentences"])
    return bool(differences)


def _train_and_evaluate(tree: Path, folder: Path, wanted: list[str]) -> None:
    """Train and evaluate with a checkout; what a folder has already is left as it is."""
    for name in wanted:
        out = folder / _results(name)
        done = out / f".done-{name}"
        if done.exists():
            continue
        if name == "checkpoint":
            model = folder.parent / "llama"
            if not model.exists():
                (program,) = (ROOT / "tests").rglob("trained_checkpoint.py")
                found = f"import sys, pathlib; sys.path.insert(0, {str(program.parent)!r}); import trained_checkpoint"
                _python(ROOT, "-c", f"{found}; trained_checkpoint.train(pathlib.Path({str(model)!r}), steps=40)")
            _poscli(tree, "extrapolate", "--model", model, "--max-len", "4x", "--as", "all", "--tokens", "512",
                    "--stride", "64", "--yes", "--out", out)  # fmt: skip
        else:
            codes = (3,) if name == "failures" else (0,)
            _poscli(tree, "run", HERE / "suites" / f"{name}.toml", "--yes", "--out", out, codes=codes)
        done.touch()


def _results(name: str) -> str:
    return next((folder for folder, names in RESULTS.items() if name in names), name)


def _reports(tree: Path, runs: Path, to: Path, wanted: list[str]) -> dict[str, str]:
    """What a checkout says of the runs in a folder: the text of every report by name, and digests of its pictures."""
    said = {}
    for out in sorted({runs / _results(name) for name in wanted}):
        mix = ["--mix"] if out.name in RESULTS else []
        made = to / out.name
        report = ("report", *mix, "--out", out, "--to", made)
        said[f"{out.name}: terminal"] = _poscli(tree, *report, "--site", made / "site", codes=(0, 3))
        said[f"{out.name}: json"] = _poscli(tree, *report, "--json", codes=(0, 3))
        for path in sorted(path for path in made.rglob("*") if path.is_file()):
            name = f"{out.name}: {path.relative_to(made)}"
            said[name] = _pixels(path) if path.suffix == ".png" else path.read_text(errors="replace")
        names = _encodings(out)
        if len(names) > 1 and not mix:
            for how in ((), ("--json",)):
                command = ("compare", *names[:2], *how, "--out", out)
                said[f"{out.name}: compare {' '.join(how)}"] = _poscli(tree, *command, codes=(0, 1, 2, 3))
        said[f"{out.name}: ls"] = _poscli(tree, "ls", "runs", "--out", out)
    return {name: _without_time(text) for name, text in said.items()}


def _encodings(out: Path) -> list[str]:
    """The encodings of a folder of runs, those with most runs first."""
    specs = [json.loads(path.read_text()).get("encoding", "") for path in sorted(out.glob("runs/*/config.json"))]
    return sorted(dict.fromkeys(specs), key=lambda spec: (-specs.count(spec), spec))


def _numbers(folder: Path) -> dict[str, str]:
    """The bits of all weights, and every row that is not about time, by file."""
    found = {}
    for path in sorted(folder.glob("*/runs/*/**/*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".csv":
            with path.open(newline="") as file:
                rows = [{k: v for k, v in row.items() if not _is_timed(k)} for row in csv.DictReader(file)]
            found[name] = "\n".join(json.dumps(row) for row in rows)
        elif path.suffix == ".safetensors":
            digest = hashlib.sha256()
            for key, tensor in sorted(load_file(path).items()):
                digest.update(key.encode() + tensor.contiguous().view(-1).numpy().tobytes())
            found[name] = digest.hexdigest()
        elif path.name in ("config.json", "details.json"):
            found[name] = json.dumps(_timeless(json.loads(path.read_text())), indent=1)
    return found


def _is_timed(name: str) -> bool:
    return any(word in name for word in TIMED)


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if not _is_timed(str(key))}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def _without_time(text: str) -> str:
    """A text without commits, dates, and the folders that this tool writes to."""
    text = re.sub(r"\b[0-9a-f]{7,40}\b", "HEX", text)
    text = re.sub(r"(/[\w.-]+){0,12}/(base|here|reports-base|reports-here)/", "/", text)
    text = re.sub(r"\d+(\.\d+)? (ms|s|min|h|seconds|minutes|hours)\b", "TIME", text)
    return re.sub(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?", "DATE", text)


def _pixels(path: Path) -> str:
    with Image.open(path) as image:
        return hashlib.sha256(image.convert("RGBA").tobytes()).hexdigest() + f" {image.size}"


def _differing(before: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """A line for every text that only one side has or that differs, with the first place where it does."""
    for name in sorted(before.keys() | now.keys()):
        if name not in now or name not in before:
            yield f"{name}: only in {'base' if name in before else 'here'}"
        elif before[name] != now[name]:
            at = next((n for n, (a, b) in enumerate(zip(before[name], now[name], strict=False)) if a != b), 0)
            place = slice(max(0, at - 60), at + 90)
            yield f"{name}: at {at}: {before[name][place]!r} -> {now[name][place]!r}"


def _poscli(tree: Path, *arguments: object, codes: tuple[int, ...] = (0,)) -> str:
    return _python(tree, "-m", "poscli", *arguments, codes=codes)


def _python(tree: Path, *arguments: object, codes: tuple[int, ...] = (0,)) -> str:
    """The stdout of a Python process that imports poscli from a checkout; raises if its exit code is another."""
    fixed = {"PYTHONPATH": str(tree), "POSCLI_NO_TUNING": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "140",
             "NO_COLOR": "1", "POSCLI_QUIET": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=os.environ | fixed, text=True, capture_output=True, cwd=tree.parent
    )
    if done.returncode not in codes:
        raise SystemExit(
            f"{' '.join(map(str, arguments))} in {tree} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
