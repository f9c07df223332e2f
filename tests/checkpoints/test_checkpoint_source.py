"""Where checkpoints come from: folders, and a hub served by hub_stub.py.

The hub's client reads HF_ENDPOINT when it is imported, so everything that asks the hub runs in a child process.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from checkpoints import make
from hub_stub import KINDS, REVISION, STAGES, Hub, assert_gives_up_soon, run_child

from poscli.checkpoints.source import find
from poscli.system.errors import CorruptError, UsageError

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


def found(specs: list[tuple[str, bool, str, str]], home: Path, **environment: str) -> list[dict[str, Any]]:
    """What one fresh process finds: (spec, whether only the configuration, stage and kind of a fault) each."""
    arguments = [json.dumps(each) for each in specs]
    return [json.loads(line) for line in run_child(CHILD, arguments, home, **IMPATIENT, **environment)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("checkpoints") / "whole")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("gpt2", tmp_path_factory.mktemp("checkpoints") / "shards", shard="40KB")


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_known_by_its_path_and_its_content(
    whole: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole.parent)
    source, other = find("whole"), find(str(copy))
    assert (source.spec, source.folder, source.revision) == (str(whole), whole, "")
    assert source.weights == ("model.safetensors",)
    assert source.tokenizer == f"hf:{whole}"
    assert source.digest == other.digest


def test_all_files_of_an_index_are_weights_and_others_are_not(shards: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(shards, tmp_path / "copy"))
    listed = set(json.loads((copy / "model.safetensors.index.json").read_bytes())["weight_map"].values())
    before = find(str(copy))
    (copy / "consolidated.safetensors").write_bytes(b"no tensors")
    after = find(str(copy))
    assert len(listed) > 1
    assert set(after.weights) == listed
    assert after.digest == before.digest


def change_last_weight(folder: Path) -> None:
    """Change the tensor at the end of the weight file, and neither its header nor its size."""
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(bytes(64))


def change_every_weight_a_little(folder: Path) -> None:
    """As one more step of training does."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file({name: each * 1.001 for name, each in weights.items()}, folder / "model.safetensors", {"format": "pt"})


def change_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))


@pytest.mark.parametrize("change", [change_last_weight, change_every_weight_a_little, change_config])
def test_the_digest_tells_checkpoints_apart(change: Callable[[Path], None], whole: Path, copy: Path) -> None:
    change(copy)
    assert find(str(copy)).digest != find(str(whole)).digest


def entries(file: Path) -> tuple[int, dict[str, Any]]:
    """Where the tensors of a weight file begin, and its header."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return 8 + length, json.loads(content[8 : 8 + length])


def test_the_digest_depends_on_the_middle_of_every_tensor(copy: Path) -> None:
    file = copy / "model.safetensors"
    content, (start, header) = file.read_bytes(), entries(file)
    digests = {find(str(copy)).digest}
    places = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    for begin, end in places:
        changed = bytearray(content)
        changed[start + (begin + end) // 2] ^= 1
        file.write_bytes(changed)
        digests.add(find(str(copy)).digest)
    assert len(digests) == 1 + len(places)


def test_the_digest_depends_on_which_tensor_is_which(copy: Path) -> None:
    """The same bytes under exchanged names."""
    file = copy / "model.safetensors"
    before, content = find(str(copy)).digest, file.read_bytes()
    first, second = b'"model.layers.0.mlp.up_proj.weight"', b'"model.layers.1.mlp.up_proj.weight"'
    assert content.count(first) == content.count(second) == 1
    at, there = content.index(first), content.index(second)
    changed = bytearray(content)
    changed[at : at + len(first)], changed[there : there + len(second)] = second, first
    file.write_bytes(changed)
    assert find(str(copy)).digest != before


def test_bytes_behind_the_last_tensor_are_damage(copy: Path) -> None:
    with (copy / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(CorruptError, match="and its header describes"):
        find(str(copy))


def test_one_whole_file_is_read_rather_than_the_parts_of_an_index(copy: Path, shards: Path) -> None:
    """As transformers does."""
    for part in shards.glob("model*"):
        shutil.copy(part, copy)
    assert find(str(copy)).weights == ("model.safetensors",)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_the_digest_depends_on_the_text_files(name: str, copy: Path) -> None:
    before = find(str(copy)).digest
    (copy / name).write_text(json.dumps(json.loads((copy / name).read_text()) | {"another": 1}))
    assert find(str(copy)).digest != before
    (copy / "README.md").write_text("not read")
    after = find(str(copy)).digest
    (copy / "README.md").write_text("not read either")
    assert find(str(copy)).digest == after


def test_a_card_needs_no_weights_and_no_tokenizer(copy: Path) -> None:
    before = find(str(copy), config_only=True)
    (copy / "model.safetensors").unlink()
    after = find(str(copy), config_only=True)
    assert after == before
    assert after.weights == ()
    (copy / "tokenizer.json").unlink()
    assert find(str(copy), config_only=True).digest != before.digest


def truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def header(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(content)) + content) and None


@pytest.mark.parametrize("target", ["../model.safetensors", "/etc/passwd", "", 3])
def test_an_index_never_leaves_its_folder(target: object, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": target}}))
    with pytest.raises(CorruptError, match="lists no weight files of its own folder"):
        find(str(copy))


def test_without_transformers_the_install_line_is_given(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs transformers: pip install 'poscli\[hf\]'"):
        find(str(whole))


NEVER = {"pytorch_model.bin": b"pickle", "modeling.py": b"evil", "original/model.pth": b"", "README.md": b"card"}


def test_of_a_repository_only_safe_files_are_downloaded(whole: Path, shards: Path, tmp_path: Path) -> None:
    others = NEVER | {"consolidated.safetensors": b"a second copy"}
    with Hub({"org/whole": contents(whole) | others, "org/shards": contents(shards) | others}) as hub:
        hub.branches = {"main", "refs/pr/1"}
        asked = ["hf:org/whole", "hf:org/shards@refs/pr/1", f"hf:org/shards@{REVISION}"]
        results = found([(spec, False, "", "") for spec in asked], tmp_path, HF_ENDPOINT=hub.url)
        assert not any(hub.requested(name) for name in others)
        requests = len(hub.log)
        again = found([(spec, False, "", "") for spec in asked[:2]], tmp_path, HF_HUB_OFFLINE="1", HF_ENDPOINT=hub.url)
        assert len(hub.log) == requests
    for result, folder, repo in zip(results, (whole, shards, shards), ("whole", "shards", "shards"), strict=True):
        assert result.get("spec") == f"hf:org/{repo}@{REVISION}", result
        assert result["tokenizer"] == result["spec"]
        assert result["revision"] == REVISION
        assert result["digest"] == find(str(folder)).digest
        assert set(result["files"]) == set(contents(folder))
        assert set(result["weights"]) == {path.name for path in folder.glob("*.safetensors")}
    assert [each["digest"] for each in again] == [each["digest"] for each in results[:2]]
    assert [each["spec"] for each in again] == [each["spec"] for each in results[:2]]


def test_a_card_of_a_repository_fetches_json_only(whole: Path, tmp_path: Path) -> None:
    with Hub({"org/whole": contents(whole) | {"merges.txt": b"", **NEVER}}) as hub:
        (result,) = found([("hf:org/whole", True, "", "")], tmp_path, HF_ENDPOINT=hub.url)
        assert not any(hub.requested(name) for name in ("safetensors", "merges.txt", *NEVER))
    assert set(result["files"]) == {path.name for path in whole.glob("*.json")}
    assert result["digest"] == find(str(whole), config_only=True).digest


REFUSED = {
    "hf:orgs/whole": (4, "did you mean org/whole?"),
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
        results = found([(spec, False, "", "") for spec in REFUSED], tmp_path, HF_ENDPOINT=hub.url)
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
        results = found(asked, tmp_path, HF_ENDPOINT=hub.url)
    for fault, spoiled, repaired in zip(faults, results[::2], results[1::2], strict=True):
        assert spoiled.get("exit_code") == 4, (fault, spoiled)
        assert "\n" not in spoiled["error"]
        assert_gives_up_soon(spoiled["slept"], hub.spoiled_of(names[fault]), fault[1])
        assert repaired.get("spec") == f"hf:{names[fault]}@{REVISION}", (fault, repaired)


def test_without_a_network_the_way_out_is_said(tmp_path: Path) -> None:
    with socket.socket() as free:  # a port that refuses connections
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
        asked = [("hf:org/whole", False, "", "")]
        (refused,) = found(asked, tmp_path, HF_ENDPOINT=nowhere)
        (offline,) = found(asked, tmp_path, HF_ENDPOINT=nowhere, HF_HUB_OFFLINE="1")
    assert refused["exit_code"] == offline["exit_code"] == 4
    assert "cannot reach the hub for hf:org/whole" in refused["error"]
    assert "check the network" in refused["error"]
    assert "hf:org/whole was not downloaded before" in offline["error"]
    assert "HF_HUB_OFFLINE is set: unset it" in offline["error"]
