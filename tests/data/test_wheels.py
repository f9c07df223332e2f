"""Corpora out of wheels: what is downloaded, kept, checked and read. The index is a folder of hand-made wheels."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from poscli.data import filesets, load_corpus
from poscli.data.corpora import source_of, wheel
from poscli.system.errors import DataError, UsageError
from poscli.system.files import sha256

FILES = {
    "pkg/__init__.py": "",
    "pkg/a.py": "a = 1\n" * 50,
    "pkg/sub/b.py": "b = 2\n" * 60,
    "pkg/sub/deep/c.py": "c = 3\n" * 70,
    "pkg/notes.txt": "Notes, with an é.\n" * 20,
}
PURE, COMPILED = "py3-none-any", "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64"


def archive(name: str, version: str, files: Mapping[str, str | bytes], tag: str = PURE) -> bytes:
    """A wheel."""
    info = f"{name}-{version}.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(made := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as wheel_file:
        for path, content in (about | dict(files)).items():
            wheel_file.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


class Index:
    """A folder that serves wheels to pip."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(self, files: Mapping[str, str | bytes] = FILES, version: str = "1.0", tag: str = PURE) -> Path:
        path = self.folder / f"pkg-{version}-{tag}.whl"
        path.write_bytes(archive("pkg", version, files, tag))
        return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The only place where pip looks for wheels, and an empty cache."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path / "cache"))
    return Index(tmp_path / "index")


def contents(spec: str) -> list[str]:
    """The documents of a corpus, as text."""
    return [document.content.decode() for document in source_of(spec).read().documents]


def refusal(spec: str) -> str:
    """The message with which the documents of a corpus are refused."""
    with pytest.raises(DataError) as caught:
        contents(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_are_read_out_of_the_wheel_and_its_hash_is_stated(index: Index) -> None:
    path = index.add()
    corpus = load_corpus("wheel:Pkg==1.0")
    assert corpus.spec == "wheel:pkg==1.0"
    assert corpus.origin == {"sha256": sha256(path)}
    assert corpus.train.documents + corpus.valid.documents == 3
    assert contents("wheel:pkg==1.0") == [FILES[name] for name in sorted(FILES) if name.endswith(".py") and FILES[name]]


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("pkg/*.py", ["pkg/a.py"]),
        ("pkg/*/?.py", ["pkg/sub/b.py"]),
        ("pkg/sub/**", ["pkg/sub/b.py", "pkg/sub/deep/c.py"]),
        ("**/*.txt", ["pkg/notes.txt"]),
        ("pkg/**/a.py", ["pkg/a.py"]),
    ],
)
def test_a_pattern_chooses_files_by_their_paths(glob: str, names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "pkg.whl"
    path.write_bytes(archive("pkg", "1.0", FILES))
    assert [text.decode() for text in wheel.texts(path, glob, "wheel:pkg==1.0")] == [FILES[name] for name in names]


def test_a_wheel_is_downloaded_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add().rename(index.folder / "pkg-1.0-1-py3-none-any.whl")  # with a build number, as an index may have it
    first = contents("wheel:pkg==1.0")
    monkeypatch.setattr(wheel.sys, "executable", "/nowhere/python")
    assert contents("wheel:pkg==1.0") == first
    assert contents("wheel:pkg==1.0/pkg/a.py") == [FILES["pkg/a.py"]]


def test_a_wheel_for_any_machine_is_preferred_and_else_everyone_gets_the_same(index: Index) -> None:
    index.add({"pkg/a.py": "compiled"}, tag=COMPILED)
    index.add({"pkg/a.py": "another machine"}, tag="cp312-cp312-win_amd64")
    index.add({"pkg/a.py": "another Python"}, tag=COMPILED.replace("312", "311"))
    assert contents("wheel:pkg==1.0") == ["compiled"]
    index.add({"pkg/a.py": "pure"}, version="2.0")
    index.add({"pkg/a.py": "compiled"}, version="2.0", tag=COMPILED)
    assert contents("wheel:pkg==2.0") == ["pure"]


def test_another_file_under_the_same_name_is_refused(index: Index, tmp_path: Path) -> None:
    old = sha256(index.add())
    contents("wheel:pkg==1.0")
    (kept,) = (tmp_path / "cache/wheels/pkg==1.0").glob("*.whl")
    kept.unlink()
    new = sha256(index.add({"pkg/a.py": "other"}))
    assert old in (message := refusal("wheel:pkg==1.0"))
    assert new in message
    assert not kept.exists()
    index.add()
    assert contents("wheel:pkg==1.0/pkg/a.py") == [FILES["pkg/a.py"]]


def test_a_changed_file_in_the_cache_is_refused(index: Index, tmp_path: Path) -> None:
    index.add()
    contents("wheel:pkg==1.0")
    (kept,) = (tmp_path / "cache/wheels/pkg==1.0").glob("*.whl")
    kept.write_bytes(archive("pkg", "1.0", {"pkg/a.py": "other"}))
    message = refusal("wheel:pkg==1.0")
    assert json.loads((kept.parent / "wheel.json").read_text())["sha256"] in message
    assert sha256(kept) in message


def test_a_pinned_wheel_must_have_the_hash_that_is_known(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    path = index.add()
    monkeypatch.setattr(wheel, "PINNED", {"pkg==1.0": "0" * 64})
    assert sha256(path) in (message := refusal("wheel:pkg==1.0"))
    assert "0" * 64 in message
    monkeypatch.setattr(wheel, "PINNED", {"pkg==1.0": sha256(path)})
    assert len(contents("wheel:pkg==1.0")) == 3


@pytest.mark.parametrize(
    "argument", ["pkg", "pkg==", "pkg>=1.0", "pkg==1.*", "--help==1", "pkg==1.0/", "a b==1", "pkg==-r"]
)
def test_one_exact_version_is_a_must(argument: str) -> None:
    with pytest.raises(UsageError, match="one exact version"):
        source_of(f"wheel:{argument}")


def test_what_an_index_does_not_have(index: Index) -> None:
    index.add()
    assert "no version 1.1, or no wheel of it for CPython 3.12; did you mean 1.0?" in refusal("wheel:pkg==1.1")
    assert "no package of this name" in refusal("wheel:other==1.0")


def test_without_a_network_the_fix_is_said(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    assert "cannot reach the package index; check the network" in refusal("wheel:pkg==1.0")


def test_without_pip_the_fix_is_said(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    assert "-m ensurepip" in refusal("wheel:pkg==1.0")


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        (
            {"pkg/a.txt": "no Python"},
            "no file of the wheel matches '**/*.py'; it has 4 files in pkg, pkg-1.0.dist-info",
        ),
        ({"pkg/a.py": b"a\0b"}, "pkg/a.py in pkg.whl is binary"),
        ({"pkg/a.py": b"caf\xe9"}, "pkg/a.py in pkg.whl is not UTF-8 (byte 0xe9 at offset 3)"),
        ({"pkg/a.py": b"a" * 2000}, "GiB in one document"),
    ],
)
def test_what_cannot_be_read_is_named(
    files: dict[str, bytes], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesets, "LARGEST_DOCUMENT_BYTES", 1000)
    path = tmp_path / "pkg.whl"
    path.write_bytes(archive("pkg", "1.0", files))
    with pytest.raises(DataError) as caught:
        list(wheel.texts(path, "**/*.py", "wheel:pkg==1.0"))
    assert cause in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_archive_is_named(damage: str, tmp_path: Path) -> None:
    content = archive("pkg", "1.0", {"pkg/a.py": "abcdefg\n" * 1000})
    at = content.index(b"pkg/a.py") + 12
    path = tmp_path / "pkg.whl"
    path.write_bytes(
        content[:200] if damage == "cut" else content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]
    )
    with pytest.raises(DataError, match="no wheel, or damaged"):
        list(wheel.texts(path, "**/*.py", "wheel:pkg==1.0"))
