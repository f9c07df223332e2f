"""What commands say and leave on disk, as one text: without what differs from one machine or day to the next."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
from cli_runner import Result, cli

# Or of this process: plugins are all that other tests have loaded.
OF_THIS_MACHINE = {
    "commit", "cores", "cpu", "cpu_bfloat16", "engine", "engine_reason", "fingerprint", "machine", "peak_mb",
    "platform", "plugins", "poscli", "python", "schema", "seconds", "spent", "threads", "tokens_per_s", "torch",
}  # fmt: skip
# What no two machines or moments say alike, and what stands for it.
MASKS = (
    (re.compile(r"(?<=it is kept in )\S+"), "CACHE"),
    (re.compile(r"(?<= on )(?:text:HERE|\.\.\.\S*)(?=/notes)"), "PLACE"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "SHA"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z"), "DATE"),
    (re.compile(r"\d+(?::\d\d)+(?=\s)|(?<=  )\d[\d.]*[kM](?=  +(ok|oom|unsupported)\b| *$)", re.MULTILINE), "#"),
    (re.compile(r"(?:\d[\d,.]*k?|<\d+) ?(?:ms|s|min|h|tokens/s|GB|MB|KiB|MiB|GiB)\b"), "#"),
    (re.compile(r"^! note: .* runs on the engine .*\n", re.MULTILINE), ""),
    (re.compile(r"(?:\d+\.\d\d times as long as )?the fastest"), "#"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"  +"), "  "),
    (re.compile(r" +$", re.MULTILINE), ""),
    (re.compile(r"(?<=[\]-]  )\d+(?=  (?:ok|oom|unsupported)\b|$)", re.MULTILINE), "#"),  # few tokens/s: a busy machine
)
IDENTITY = re.compile(r"(?<=-)(?:[0-9a-f]{8}|[0-9a-f]{6})\b")
LONG_DECIMAL = re.compile(r"(?<!arXiv:)(?<!\d)-?\d+\.(?:\d{4,}(?:e[-+]?\d+)?|\d+e[-+]?\d+)")
MOST_ROWS = 24  # of a table that is shown whole


class Walk:
    """Runs commands in the current folder, one after the other, and keeps what each has said.

    Names that end in a hash are numbered in the order in which they occur, so that it shows which are the same.
    Numbers with many digits are shortened.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.hashes: dict[str, str] = {}

    def run(self, *arguments: object) -> Result:
        """Run a command; its streams and a failure's exit code become part of the text."""
        done = cli(*arguments)
        said = _document(json.loads(done.out)) if "--json" in arguments else done.out
        code = f"exit code {done.code}\n" if done.code else ""
        errors = "".join(f"! {line}\n" for line in done.err.splitlines())
        self.parts.append(f"$ poscli {' '.join(map(str, arguments))}\n{code}{said}{errors}")
        return done

    def show(self, *paths: Path) -> None:
        """The names of the files in folders, and what those say that hold text."""
        for path in paths:
            for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
                content = _content(file)
                self.parts.append(f"# {file}\n{content}" if content else f"# {file}")

    @property
    def text(self) -> str:
        """All parts."""
        text = "\n".join(self.parts).replace(str(Path.cwd()), "HERE")
        for pattern, mark in MASKS:
            text = pattern.sub(mark, text)
        text = LONG_DECIMAL.sub(lambda number: _short(float(number[0])), text)
        return IDENTITY.sub(lambda name: self.hashes.setdefault(name[0], f"id{len(self.hashes) + 1}"), text)


def _short(number: float) -> str:
    """A number with the digits that CPUs agree on after a short training."""
    return f"{number:.3f}" if abs(number) < 1 else f"{number:#.3g}"


def _content(file: Path) -> str:
    if file.suffix == ".json":
        return _document(json.loads(file.read_text()))
    if file.suffix == ".csv":
        return _table(pd.read_csv(file))
    if file.suffix == ".parquet":
        return _table(pd.read_parquet(file))
    return file.read_text() if file.suffix in {".toml", ".md", ".py", ".txt"} else ""


def _document(value: Any) -> str:
    """A JSON document: rows with equal keys as a table, all else as it is."""
    if (
        isinstance(value, list)
        and value
        and all(isinstance(row, dict) and row.keys() == value[0].keys() for row in value)
    ):
        return _table(pd.DataFrame(value))
    return json.dumps(_without(value), ensure_ascii=False) + "\n"


def _without(value: Any) -> Any:
    """A document in which what is of this machine is a mark."""
    if isinstance(value, dict):
        return {key: "#" if key in OF_THIS_MACHINE else _without(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each) for each in value[:4]] + ([f"... {len(value)} in all"] if len(value) > 4 else [])
    return value


def _table(table: pd.DataFrame) -> str:
    """A table: what is the same in all rows in one line, then the rows; of many only some, beside sums and means."""
    shown = table.drop(columns=[name for name in table if name in OF_THIS_MACHINE])
    same = [name for name in shown if shown[name].astype(str).nunique() == 1 and len(shown) > 1]
    constant = ", ".join(f"{name}={shown[name].iloc[0]}" for name in same)
    shown = shown.drop(columns=same)
    sums = ""
    if len(shown) > MOST_ROWS:
        sums = f"{len(shown)} rows, sums {shown.select_dtypes(['integer', 'bool']).sum().to_dict()}"
        sums += f", means {shown.select_dtypes('floating').mean().to_dict()}\n"
        shown = pd.concat([shown.head(4), shown.iloc[len(shown) // 2 :].head(2), shown.tail(2)])
    text = io.StringIO()
    shown.to_csv(text, index=False)
    return f"columns {','.join(table)}\nall: {constant}\n{sums}{text.getvalue()}"
