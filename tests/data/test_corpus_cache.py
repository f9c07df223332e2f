"""The cache of built corpora: what is damaged, edited or half-written is never believed, and never a traceback."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torture.corpora import mutate_and_load

from poscli.data import Corpus, disk_cache, load_corpus
from poscli.data.source import Document, Reading, Source
from poscli.data.tokenizers import tokenizer
from poscli.system.errors import DataError, UsageError
from poscli.system.files import cache_folder


@pytest.fixture
def built(books: Path, cache: Path) -> tuple[Corpus, Path]:
    """A corpus and its folder in the cache."""
    corpus = load_corpus(f"text:{books}", cache=cache)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    return corpus, folder


def same(one: Corpus, other: Corpus) -> bool:
    """Whether two corpora hold the same tokens under the same description."""
    pairs = [(one.train, other.train), (one.valid, other.valid), (one.tune, other.tune)]
    equal = all(np.array_equal(a.tokens, b.tokens) and np.array_equal(a.starts, b.starts) for a, b in pairs)
    return equal and one.describe() == other.describe()


def test_no_edited_field_of_the_index_is_believed(
    built: tuple[Corpus, Path], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound, folder = built
    index = json.loads((folder / "index.json").read_text())
    unsigned = {name: value for name, value in index.items() if name != "checksum"}
    assert index["checksum"] == hashlib.sha256(json.dumps(unsigned, sort_keys=True).encode()).hexdigest()
    for name, value in index.items():
        edited = {**value, "extra": [1, ""]} if isinstance(value, dict) else "0" * len(value)
        (folder / "index.json").write_text(json.dumps(index | {name: edited}, indent=2))
        assert same(load_corpus(sound.spec, cache=cache), sound)
        assert "is damaged" in capsys.readouterr().err


JUNK = [b"", b"[]", b"null", b'"text"', b"\xff\xfe{}", b"[" * 100_000, b'{"files": 3}', b'{"checksum": {}}']


def test_an_index_of_junk_is_built_again(built: tuple[Corpus, Path], cache: Path) -> None:
    sound, folder = built
    for junk in JUNK:
        (folder / "index.json").write_bytes(junk)
        assert same(load_corpus(sound.spec, cache=cache), sound)


@pytest.mark.parametrize("name", ["index.json", "valid.starts.npy", ""])
@pytest.mark.parametrize("damage", ["folder", "loop", "pipe", "file"])
@pytest.mark.skipif(os.name == "nt", reason="no links or pipes")
def test_what_is_no_file_is_replaced(built: tuple[Corpus, Path], cache: Path, name: str, damage: str) -> None:
    sound, folder = built
    path = folder / name if name else folder
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    {
        "folder": lambda: path.mkdir(),
        "loop": lambda: path.symlink_to(path.name),
        "pipe": lambda: os.mkfifo(path),
        "file": lambda: path.write_bytes(b"other"),
    }[damage]()
    assert same(load_corpus(sound.spec, cache=cache), sound)
    assert (folder / "index.json").is_file()


def test_a_link_in_place_of_the_folder_is_removed_and_not_what_it_points_at(
    built: tuple[Corpus, Path], cache: Path, tmp_path: Path
) -> None:
    sound, folder = built
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path / "precious")
    assert same(load_corpus(sound.spec, cache=cache), sound)
    assert (tmp_path / "precious" / "file").read_text() == "keep"


@pytest.mark.parametrize("seed", range(20))
def test_random_damage(seed: int) -> None:
    assert mutate_and_load(seed).fault == ""


FAILURES = {
    "mkdir": errno.EACCES,
    "open": errno.ENOSPC,
    "fsync": errno.EIO,
    "rename": errno.EROFS,
    "write_text": errno.ENOSPC,
    "lock": errno.EACCES,
}


@pytest.mark.parametrize("call", FAILURES)
def test_a_disk_that_fails_is_one_line_and_the_next_try_succeeds(
    call: str, books: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = FAILURES[call]

    def fail(path: object, *_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    def fail_when_writing(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        return real_open(path, mode, *rest, **more) if mode in ("r", "rb") else fail(path)

    real_open = Path.open
    with monkeypatch.context() as broken:
        if call == "fsync":
            broken.setattr(os, "fsync", fail)
        elif call == "lock":
            broken.setattr(disk_cache.FileLock, "acquire", fail)
        else:
            broken.setattr(Path, call, fail_when_writing if call == "open" else fail)
        with pytest.raises(DataError) as caught:
            load_corpus(f"text:{books}", cache=cache)
    message = str(caught.value)
    assert str(cache) in message
    assert os.strerror(number) in message
    assert "POSCLI_CACHE" in message
    assert "\n" not in message
    assert not [path for path in cache.glob("*") if path.is_dir()]
    assert load_corpus(f"text:{books}", cache=cache).train.bytes == 700


def test_everything_reaches_the_disk_before_the_folder_appears(
    books: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str | int] = []
    rename = Path.rename
    monkeypatch.setattr(os, "fsync", lambda handle: events.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(Path, "rename", lambda path, target: events.append("rename") or rename(path, target))
    load_corpus(f"text:{books}", cache=cache)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    numbers = {path.stat().st_ino: path for path in (cache, folder, *folder.iterdir())}
    files = [folder / name for name in (*disk_cache.ARRAYS, "index.json")]
    assert [numbers.get(event, event) for event in events] == [*files, folder, "rename", cache]


# --- names

HOSTILE = st.one_of(
    st.text(),
    st.lists(st.sampled_from(["..", "/", "\\", ":", "\0", "\n", ".", "~", "*", "é", "x" * 300, " "])).map("".join),
)


@settings(deadline=None, max_examples=40)
@given(kind=st.sampled_from(["text", "hf", "jsonl", "..", "/"]), argument=HOSTILE)
def test_no_name_of_a_corpus_leads_out_of_the_cache(kind: str, argument: str) -> None:
    source = Source(f"{kind}:{argument}", None, lambda: Reading(iter([Document(b"a line\n" * 50)]), {}))
    with TemporaryDirectory() as folder:
        disk_cache.load_or_build(source, tokenizer("bytes"), Path(folder, "cache"))
        (name,) = (path.name for path in Path(folder, "cache").iterdir() if path.is_dir())
        assert [path.name for path in Path(folder).iterdir()] == ["cache"]
    assert name.isascii()
    assert name.isprintable()
    assert len(name) < 190


@pytest.mark.parametrize(
    "spec",
    [
        *("hf:../../x", "hf:/etc", "hf:..", "hf:" + "a" * 300, "hf:a/b/../../c", "hf:org/" + "b" * 300),
        *("text:a\0b", "text:a\nb", "text:\udce9", "text:" + "x" * 10_000, "text:" + "x" * 300, "jsonl:" + "x/" * 1500),
        *("text:~nosuchuser/x", "text:loop", "text:loop/x", "jsonl:loop", "parquet:loop", "text:folder:x", "a\nb"),
    ],
    ids=lambda spec: repr(spec)[1:25],
)
def test_hostile_names_are_errors_of_one_line_and_write_nothing(spec: str, here: Path, cache: Path) -> None:
    (here / "loop").symlink_to("loop")
    before = set(here.rglob("*"))
    with pytest.raises((DataError, UsageError)) as caught:
        load_corpus(spec, cache=cache)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 10_000
    written = set(here.rglob("*")) - before
    assert all(path == cache or cache in path.parents for path in written)
    assert not [path for path in written if path.is_dir() and path != cache]


def test_a_home_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSCLI_CACHE", "~nosuchuser/cache")
    with pytest.raises(DataError, match="set POSCLI_CACHE"):
        load_corpus("stdlib")


def test_the_cache_is_made_so_that_nobody_else_can_write_it(books: Path, tmp_path: Path) -> None:
    """Compiled kernels lie beside the corpora, and are not run where others could exchange them."""
    cache = tmp_path / "new" / "cache"
    before = os.umask(0)
    try:
        load_corpus(f"text:{books}", cache=cache)
    finally:
        os.umask(before)
    assert not any(folder.stat().st_mode & 0o022 for folder in (cache.parent, cache))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another place for caches")
def test_the_cache_lies_where_users_keep_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSCLI_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/poscli"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg/poscli"
    monkeypatch.setenv("POSCLI_CACHE", "~/own")
    assert cache_folder() == tmp_path / "own"
