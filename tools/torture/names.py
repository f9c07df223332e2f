"""Hostile names: specs of encodings, corpora, tasks, tokenizers and suites that nobody sane would write.

Whatever the text is, it is taken or refused with a PoscliError whose message fits on one line of a terminal, and no
name of a file that is made from it leads out of its folder.
"""

from __future__ import annotations

import itertools
import random
import re
import tempfile
import tomllib
from pathlib import Path

import tomli_w

from poscli import specs
from poscli.config import suite
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig, slug, write_run_config
from poscli.data.corpora import source_of
from poscli.data.tokenizers import tokenizer
from poscli.system.device import device_of
from poscli.system.errors import LONGEST_MESSAGE, PoscliError, one_line
from poscli.tasks import TASKS

KINDS = ("encoding", "corpus", "task", "tokenizer", "suite", "toml")
GRAMMAR = [
    "rope",
    "alibi",
    "none",
    "window",
    "shaw",
    "urpe",
    "(",
    ")",
    "=",
    ",",
    "+",
    "|",
    "base",
    "clip",
    "width",
    " ",
]
HOSTILE = [
    "..", "/", "\\", "../../etc/passwd", "~", "~nobody", "\0", "\n", "\r\n", "\t", "\x1b[2J", "\x7f", "\u202e",
    "\ud800", "é", "文", "😀", "١٢", "$(reboot)", "`reboot`", ";", "&&", "'", '"', "%s", "{0}", "[bold]", "[/]",
    "<script>", "--out", "-", "CON", ".", "...", ":", "::", "os:system", "os.path:join", "nowhere:Class",
    "./nowhere.py:Class", "/dev/null.py:X", "10**400", "1e999", "-1e999", "nan", "inf", "9" * 400, "9" * 5000, "0x10",
    "1_000", "-0", "1e-400", "a" * 300, "a" * 10_000, "(" * 200, "urpe(base=" * 20, "rope+" * 500, "rope|" * 40,
]  # fmt: skip


def hostile_spec(seed: int) -> tuple[str, str]:
    """What a text is meant to name, and the text: pieces of the grammar mixed with what does not belong there."""
    draw = random.Random(seed)
    count = draw.choice((1, 2, 3, 5, 8, 13))
    share = draw.choice((0.1, 0.5, 1.0))  # of hostile pieces
    text = "".join(draw.choice(HOSTILE if draw.random() < share else GRAMMAR) for _ in range(count))
    kind = draw.choice(KINDS)
    prefix = draw.choice(("text:", "jsonl:", "parquet:", "stdlib", "")) if kind == "corpus" else ""
    return kind, prefix + text


def check(kind: str, text: str) -> None:
    """AssertionError if a text is neither refused in one line nor taken without harm; any other error is a defect."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        try:
            CHECKS[kind](text, folder)
        except PoscliError as error:
            line = one_line(str(error))
            assert line.isprintable()
            assert 0 < len(line) <= LONGEST_MESSAGE
        assert {path.name for path in folder.parent.glob(f"{folder.name}*")} == {folder.name}
        assert {path.parent for path in folder.rglob("*")} <= {folder}


def _encoding(text: str, folder: Path) -> None:
    _stays_inside(slug(text), folder)
    spec = specs.check(text, RunConfig(encoding="").model.shape(16))
    assert specs.parse(str(spec)) == spec
    config = RunConfig(encoding=str(spec))
    _stays_inside(config.run_id("0"), folder)
    (folder / "config.toml").write_text(write_run_config(config), encoding="utf-8")
    assert RunConfig.model_validate(tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))) == config


def _stays_inside(name: str, folder: Path) -> None:
    """A name made from a spec is an ordinary name of a file, with room for a suffix."""
    assert re.fullmatch(r"[A-Za-z0-9+][A-Za-z0-9.+-]*", name), name
    assert (folder / name).resolve().parent == folder
    assert len(name.encode()) <= 200


def _suite(text: str, folder: Path) -> None:
    """A suite that says `text` wherever a text may stand."""
    table = {"title": text, "encodings": [text], "seeds": [0], "train": {"corpus": text, "task": text}}
    table["extrapolate"] = {"baselines": [text], "protocols": [text]}
    (folder / "suite.toml").write_bytes(tomli_w.dumps(table).encode("utf-8", "surrogatepass"))
    read = suite.load_suite(folder / "suite.toml")
    assert (read.title, read.encodings) == (text, [text])
    for seed, encoding in itertools.product(read.seeds, read.encodings):
        resolve(read.train, encoding, seed, device_of("cpu"))


def _toml(text: str, folder: Path) -> None:
    """A file that is the text."""
    (folder / "suite.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    suite.load_suite(folder / "suite.toml")


CHECKS = {
    "encoding": _encoding,
    "corpus": lambda text, folder: source_of(text),
    "task": lambda text, folder: TASKS.get(text),
    "tokenizer": lambda text, folder: tokenizer(text),
    "suite": _suite,
    "toml": _toml,
}
