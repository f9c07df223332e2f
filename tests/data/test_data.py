"""Corpora, tokenizers, the split and the sampler. What corpora read and refuse is in test_snapshots_data.py."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from corpus_places import write
from hub_stub import parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from poscli.data import TOKENIZERS, Corpus, Split, Tokenizer, batch, check_trainable, load_corpus, source_of
from poscli.data.build import StoredDocument, cut_points, hold_out, split_documents
from poscli.data.tokenizers import tokenizer
from poscli.data.tokenizers.bytes import END
from poscli.system.errors import DataError, UsageError


def texts(split: Split) -> list[bytes]:
    """The documents of a split of bytes; fails unless END opens each of them and appears nowhere else."""
    assert split.tokens.dtype == np.uint16
    assert split.starts.dtype == np.int64
    assert np.array_equal(np.flatnonzero(split.tokens == END), split.starts[:-1])
    assert split.starts[-1] == len(split.tokens)
    bounds = zip(split.starts[:-1], split.starts[1:], strict=True)
    return [bytes(split.tokens[start + 1 : end].astype(np.uint8)) for start, end in bounds]


def everything(corpus: Corpus) -> list[bytes]:
    return sorted(texts(corpus.train) + texts(corpus.valid) + texts(corpus.tune))


# --- the built-in corpus


def test_stdlib_is_about_8_megabytes_of_modules(tmp_path: Path) -> None:
    stdlib = load_corpus("stdlib", cache=tmp_path)
    documents = everything(stdlib)
    assert 150 <= len(documents) <= 350
    assert all(len(text) >= 16 * 512 + 128 for text in documents)  # the longest windows of the default length
    total = sum(map(len, documents))
    assert 5e6 < total < 12e6
    assert stdlib.train.bytes > 0.65 * total  # more than the 2M tokens of a training, which therefore repeats none
    assert stdlib.valid.documents >= 60
    assert 2.5 < stdlib.valid.documents / stdlib.tune.documents < 3.5
    assert Path(sysconfig.get_path("stdlib"), "inspect.py").read_bytes() in documents
    assert stdlib.describe()["python"] == ".".join(map(str, sys.version_info[:3]))


# --- what is held out


@given(sizes=st.lists(st.integers(1, 1000), min_size=2, max_size=30))
def test_up_to_a_third_is_held_out(sizes: list[int]) -> None:
    held = hold_out(sizes)
    part, total = sum(sizes[n] for n in held), sum(sizes)
    assert 0 < len(held) < len(sizes)
    assert held == sorted(held)
    usual = [n for n, size in enumerate(sizes) if len(sizes) * size <= 2 * total]  # others are too large
    fits = [n for n in usual if 3 * sizes[n] <= total]
    assert set(held) <= set(fits) and 3 * part <= total if fits else part == min(sizes)
    if fits and 10 * part < 3 * total:  # less than three tenths: then no further document would have fitted
        assert all(3 * (part + sizes[n]) > total for n in set(usual) - set(held))


@given(sizes=st.lists(st.integers(1, 1000), min_size=2, max_size=60))
def test_every_fourth_of_what_is_held_out_is_for_tuning(sizes: list[int]) -> None:
    """So there is none only where a single document is held out."""
    documents = [StoredDocument(n.to_bytes(4), n, size) for n, size in enumerate(sizes)]
    parts = {part: [each.offset for each in chosen] for part, chosen in split_documents(documents).items()}
    assert sorted(parts["valid"] + parts["tune"]) == hold_out(sizes)
    assert sorted(itertools.chain(*parts.values())) == list(range(len(sizes)))
    assert len(parts["tune"]) == (len(hold_out(sizes)) + 2) // 4


@given(train=st.lists(st.integers(1, 1000), min_size=1, max_size=40), valid=st.integers(1, 2000))
def test_documents_for_tuning_are_cut_from_the_training_text_of_a_source_with_a_split_of_its_own(
    train: list[int], valid: int
) -> None:
    """What is scored stays whole. At most a twelfth of the training text is taken."""
    documents = [StoredDocument(n.to_bytes(4), n, size, "train") for n, size in enumerate(train)]
    held = StoredDocument(b"held", 0, valid, "valid")
    parts = split_documents([*documents, held])
    assert parts["valid"] == [held]
    assert sorted(parts["train"] + parts["tune"], key=lambda each: each.digest) == documents
    size = sum(each.size for each in parts["tune"])
    assert 12 * size <= sum(train)
    assert 3 * (size - max((each.size for each in parts["tune"]), default=0)) < valid  # no more than was wanted
    tuned = StoredDocument(b"tune", 0, 5, "tune")
    assert split_documents([*documents, held, tuned]) == {"train": documents, "valid": [held], "tune": [tuned]}


def test_the_split_ignores_names_and_order(books: Path, tmp_path: Path, cache: Path) -> None:
    renamed = write(tmp_path / "renamed", {f"{9 - n}.md": path.read_bytes() for n, path in enumerate(books.iterdir())})
    here, there = (load_corpus(f"text:{folder}", cache=cache) for folder in (books, renamed))
    assert here.fingerprint == there.fingerprint
    assert np.array_equal(here.train.tokens, there.train.tokens)


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=16))
def test_a_cut_never_splits_a_character(text: str) -> None:
    content = text.encode()
    first, second = cut_points(content)
    assert 0 < first < second < len(content)
    assert "".join(part.decode() for part in (content[:first], content[first:second], content[second:])) == text


ARGPARSE = f"text:{Path(sysconfig.get_path('stdlib'), 'argparse.py')}"


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("code", "wheel:sympy==1.13.3", True),
        ("prose", "wheel:sympy==1.13.3/sympy/core/*.py", True),
        ("code", "wheel:sympy==1.13.2", False),
        ("stdlib", ARGPARSE, True),
        ("hf:wikitext", "hf:wikitext?bytes=50M", True),
        ("hf:wikitext", "hf:wikitext:wikitext-2-raw-v1", False),
        ("hf:org/set", "hf:org/set:default#body", True),
        ("hf:org/set@train", "hf:org/set@test", False),
    ],
)
def test_corpora_that_read_the_same_text_have_a_common_origin(one: str, other: str, shared: bool) -> None:
    """By it `--on whole:CORPUS` is refused where a model was trained on text of it."""
    assert bool(source_of(one).origins & source_of(f"whole:{other}").origins) == shared


def test_of_a_whole_corpus_nothing_is_for_training(books: Path, tmp_path: Path, cache: Path) -> None:
    """Three quarters are scored, of documents or of the bytes of a single one; the rest is for choosing."""
    corpus = load_corpus(f"whole:text:{books}", cache=cache)
    documents = len(list(books.iterdir()))
    assert corpus.spec == f"whole:text:{books}"
    assert (corpus.train.documents, corpus.train.bytes) == (0, 0)
    assert corpus.valid.documents == documents - (documents + 2) // 4
    assert corpus.valid.documents + corpus.tune.documents == documents
    one = tmp_path / "one.txt"
    one.write_text("".join(f"line {n:04d}\n" for n in range(4000)))
    alone = load_corpus(f"whole:text:{one}", cache=cache)
    assert alone.train.bytes == 0
    assert alone.valid.bytes == pytest.approx(0.75 * one.stat().st_size, rel=0.06)
    assert alone.valid.bytes + alone.tune.bytes == one.stat().st_size


def test_nothing_can_be_trained_on_a_whole_corpus(books: Path, cache: Path) -> None:
    corpus = load_corpus(f"whole:text:{books}", cache=cache)
    with pytest.raises(DataError, match="nothing of it is set aside for training; name it without `whole:`"):
        check_trainable(corpus, 16)
    with pytest.raises(DataError, match="no text to train the tokenizer bpe:300 on"):
        load_corpus(f"whole:text:{books}", tokenizer="bpe:300", cache=cache)


def test_what_is_shorter_than_any_window_is_told_to_add_text(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "tiny.txt").write_text("too little text")
    with pytest.raises(DataError, match="a window of 16 needs 17 tokens: add text to it"):
        check_trainable(load_corpus(f"text:{tmp_path}", cache=cache), 16)


# --- the fingerprint and the cache


def test_a_cached_corpus_loads_without_reading_its_source_until_that_is_edited(books: Path, cache: Path) -> None:
    first = load_corpus(f"text:{books}", cache=cache)
    for path in books.iterdir():  # binary contents, which would be refused, in files of unchanged size and time
        times = path.stat()
        path.write_bytes(bytes(times.st_size))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = load_corpus(f"text:{books}", cache=cache)
    assert second.describe() == first.describe()
    assert isinstance(second.train.tokens, np.memmap)
    assert np.array_equal(second.valid.tokens, first.valid.tokens)
    write(books, {f"{n}.txt": f"something else {n}\n" for n in range(10)})  # another size
    assert load_corpus(f"text:{books}", cache=cache).fingerprint != first.fingerprint


LINES = [f"line {n:03d}\n" for n in range(40)]
FORMS = ["one.txt", "many.txt", "rows.jsonl"]


def written(form: str, folder: Path, lines: Sequence[str]) -> str:
    """The spec of a corpus of one document, or of one for each line."""
    contents = {"one.txt": "".join(lines)}
    if form == "many.txt":
        contents = {f"{n}.txt": line for n, line in enumerate(lines)}
    if form == "rows.jsonl":
        contents = {form: "".join(json.dumps({"text": line}) + "\n" for line in lines)}
    return f"{'jsonl' if form == 'rows.jsonl' else 'text'}:{write(folder, contents)}"


@pytest.mark.parametrize("form", FORMS)
def test_every_byte_of_a_text_is_in_its_fingerprint(form: str, tmp_path: Path, cache: Path) -> None:
    """Also those of the last third of a single document, which is held out, and of every document of many."""

    def fingerprint(changed: int | None) -> str:
        lines = [line.upper() if n == changed else line for n, line in enumerate(LINES)]
        return load_corpus(written(form, tmp_path / str(changed), lines), cache=cache).fingerprint

    marks = [fingerprint(changed) for changed in (None, 0, 17, 26, 27, 36, 39)]
    assert len(set(marks)) == len(marks)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:270"])
@pytest.mark.parametrize("form", FORMS)
def test_a_corpus_holds_every_byte_once_and_counts_documents_and_bytes(
    form: str, tokenizer: str, tmp_path: Path, cache: Path
) -> None:
    corpus = load_corpus(written(form, tmp_path / "text", LINES), tokenizer=tokenizer, cache=cache)
    contents: dict[str, list[bytes]] = {}
    for name, split in (("train", corpus.train), ("valid", corpus.valid), ("tune", corpus.tune)):
        documents = np.split(split.tokens, split.starts[1:-1])
        assert all(document[0] == corpus.tokenizer.end for document in documents)
        contents[name] = [corpus.tokenizer.decode(document[1:]) for document in documents]
        sizes = {"documents": len(contents[name]), "bytes": sum(map(len, contents[name]))}
        assert {"documents": split.documents, "bytes": split.bytes} == corpus.describe()[name] == sizes
    if form == "one.txt":
        bounds = {"train": slice(26), "valid": slice(26, 36), "tune": slice(36, None)}
        assert contents == {name: ["".join(LINES[part]).encode()] for name, part in bounds.items()}
        return
    assert sorted(itertools.chain(*contents.values())) == [line.encode() for line in LINES]
    assert {name: len(documents) for name, documents in contents.items()} == {"train": 28, "valid": 9, "tune": 3}
    for documents in contents.values():
        digests = [hashlib.sha256(content).digest() for content in documents]
        assert digests == sorted(digests)


def test_simultaneous_loads_build_once(books: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        corpora = list(pool.map(lambda _: load_corpus(f"text:{books}", cache=cache), range(8)))
    assert len({corpus.fingerprint for corpus in corpora}) == 1
    assert capsys.readouterr().err.count("preparing the corpus") == 1


def test_a_row_of_a_long_parquet_file_is_named_by_its_number_in_the_file(tmp_path: Path, cache: Path) -> None:
    """Rows are read 65,536 at a time."""
    write(tmp_path, {"long.parquet": parquet([*[None] * 65_540, ["a list"]])})
    with pytest.raises(DataError, match=r"long\.parquet row 65541: field 'text' holds list, not text"):
        load_corpus(f"parquet:{tmp_path}/long.parquet", cache=cache)


def test_importing_and_listing_are_light() -> None:
    code = """
import sys
from poscli.data.tokenizers import TOKENIZERS
assert "hf" in TOKENIZERS.names()
heavy = {"torch", "datasets", "pandas", "pyarrow", "tokenizers", "transformers", "huggingface_hub"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- tokenizers


class Words(Tokenizer):
    """A word of WORDS, with the white space after it, is one token; of any other text, each byte is a token."""

    summary = "whitespace-separated words"
    WORDS = (b"alpha ", b"beta ", b"gamma\n")
    end = 256 + len(WORDS)
    fingerprint = "words-1"
    token_bytes = np.array([1] * 256 + [len(word) for word in WORDS] + [0])

    def encode(self, content: bytes) -> np.ndarray:
        ids: list[int] = []
        for word in re.findall(rb"\S+\s*|\s+", content):
            ids += [256 + self.WORDS.index(word)] if word in self.WORDS else word
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Sequence[int] | np.ndarray) -> bytes:
        table = [*(bytes([n]) for n in range(256)), *self.WORDS, b""]
        return b"".join(table[n] for n in ids)


class Lossy(Words):
    """Drops every byte that is no word."""

    def encode(self, content: bytes) -> np.ndarray:
        ids = super().encode(content)
        return ids[ids >= 256]


class Many(Words):
    """A vocabulary that uint16 cannot hold."""

    fingerprint = "many"
    end = 70_000
    token_bytes = np.array([1] * 70_000 + [0])

    def encode(self, content: bytes) -> np.ndarray:
        return np.frombuffer(content, np.uint8).astype(np.int64) + 60_000


WORDS = "test_data:Words"


@pytest.mark.parametrize("spec", [*(n for n in TOKENIZERS.names() if not TOKENIZERS.get(n).argument), WORDS])
@given(content=st.one_of(st.binary(), st.lists(st.sampled_from([*Words.WORDS, b"delta "])).map(b"".join)))
def test_a_tokenizer_is_lossless(spec: str, content: bytes) -> None:
    made = tokenizer(spec)
    ids = made.encode(content)
    assert made.decode(ids) == made.decode([made.end, *ids]) == content
    assert made.token_bytes[ids].sum() == len(content)
    assert made.vocab == len(made.token_bytes) > max([made.end, *ids])
    assert made.token_bytes[made.end] == 0
    assert made.summary
    assert tokenizer(made.name).fingerprint == made.fingerprint


@pytest.fixture
def poems(tmp_path: Path) -> Path:
    """Ten documents of 24 bytes and 5 words, four of which are tokens of `Words`."""
    return write(tmp_path / "poems", {f"{n}.txt": f"alpha beta {n} beta gamma\n" for n in range(10)})


def test_a_corpus_of_words(poems: Path, cache: Path) -> None:
    plain, words = (load_corpus(f"text:{poems}", tokenizer=name, cache=cache) for name in ("bytes", WORDS))
    for before, after in ((plain.train, words.train), (plain.valid, words.valid), (plain.tune, words.tune)):
        documents = zip(after.starts[:-1], after.starts[1:], strict=True)
        assert [words.tokenizer.decode(after.tokens[a + 1 : b]) for a, b in documents] == texts(before)
        assert after.bytes == before.bytes == words.tokenizer.token_bytes[after.tokens].sum() == 24 * after.documents
        assert len(after.tokens) == (1 + 6) * after.documents  # `end`, four words, the digit and the space after it
        assert after.tokens.dtype == np.uint16
    assert words.fingerprint != plain.fingerprint
    assert words.vocab == 260
    told = {"vocab": 260, "tokenizer": WORDS, "tokenizer_fingerprint": "words-1", "fingerprint": words.fingerprint}
    assert words.describe() == plain.describe() | told
    again = load_corpus(f"text:{poems}", tokenizer=WORDS, cache=cache)
    assert again.describe() == words.describe()
    assert len(list(cache.glob("text*"))) == 2  # one folder per tokenizer


def test_fingerprint_and_cache_key_of_bytes_stay_as_they_are(cache: Path, books: Path) -> None:
    corpus = load_corpus(f"text:{books}", cache=cache)
    assert corpus.fingerprint == "89ea7e4aba4b1885"  # else results and caches are no longer valid: raise RULE
    assert "tokenizer" not in corpus.describe()
    (folder,) = cache.glob("text*")
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(books.iterdir())]
    key = hashlib.sha256(json.dumps(["split rule 2", corpus.spec, files]).encode()).hexdigest()[:16]
    assert folder.name.endswith(f"-{key}")


def test_a_vocabulary_beyond_16_bits_is_stored_in_32(poems: Path, cache: Path) -> None:
    corpus = load_corpus(f"text:{poems}", tokenizer="test_data:Many", cache=cache)
    assert corpus.train.tokens.dtype == np.uint32
    assert corpus.train.tokens.max() == 70_000


def test_a_tokenizer_that_loses_bytes_is_refused(poems: Path, cache: Path) -> None:
    with pytest.raises(UsageError, match=r"Lossy is not lossless: .* 24 bytes into tokens that stand for 22"):
        load_corpus(f"text:{poems}", tokenizer="test_data:Lossy", cache=cache)


# --- kinds and tokenizers of other packages

PLUGIN = """
from poscli.data import Kind
from poscli.data.source import Document, Reading, Source
from poscli.data.tokenizers.bytes import Bytes

class Shifted(Bytes):
    argument = "NUMBER"

    def __init__(self, argument):
        self.fingerprint = f"shifted {argument}"

def count(argument):
    documents = (Document(b"%d\\n" % n) for n in range(int(argument)))
    return Source(f"count:{argument}", None, lambda: Reading(documents, {}))

COUNT = Kind("count:N", "the numbers below N; one document per number", count)
"""
ENTRY_POINTS = """
[poscli.data.corpora]
count = plugin:COUNT
broken = plugin_that_is_not_there:KIND
[poscli.data.tokenizers]
shifted = plugin:Shifted
"""
PLUGGED = """
import json
from poscli.data import load_corpus
from poscli.data.corpora import describe_corpora
print(json.dumps([load_corpus("count:100", tokenizer="shifted:1").describe(), describe_corpora()]))
"""


def test_an_installed_package_adds_a_kind_and_a_tokenizer(tmp_path: Path) -> None:
    package = "plugin-1.0.dist-info"
    contents = {"plugin.py": PLUGIN, f"{package}/METADATA": "Name: plugin\nVersion: 1.0\n"}
    write(tmp_path, {**contents, f"{package}/entry_points.txt": ENTRY_POINTS})
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "POSCLI_CACHE": str(tmp_path / "cache")}
    child = subprocess.run([sys.executable, "-c", PLUGGED], env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    corpus, kinds = json.loads(child.stdout)
    assert (corpus["tokenizer"], corpus["tokenizer_fingerprint"]) == ("shifted:1", "shifted 1")
    assert sum(corpus[name]["bytes"] for name in ("train", "valid", "tune")) == 10 * 2 + 90 * 3
    rows = {row["corpus"]: row["unavailable"] for row in kinds}
    assert rows["count:N"] == ""
    assert "plugin_that_is_not_there" in rows["broken"]


# --- batches


def test_the_stream_is_the_same_on_every_machine_and_in_every_numpy() -> None:
    split = Split(np.arange(1000, dtype=np.uint16), np.array([0, 1000]))
    first = batch(split, length=1, size=4, seed=3, step=5)[:, 0]
    assert first.tolist() == [637, 777, 34, 444]


def test_windows_are_consecutive_uniform_and_reach_both_ends() -> None:
    split = Split(np.arange(20, dtype=np.uint16), np.array([0, 20]))
    windows = np.concatenate([batch(split, length=3, size=64, seed=0, step=step) for step in range(100)])
    assert (np.diff(windows, axis=1) == 1).all()
    counts = np.bincount(windows[:, 0], minlength=20)
    assert (counts[:17] > 0).all()
    assert (counts[17:] == 0).all()
    expected = len(windows) / 17
    assert ((counts[:17] - expected) ** 2 / expected).sum() < 45  # chi-square, 16 degrees of freedom: p = 1e-4
