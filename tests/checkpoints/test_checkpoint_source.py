"""Where checkpoints come from: folders, and a hub served by hub_stub.py.

What makes a checkpoint of a folder, and what damages it, is in test_snapshots_checkpoints_commands.py. The hub's client
reads HF_ENDPOINT when it is imported, so everything that asks the hub runs in a child process.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoints import make
from hub_stub import KINDS, REVISION, STAGES, Hub, assert_gives_up_soon, run_child

from poscli.checkpoints.models import checkpoint_at
from poscli.checkpoints.source import find
from poscli.data.hub import HubModel
from poscli.system.errors import UsageError

CHILD = """
import importlib.machinery, json, os, sys, types, urllib.request
transformers = types.ModuleType("transformers")  # the real one imports torch, which takes longer than all the rest
transformers.__spec__ = importlib.machinery.ModuleSpec("transformers", None)
transformers.__version__, transformers.CONFIG_MAPPING = "0", {"llama": None, "gpt2": None}
sys.modules["transformers"] = transformers
from poscli.checkpoints.source import find
from poscli.system.errors import PoscliError
for line in sys.argv[1:]:
    spec, config_only, stage, kind = json.loads(line)
    if stage:
        urllib.request.urlopen(f"{os.environ['HF_ENDPOINT']}/fault/{stage}/{kind}").read()
    try:
        source = find(spec, config_only=config_only)
        files = sorted(path.name for path in source.folder.iterdir())
        result = {"spec": source.spec, "revision": source.revision, "digest": source.digest, "files": files,
                  "weights": source.weights, "tokenizer": source.tokenizer}
    except PoscliError as error:
        result = {"error": str(error), "exit_code": error.exit_code}
    if stage:
        urllib.request.urlopen(f"{os.environ['HF_ENDPOINT']}/fault/none/none").read()
    print(json.dumps(result | {"slept": slept()}))
"""
IMPATIENT = {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}  # seconds


def sources(specs: list[tuple[str, bool, str, str]], home: Path, **environment: str) -> list[dict[str, Any]]:
    """What one fresh process finds: (spec, whether only the configuration, stage and kind of a fault) each."""
    arguments = [json.dumps(each) for each in specs]
    return [json.loads(line) for line in run_child(CHILD, arguments, home, **IMPATIENT, **environment)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("checkpoints") / "whole")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("gpt2", tmp_path_factory.mktemp("checkpoints") / "shards", shard="40KB")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_known_by_its_path_and_its_content(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole.parent)
    source, copy = find("whole"), find(str(shutil.copytree(whole, tmp_path / "copy")))
    assert (source.spec, source.folder, source.tokenizer) == (str(whole), whole, f"hf:{whole}")
    assert source.digest == copy.digest


def test_the_digest_depends_on_the_middle_of_every_tensor(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "copy")
    file = folder / "model.safetensors"
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    digests = {find(str(folder)).digest}
    places = [entry["data_offsets"] for name, entry in json.loads(content[8:start]).items() if name != "__metadata__"]
    for begin, end in places:
        changed = bytearray(content)
        changed[start + (begin + end) // 2] ^= 1
        file.write_bytes(changed)
        digests.add(find(str(folder)).digest)
    assert len(digests) == 1 + len(places)


def test_without_transformers_the_install_line_is_given(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs transformers: pip install 'poscli\[hf\]'"):
        find(str(whole))


NEVER = {"pytorch_model.bin": b"pickle", "modeling.py": b"evil", "original/model.pth": b"", "README.md": b"card"}


def test_of_a_repository_only_safe_files_are_downloaded_and_later_read_without_the_hub(
    whole: Path, shards: Path, tmp_path: Path
) -> None:
    others = NEVER | {"consolidated.safetensors": b"a second copy"}
    repositories = {"org/whole": contents(whole) | others, "org/shards": contents(shards) | others}
    repositories["org/card"] = contents(whole) | {"merges.txt": b""} | NEVER
    asked = [("hf:org/whole", whole), ("hf:org/shards@refs/pr/1", shards), (f"hf:org/shards@{REVISION}", shards)]
    with Hub(repositories) as hub:
        hub.branches = {"main", "refs/pr/1"}
        specs = [("hf:org/card", True, "", ""), *((spec, False, "", "") for spec, _ in asked)]
        card, *results = sources(specs, tmp_path, HF_ENDPOINT=hub.url)
        assert not any(hub.requested(name) for name in (*others, "card/resolve/main/model", "merges.txt"))
        requests = len(hub.log)
        absent = ("hf:org/absent", False, "", "")
        offline = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": hub.url}
        *again, refused = sources([*specs[1:3], absent], tmp_path, **offline)
        assert len(hub.log) == requests
    for result, (spec, folder) in zip(results, asked, strict=True):
        assert result.get("spec") == f"{spec.partition('@')[0]}@{REVISION}", result
        assert result["tokenizer"] == result["spec"]
        assert result["revision"] == REVISION
        assert result["digest"] == find(str(folder)).digest
        assert set(result["files"]) == set(contents(folder))
        assert set(result["weights"]) == {path.name for path in folder.glob("*.safetensors")}
    assert set(card["files"]) == {path.name for path in whole.glob("*.json")}  # a card needs no more
    assert card["digest"] == find(str(whole), config_only=True).digest
    assert [(each["digest"], each["spec"]) for each in again] == [
        (each["digest"], each["spec"]) for each in results[:2]
    ]
    assert refused["exit_code"] == 4
    assert "hf:org/absent was not downloaded before" in refused["error"]
    assert "HF_HUB_OFFLINE is set: unset it" in refused["error"]


@pytest.mark.parametrize("config_only", [True, False])
def test_of_a_repository_nothing_is_fetched_that_is_not_needed(
    config_only: bool, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[set[str]] = []

    def fetch(names: Iterable[str]) -> Path:
        fetched.append(set(names))
        return whole

    files = {*contents(whole), "merges.txt", *NEVER}
    repository = SimpleNamespace(name=HubModel("org/whole", REVISION), files=files, fetch=fetch)
    (whole / "merges.txt").touch()
    monkeypatch.setattr("poscli.checkpoints.source.open_repository", lambda name: repository)
    found, jsons = find("hf:org/whole", config_only=config_only), {path.name for path in whole.glob("*.json")}
    assert fetched == ([jsons] if config_only else [{*jsons, "merges.txt"}, {"model.safetensors"}])
    assert (found.spec, found.tokenizer, found.revision) == (*[f"hf:org/whole@{REVISION}"] * 2, REVISION)
    assert found.weights == (() if config_only else ("model.safetensors",))
    assert found.digest == find(str(whole), config_only=config_only).digest
    if not config_only:
        assert checkpoint_at("hf:org/whole", torch.device("cpu")).name == "whole"
    (whole / "merges.txt").unlink()


REFUSED = {
    "hf:orgs/whole": (4, "did you mean org/whole?"),
    "hf:org/no--name": (2, "'org/no--name' names no repository", "hf:ORG/NAME"),
    "hf:org/none": (4, "the hub has no model 'org/none'", "hf auth login"),
    "hf:org/whole@v2": (4, "has no revision 'v2'"),
    "hf:org/gated": (4, "org/gated is gated", "accept its terms", "hf auth login"),
    "hf:org/pickled": (4, "pytorch_model.bin", "refs/pr/1"),
    "hf:org/bare": (4, "no tokenizer"),
    "hf:org/own-code": (2, "auto_map"),
    "hf:org/truncated": (5, "its header describes"),
    "hf:org/short": (4, "lacks 1 of its"),
}


def test_what_the_hub_cannot_give_is_an_error_of_one_line(whole: Path, shards: Path, tmp_path: Path) -> None:
    files, parts = contents(whole), contents(shards)
    weights = files["model.safetensors"]
    config = json.loads(files["config.json"]) | {"model_type": "new", "auto_map": {"AutoConfig": "own.Config"}}
    repositories = {
        "org/whole": files,
        "org/gated": files,
        "org/pickled": {name: files[name] for name in files if name != "model.safetensors"} | NEVER,
        "org/bare": {name: files[name] for name in ("config.json", "model.safetensors")},
        "org/own-code": files | {"config.json": json.dumps(config).encode()},
        "org/truncated": files | {"model.safetensors": weights[:-8]},
        "org/short": {name: parts[name] for name in parts if "00002" not in name},
    }
    with Hub(repositories) as hub:
        hub.gated = {"org/gated"}
        results = sources([(spec, False, "", "") for spec in REFUSED], tmp_path, HF_ENDPOINT=hub.url)
        early = ("/pickled/resolve", "/bare/resolve", "/own-code/resolve/main/model", "/short/resolve/main/model")
        assert not any(hub.requested(path) for path in early)  # refused before anything large is downloaded
    for (spec, (code, *said)), result in zip(REFUSED.items(), results, strict=True):
        assert result.get("exit_code") == code, (spec, result)
        assert "\n" not in result["error"]
        assert all(part in result["error"] for part in said), (spec, result)


SAMPLE = [("info", "500"), ("info", "silent"), ("listing", "dropped"), ("download", "truncated")]
MATRIX = list(product([s for s in STAGES if s != "none"], [k for k in KINDS if k not in ("none", "short")]))


@pytest.mark.parametrize("faults", [SAMPLE, pytest.param(MATRIX, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_failing_hub_is_an_error_within_seconds_and_is_forgotten(
    faults: list[tuple[str, str]], whole: Path, tmp_path: Path
) -> None:
    """Each fault has a repository of its own, because the hub's client keeps what it has."""
    names = {fault: f"org/{'-'.join(fault)}" for fault in faults}
    with Hub(dict.fromkeys(names.values(), contents(whole))) as hub:
        asked = [(f"hf:{names[fault]}", False, *each) for fault in faults for each in (fault, ("", ""))]
        results = sources(asked, tmp_path, HF_ENDPOINT=hub.url)
    for fault, spoiled, repaired in zip(faults, results[::2], results[1::2], strict=True):
        assert spoiled.get("exit_code") == 4, (fault, spoiled)
        assert "\n" not in spoiled["error"]
        assert_gives_up_soon(spoiled["slept"], hub.spoiled_of(names[fault]), fault[1])
        assert repaired.get("spec") == f"hf:{names[fault]}@{REVISION}", (fault, repaired)


def test_without_a_network_the_way_out_is_said(tmp_path: Path) -> None:
    with socket.socket() as free:  # a port that refuses connections
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
        (refused,) = sources([("hf:org/whole", False, "", "")], tmp_path, HF_ENDPOINT=nowhere)
    assert refused["exit_code"] == 4
    assert "cannot reach the hub for hf:org/whole" in refused["error"]
    assert "check the network" in refused["error"]
