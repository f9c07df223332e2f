"""Does this checkout compute and say what another one does? For changes that are to change nothing.

`make same BASE=COMMIT` trains and evaluates with both checkouts what the suites beside this file name (every encoding
that both have for 20 steps, combinations, a task, grids, several corpora and tokenizers, a checkpoint, runs that fail),
lets both make reports of the runs of COMMIT, and lists every weight, configuration, number and sentence that differs.
It speaks to both through the command line alone. What depends on the time of day, on speed or on the checkout itself is
left out. What was interrupted goes on as long as neither checkout changes.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from safetensors.torch import load_file

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SUITES = ("every", "language", "grid", "task", "corpora", "bytes", "bpe", "after", "limit", "seeds")
# Columns and keys that say how fast something was, or when, or by which checkout.
TIMED = {"seconds", "tokens_per_s", "peak_mb", "updated", "poscli", "commit", "trained_code", "measured_code"}
RESULTS = {"tokenizers": ["bytes", "bpe"]}  # results of several suites in one folder


@dataclass(frozen=True)
class Checkout:
    """A folder with poscli's source, and the folder for what it trains."""

    tree: Path
    folder: Path

    def poscli(self, *arguments: object, codes: tuple[int, ...] = (0,)) -> str:
        """The stdout of a command. What it caches is its own: a corpus that the other built would hide a change.

        But for compiled kernels, whose names change with their source: it would take minutes to compile them anew.
        """
        cache, kernels = self.folder / "cache", self.folder.parent / "native"
        kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
        cache.mkdir(parents=True, exist_ok=True)
        if not (cache / "native").exists():
            (cache / "native").symlink_to(kernels)
        return _python(self.tree, "-m", "poscli", *arguments, codes=codes, POSCLI_CACHE=str(cache))


def main(arguments: list[str] | None = None) -> int:
    """Record both checkouts, and print how they differ; the exit code is 1 if they do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path, help="folder of the checkout to compare with")
    parser.add_argument("--here", type=Path, default=ROOT, help="folder of the checkout that is compared, if not this")
    parser.add_argument("--to", type=Path, default=Path("/tmp/same"), help="folder for what is recorded")
    parser.add_argument("--only", nargs="*", default=[], help="names of suites, instead of all")
    chosen = parser.parse_args(arguments)
    wanted = [name for name in (*SUITES, "checkpoint", "failures") if name in chosen.only or not chosen.only]
    base, here = _checkouts(chosen.base.absolute(), chosen.here.absolute(), chosen.to.absolute())
    for checkout in (base, here):
        _train_and_evaluate(checkout, wanted)
    told = [_reports(checkout, base.folder, wanted) for checkout in (base, here)]
    differences = [*_differing(_numbers(base.folder), _numbers(here.folder)), *_differing(*told)]
    sys.stdout.writelines(f"{line}\n" for line in differences or ["the same weights, numbers and sentences"])
    return bool(differences)


def _checkouts(base: Path, here: Path, to: Path) -> tuple[Checkout, Checkout]:
    """Both checkouts; the name of each folder changes with the source and the suites, and what others left is deleted.

    The suites are written to `to`: "every" begins with all encodings that both have and that can be trained on text.
    """
    suites = Path(shutil.copytree(HERE / "suites", to / "suites", dirs_exist_ok=True))
    listed = [json.loads(_python(tree, "-m", "poscli", "ls", "encodings", "--json")) for tree in (base, here)]
    names = [
        [each["name"] for each in known if each["family"] != "grid" and not each["unavailable"]] for known in listed
    ]
    every = suites / "every.toml"
    both = json.dumps([name for name in names[0] if name in names[1]])
    every.write_text(every.read_text().replace("encodings = [", f"encodings = {both[:-1]},", 1))
    found = [
        Checkout(tree, to / f"{name}-{_digest([tree / 'poscli', suites])}")
        for name, tree in (("base", base), ("here", here))
    ]
    for old in {*to.glob("base-*"), *to.glob("here-*")} - {checkout.folder for checkout in found}:
        shutil.rmtree(old)
    return found[0], found[1]


def _digest(folders: list[Path]) -> str:
    """A hash of all files in folders, but for what Python compiles on import."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(repr((str(path.relative_to(folder)), path.read_bytes())).encode())
    return digest.hexdigest()[:12]


def _train_and_evaluate(checkout: Checkout, wanted: list[str]) -> None:
    """Train and evaluate with a checkout; what its folder has already is left as it is."""
    to = checkout.folder.parent
    for name in wanted:
        out = checkout.folder / _results(name)
        done = out / f".done-{name}"
        if done.exists():
            continue
        if name == "checkpoint":
            model = to / "llama"
            if not model.exists():
                (program,) = (ROOT / "tests").rglob("trained_checkpoint.py")
                found = f"import sys, pathlib; sys.path.insert(0, {str(program.parent)!r}); import trained_checkpoint"
                _python(ROOT, "-c", f"{found}; trained_checkpoint.train(pathlib.Path({str(model)!r}), steps=40)")
            checkout.poscli("extrapolate", "--model", model, "--max-len", "4x", "--as", "all", "--tokens", "512",
                            "--stride", "64", "--yes", "--out", out)  # fmt: skip
        else:
            codes = (3,) if name == "failures" else (0,)
            checkout.poscli("run", to / "suites" / f"{name}.toml", "--yes", "--out", out, codes=codes)
        done.touch()


def _results(name: str) -> str:
    return next((folder for folder, names in RESULTS.items() if name in names), name)


def _reports(checkout: Checkout, runs: Path, wanted: list[str]) -> dict[str, str]:
    """What a checkout says of the runs in a folder: the text of every report by name, and digests of its pictures."""
    said, poscli = {}, checkout.poscli
    to = checkout.folder / "reports"
    shutil.rmtree(to, ignore_errors=True)
    for out in sorted({runs / _results(name) for name in wanted}):
        mix = ["--mix"] if out.name in RESULTS else []
        made = to / out.name
        report = ("report", *mix, "--out", out, "--to", made)
        said[f"{out.name}: terminal"] = poscli(*report, "--site", made / "site", codes=(0, 3))
        said[f"{out.name}: json"] = poscli(*report, "--json", codes=(0, 3))
        for path in sorted(path for path in made.rglob("*") if path.is_file()):
            name = f"{out.name}: {path.relative_to(made)}"
            said[name] = _pixels(path) if path.suffix == ".png" else path.read_text(errors="replace")
        names = _encodings(out)
        if len(names) > 1 and not mix:
            for how in ((), ("--json",)):
                command = ("compare", *names[:2], *how, "--out", out)
                said[f"{out.name}: compare {' '.join(how)}"] = poscli(*command, codes=(0, 1, 2, 3))
        said[f"{out.name}: ls"] = poscli("ls", "runs", "--out", out)
    return {name: _without_time(text) for name, text in said.items()}


def _encodings(out: Path) -> list[str]:
    """The encodings of a folder of runs, those with most runs first."""
    specs = [tomllib.loads(path.read_text())["encoding"] for path in sorted(out.glob("runs/*/config.toml"))]
    return sorted(dict.fromkeys(specs), key=lambda spec: (-specs.count(spec), spec))


def _numbers(folder: Path) -> dict[str, str]:
    """The bits of all weights, every configuration, and every row and key that is not about time, by file."""
    found = {}
    for path in sorted(folder.glob("*/runs/*/**/*")):
        name = str(path.relative_to(folder))
        if path.parent.name.startswith("step-") and path.parent != _last_step(path.parent.parent):
            continue  # which checkpoints there are before the last one depends on how fast the training was
        if path.suffix == ".csv":
            with path.open(newline="") as file:
                found[name] = "\n".join(json.dumps(_untimed(row)) for row in csv.DictReader(file))
        elif path.suffix == ".safetensors":
            digest = hashlib.sha256()
            for key, tensor in sorted(load_file(path).items()):
                digest.update(key.encode() + tensor.contiguous().view(-1).numpy().tobytes())
            found[name] = digest.hexdigest()
        elif path.name == "config.toml":
            found[name] = path.read_text()
        elif path.name in ("status.json", "eval.json", "why.json"):
            found[name] = _without_time(json.dumps(_untimed(json.loads(path.read_text())), indent=1))
    return found


def _last_step(checkpoints: Path) -> Path:
    return max(checkpoints.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def _untimed(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if key not in TIMED}


def _without_time(text: str) -> str:
    """A text without commits, dates, and the folders that this tool writes to."""
    text = re.sub(r"(/[\w.-]+){0,12}/(base|here)-[0-9a-f]{12}/", "/", text)
    text = re.sub(r"(?<![\w.])(?=[0-9]*[a-f])[0-9a-f]{7,40}\b", "HEX", text)  # no digits of a number
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


def _python(tree: Path, *arguments: object, codes: tuple[int, ...] = (0,), **variables: str) -> str:
    """The stdout of a Python process that imports poscli from a checkout; raises if its exit code is another."""
    fixed = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "COLUMNS": "140", "NO_COLOR": "1", "POSCLI_QUIET": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | fixed | variables,
        text=True,
        capture_output=True,
        cwd=tree.parent,
    )
    if done.returncode not in codes:
        raise SystemExit(
            f"{' '.join(map(str, arguments))} in {tree} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
