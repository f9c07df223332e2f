"""A hub that fails in every way, at every stage of a load: hub_stub.py spoils its answers.

Whatever fails: one line, exit code 4, nothing kept, and the same load succeeds as soon as the hub does.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from cli_runner import shell
from hub_stub import KINDS, STAGES, Hub, assert_gives_up_soon, card, parquet, prose, run_child
from toys import first

CHILD = """
import json, os, sys, urllib.request
from pathlib import Path
from poscli.data import load_corpus
from poscli.system.errors import PoscliError

def attempt(spec):
    try:
        result = {"bytes": load_corpus(spec).train.bytes}
    except PoscliError as error:
        result = {"error": str(error), "exit_code": error.exit_code}
    name = spec.partition("/")[2].partition("?")[0]
    kept = [path.name for path in Path(os.environ["POSCLI_CACHE"]).glob(f"*{name}-*") if path.is_dir()]
    return result | {"kept": kept, "slept": slept()}

for case in sys.argv[1:]:
    stage, kind, spec = case.split(" ")
    urllib.request.urlopen(f"{os.environ['HF_ENDPOINT']}/fault/{stage}/{kind}").read()
    spoiled = attempt(spec)
    urllib.request.urlopen(f"{os.environ['HF_ENDPOINT']}/fault/none/none").read()
    print(json.dumps([spoiled, attempt(spec)]))
"""
MATRIX = list(product([s for s in STAGES if s != "none"], [k for k in KINDS if k != "none"], ["", "?bytes=10K"]))
SAMPLE = [
    ("info", "401", ""),
    ("info", "429", "?bytes=10K"),
    ("info", "silent", ""),
    ("listing", "404", ""),
    ("listing", "truncated", "?bytes=10K"),
    ("download", "429", "?bytes=10K"),
    ("download", "500", ""),
    ("download", "truncated", ""),
    ("download", "short", ""),
    ("download", "dropped", "?bytes=10K"),
]
SAYS = {"401": "hf auth login", "429": "wait a few minutes", "500": "later"}
IMPATIENT = {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}  # seconds


def check(cases: list[tuple[str, str, str]], home: Path) -> None:
    """Each case is one repository of its own, because the hub's client remembers what it has seen."""
    specs = {case: f"hf:org/{case[0]}{case[1]}{'s' if case[2] else ''}{case[2]}" for case in cases}
    files = {f"default/train-{n}.parquet": parquet(prose(20, 1000, n)) for n in range(2)}
    repository = {"README.md": card({"default": ["train"]}), **files}
    names = [spec.removeprefix("hf:").partition("?")[0] for spec in specs.values()]
    with Hub(dict.fromkeys(names, repository)) as hub:
        arguments = [f"{stage} {kind} {specs[stage, kind, mode]}" for stage, kind, mode in cases]
        lines = run_child(CHILD, arguments, home, HF_ENDPOINT=hub.url, **IMPATIENT)
    for (stage, kind, mode), line in zip(cases, lines, strict=True):
        spoiled, repaired = json.loads(line)
        assert spoiled.get("exit_code") == 4, (stage, kind, mode, spoiled)
        assert "\n" not in spoiled["error"]
        assert SAYS.get(kind, "; ") in spoiled["error"], (stage, kind, mode)
        assert not spoiled["kept"]
        asked = hub.spoiled_of(specs[stage, kind, mode].removeprefix("hf:").partition("?")[0])
        assert_gives_up_soon(spoiled["slept"], asked, kind)
        assert repaired["bytes"] == (9000 if mode else 36_000), (stage, kind, mode, repaired)
        assert len(repaired["kept"]) == 1


@pytest.mark.parametrize("cases", first(1, [SAMPLE[::2], SAMPLE[1::2]]), ids=["some", "others"])
def test_a_failing_hub_is_an_error_of_one_line_and_leaves_nothing_behind(
    cases: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    check(cases, tmp_path)


@pytest.mark.slow
def test_every_way_to_fail_at_every_stage(tmp_path: Path) -> None:
    check(MATRIX, tmp_path)


STALE = """
import json, os, sys, urllib.request
from poscli.data import load_corpus
from poscli.system.errors import DataError
if sys.argv[1] == "spoiled":
    urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/fault/listing/500").read()
try:
    print(json.dumps(load_corpus("hf:org/set").describe()))
except DataError as error:
    print(json.dumps({"error": str(error)}))
"""


def test_an_older_download_is_never_taken_for_the_newest_revision(tmp_path: Path) -> None:
    """`datasets` falls back on any download of the data set if the hub fails half-way."""
    files = {"README.md": card({"default": ["train"]}), "default/train-0.parquet": parquet(prose(20, 100, 0))}
    with Hub({"org/set": files}) as hub:
        (before,) = run_child(STALE, ["sound"], tmp_path, HF_ENDPOINT=hub.url)
        assert json.loads(before)["revision"] == hub.revision
        hub.revision = "f" * 40
        there = {"HF_ENDPOINT": hub.url, "POSCLI_CACHE": str(tmp_path / "other")}
        (after,) = run_child(STALE, ["spoiled"], tmp_path, **there)
    assert "the hub has a fault" in json.loads(after)["error"] or "stopped answering" in json.loads(after)["error"]


def test_the_command_line_prints_the_error_and_nothing_of_the_libraries(tmp_path: Path) -> None:
    """One note that the corpus is being prepared, and one error; the client's own warnings are hidden."""
    with Hub(
        {"org/set": {"README.md": card({"default": ["train"]}), "default/train-0.parquet": parquet(["a"])}}
    ) as hub:
        hub.fail("download", "429")
        places = {"POSCLI_CACHE": str(tmp_path / "poscli"), "HF_HOME": str(tmp_path / "hf"), "POSCLI_NATIVE": "0"}
        command = ("train", "--enc", "alibi", "--preset", "nano", "--corpus", "hf:org/set?bytes=1K", "--out", tmp_path)
        result = shell(*command, **places, **IMPATIENT, HF_ENDPOINT=hub.url)
    assert result.code == 4
    note, error = result.err.splitlines()
    assert note.startswith("preparing the corpus hf:org/set")
    assert error.startswith("error: cannot load hf:org/set")
