"""The texts of the panel: code, prose, records and echo."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_wheels import Index, index  # noqa: F401 - a fixture

from poscli.data import Split, load_corpus
from poscli.data.corpora import code, prose, records, source_of, wheel
from poscli.data.corpora.echo import echoed
from poscli.system.errors import DataError, UsageError
from poscli.system.files import sha256

MODULE = b'''"""About the module.

More of it."""
import os


@cache
def outer(a, /, b, *rest, c=1, **options):
    """Do it: \\ud800.

    Details."""
    def inner():
        return os.path.join(a).strip()
    return inner() or b

class Thing(Base):
    "A thing."

    @property.setter
    async def size(self):
        one(two(), three())
        return None
'''


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short documents count, too."""
    for module in (prose, records):
        monkeypatch.setattr(module, "SMALLEST_BYTES", 1)


def test_code_is_the_files_of_pinned_wheels_that_are_neither_short_nor_long(
    index: Index,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = [f"x = {n}\n".ljust(4000 + n, "#") for n in range(12)]
    files = {f"pkg/{n:02}.py": text for n, text in enumerate(kept)}
    path = index.add(files | {"pkg/short.py": "x" * 3999, "pkg/long.py": "x" * 120_001, "pkg/a.txt": "x" * 5000})
    for module in (wheel, code):
        monkeypatch.setattr(module, "PINNED", {"pkg==1.0": sha256(path)})
    assert [document.content.decode() for document in source_of("code").read().documents] == kept
    corpus = load_corpus("code")
    assert corpus.origin == {"sha256 of pkg==1.0": sha256(path)}
    assert corpus.train.documents + corpus.valid.documents + corpus.tune.documents == 12
    assert source_of("echo:code").spec == "echo"
    assert len(list(source_of("echo").read().documents)) == 12


@pytest.mark.usefixtures("short")
def test_prose_is_the_docstrings_in_their_order() -> None:
    expected = "About the module.\n\nMore of it.\n\nDo it: \\ud800.\n\nDetails.\n\nA thing.\n"
    assert prose.docstrings(MODULE) == expected.encode()


@pytest.mark.usefixtures("short")
def test_records_are_one_line_for_each_function() -> None:
    outer, inner, size = (json.loads(line) for line in records.function_records(MODULE).splitlines())
    assert outer == {
        "name": "outer",
        "in": "",
        "line": 8,
        "arguments": ["a", "b", "c", "*rest", "**options"],
        "decorators": ["cache"],
        "calls": ["os.path.join().strip", "os.path.join", "inner"],
        "returns": 2,
        "doc": "Do it: \ud800.",
    }
    assert (inner["name"], inner["in"], inner["returns"]) == ("inner", "outer", 1)
    assert (size["name"], size["in"], size["decorators"]) == ("size", "Thing", ["property.setter"])
    assert size["calls"] == ["one", "two", "three"]


def test_records_have_at_most_eight_calls_and_modules_with_few_records_are_left_out() -> None:
    body = "\n".join(f"    f{n}()" for n in range(20))
    one = f"def g():\n{body}\n"
    assert records.function_records(one.encode()) == b""
    lines = records.function_records((one * 40).encode()).splitlines()
    assert len(lines) == 40
    assert json.loads(lines[0])["calls"] == [f"f{n}" for n in range(8)]


@pytest.mark.parametrize("kind", ["prose", "records"])
def test_what_python_cannot_parse_is_left_out(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("no Python at all\n" * 1000)
    (tmp_path / "b.py").write_bytes(b"x = " + b"(" * 5000)
    with pytest.raises(DataError, match="holds no text"):
        load_corpus(f"{kind}:text:{tmp_path}")


def test_a_derived_corpus_is_another_corpus_when_its_base_changes(tmp_path: Path) -> None:
    texts = [f'def f{n}():\n    """{"Words. " * (600 + n)}"""\n' for n in range(12)]
    for n, text in enumerate(texts):
        (tmp_path / f"{n:02}.py").write_text(text)
    corpus = load_corpus(f"prose:text:{tmp_path}")
    assert corpus.spec == f"prose:text:{tmp_path}"
    assert corpus.train.documents + corpus.valid.documents + corpus.tune.documents == 12
    (tmp_path / "00.py").write_text(texts[0].replace("Words", "Terms"))
    assert load_corpus(f"prose:text:{tmp_path}").fingerprint != corpus.fingerprint


def modules(folder: Path, count: int) -> str:
    """A corpus of modules of which each has words of its own, and enough docstrings and functions for every text."""
    folder.mkdir()
    for n in range(count):
        functions = (f'def m{n}_f{k}(x):\n    """{f"Word{n:03}x{k} " * 25}"""\n    return g{k}(x)\n' for k in range(40))
        (folder / f"{n:03}.py").write_text("\n".join(functions))
    return f"text:{folder}"


def words_of(split: Split) -> set[bytes]:
    """The numbers of the modules that a split has text of."""
    return set(re.findall(rb"Word(\d{3})x", bytes(split.tokens[split.tokens < 256].astype(np.uint8))))


def test_what_is_made_of_a_module_is_all_in_one_split(tmp_path: Path) -> None:
    base = modules(tmp_path / "base", 60)
    splits = {}
    for kind in ("panel", "prose", "records", "echo", "spliced"):
        corpus = load_corpus(f"{kind}:{base}")
        splits[kind] = [words_of(split) for split in (corpus.train, corpus.valid, corpus.tune)]
    for n, part in enumerate(splits["panel"]):
        assert part
        for kind in ("prose", "records", "echo", "spliced"):
            assert splits[kind][n] == part
    assert sum(map(len, splits["panel"])) == len(set.union(*splits["panel"])) == 60


@pytest.mark.parametrize("kind", ["prose", "records", "echo", "panel", "spliced"])
def test_what_a_corpus_trains_on_is_never_scored_in_what_is_made_of_it(kind: str, tmp_path: Path) -> None:
    base = modules(tmp_path / "base", 60)
    plain, made = load_corpus(base), load_corpus(f"{kind}:{base}")
    for part in ("train", "valid", "tune"):
        assert words_of(getattr(made, part)) == words_of(getattr(plain, part))
    whole = load_corpus(f"{kind}:whole:{base}")
    assert (whole.spec, whole.train.documents) == (f"whole:{kind}:{base}", 0)


def test_of_the_standard_library_the_same_modules_are_for_training_in_what_is_made_of_it() -> None:
    train = load_corpus("stdlib").train
    bounds = zip(train.starts[:-1], train.starts[1:], strict=True)
    texts = (bytes(train.tokens[start + 1 : end].astype(np.uint8)) for start, end in bounds)
    made = {content for content, part in source_of("prose:stdlib").read().documents if part == "train"}
    assert made == {prose.docstrings(text) for text in texts}


@pytest.mark.parametrize("kind", ["echo", "spliced", "echo:echo"])
def test_a_single_document_is_cut_before_anything_is_made_of_it(kind: str, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("".join(f"Word{n:03}x and more words\n" for n in range(1000)))
    corpus, plain = (load_corpus(f"{prefix}text:{tmp_path / 'one.txt'}") for prefix in (f"{kind}:", ""))
    for part in ("train", "valid", "tune"):
        found = words_of(getattr(corpus, part))
        assert found
        assert found <= words_of(getattr(plain, part))


@pytest.mark.parametrize("end", ["", "\n"])
def test_documents_of_one_line_can_be_spliced(end: str, tmp_path: Path) -> None:
    for n in range(12):
        (tmp_path / f"{n}.txt").write_text(" ".join(f"größer {n:02} {at:02}" for at in range(40)) + end)
    corpus = load_corpus(f"spliced:text:{tmp_path}")
    assert corpus.train.documents == corpus.valid.documents == 200
    text = bytes(corpus.valid.tokens[corpus.valid.tokens < 256].astype(np.uint8))
    assert len(set(re.findall(rb"er \d\d (\d\d) ", text))) >= 39  # pieces of all of a document, not of its beginning


def test_the_panel_has_every_kind_of_text(tmp_path: Path) -> None:
    base = modules(tmp_path / "base", 60)
    texts = [document.content for document in source_of(f"panel:{base}").read().documents]
    shares = {
        "records": sum(text.startswith(b'{"name"') for text in texts),
        "prose": sum(text.startswith(b"Word") for text in texts),
        "code": sum(text.startswith(b"def ") for text in texts),
    }
    assert shares["records"] == shares["prose"] == 60
    assert 60 * 0.15 < shares["code"] < 60 * 0.65  # a quarter as they are and an eighth with passages repeated


def test_pieces_of_the_control_come_from_other_documents_each(tmp_path: Path) -> None:
    corpus = source_of(f"spliced:{modules(tmp_path / 'base', 60)}")
    texts = [document.content for document in corpus.read().documents]
    assert texts == [document.content for document in corpus.read().documents]
    for text in texts[:20]:
        assert 7_990 < len(text) <= 8_000
        runs = [len(list(same)) for _, same in groupby(re.findall(rb"Word(\d{3})x", text))]
        assert max(runs) <= 2 * (160 // len(b"Word001x1 ") + 1)  # two pieces of one document may follow each other


@pytest.mark.wide
def test_the_standard_library_as_prose_records_and_echo() -> None:
    for spec in ("prose:stdlib", "records:stdlib", "echo:stdlib"):
        documents = [document.content for document in source_of(spec).read().documents]
        assert sum(map(len, documents)) > 500_000
        assert all(not document or len(document) >= 4000 for document in documents)


# --- echo


def lines(seed: int, size: int) -> bytes:
    """A text of random words in lines, of which no passage occurs twice by chance."""
    draw = np.random.default_rng(seed)
    letters = draw.choice(list("abcdefghijklmnopqrstuvwxyzé   \n"), size)
    return "".join(letters).encode()


def cut(passage: bytes) -> int:
    """How many bytes are taken: up to a line's end in the second half, a word's in the last eighth, or a character."""
    size = len(passage)
    ends = {passage.find(b"\n", size // 2, size - 4), passage.find(b" ", size * 7 // 8, size - 4)} - {-1}
    if ends:
        return min(ends) + 1
    return next((at for at in range(max(0, size - 4), size) if passage[at] & 0xC0 != 0x80), size)


def copy_distances(document: bytes, low: int = 64, high: int = 4096) -> NDArray[np.int64]:
    """For each byte of an echo: how far back it, or a copy of it, was last, `[n]`; 0 for own bytes.

    It reads the finished document, and makes by the rules of poscli/data/corpora/echo.py the decisions that made it.
    """
    distances = np.zeros(len(document), np.int64)
    own = list(range(len(document)))  # the own byte that each byte is, or is a copy of
    last = own.copy()  # where each own byte or a copy of it stands last, so far

    def draws(at: int) -> tuple[int, ...]:
        return struct.unpack("<4Q", hashlib.sha256(document[max(0, at - 256) : at] + struct.pack("<Q", at)).digest())

    at = 0
    while len(document) - at > (size := 48 + draws(at)[0] % 145):
        at += cut(document[at : at + size])
        if at <= low:
            continue
        _, size, unit, _ = draws(at)
        back = int(low * (min(high, at) / low) ** (unit / 2**64))
        start = max(0, at - back - 64)
        start += cut(document[start : at - back])
        size = min(48 + size % 145, back)
        for copied in range(start, start + cut(document[start : start + size])):
            own[at] = own[copied]
            distances[at] = at - last[own[at]]
            last[own[at]] = at
            at += 1
    return distances


def test_copies_are_half_of_the_text_and_lie_where_they_are_said_to_lie() -> None:
    source = lines(0, 60_000)
    text = echoed(source)
    distances, place = copy_distances(text), np.arange(len(text))
    tokens = np.frombuffer(text, np.uint8)
    assert (tokens == tokens[place - distances]).all()
    assert tokens[distances == 0].tobytes() == source
    assert 0.4 < (distances > 0).mean() < 0.6
    assert distances[distances > 0].min() > 16
    assert distances.max() <= 4096 + 64
    octaves = np.bincount(np.log2(distances[distances > 0]).astype(int), minlength=12)[6:12]
    assert octaves.min() > octaves.sum() / 12  # of six octaves


def test_copies_are_whole_lines_or_words_and_never_parts_of_characters() -> None:
    text = echoed(("größer, weiter 語語語語語語語語語語語語 und\n" * 400).encode())
    text.decode()
    distances = copy_distances(text)
    begins = np.flatnonzero((distances[1:] > 0) & (distances[:-1] == 0)) + 1
    whole = [text[at - 1 : at] in (b" ", b"\n") for at in begins]
    assert np.mean(whole) > 0.8


@given(st.text("ab é語\n", max_size=3000), st.integers(16, 100), st.integers(1, 3000))
def test_the_own_bytes_of_an_echo_are_the_document(source: str, low: int, further: int) -> None:
    text = echoed(source.encode(), low, low + further)
    distances = copy_distances(text, low, low + further)
    tokens = np.frombuffer(text, np.uint8)
    assert tokens[distances == 0].tobytes() == source.encode()
    assert (tokens == tokens[np.arange(len(text)) - distances]).all()
    assert distances.max(initial=0) <= low + further + 64


@given(st.binary(max_size=2000))
def test_any_bytes_can_be_echoed(source: bytes) -> None:
    text = echoed(source)
    assert np.frombuffer(text, np.uint8)[copy_distances(text) == 0].tobytes() == source


def test_options_of_echo() -> None:
    assert source_of("echo:stdlib(low=64, high=4096)").spec == "echo:stdlib"
    assert source_of("echo:stdlib(high=512)").spec == "echo:stdlib(low=64, high=512)"
    assert source_of("echo:bayes:recall(cues=8)").spec == "echo:bayes:recall(cues=8, values=4)"
    for wrong in ("(low=8)", "(low=512, high=512)"):
        with pytest.raises(UsageError, match="low must be 16 or more"):
            source_of(f"echo:stdlib{wrong}")
    both = "echo:bayes:period(low=8, high=512, noise=0.1, symbols=8)(low=16, high=128)"
    assert source_of("echo:bayes:period()(high=128, low=16)").spec == source_of(both).spec == both
    for wrong, message in (
        ("stdlib(foo=3)", "echo has the options low and high, in bytes"),
        ("bayes:period(low=16, high=128)", r"may be those of bayes:period or of echo; write echo:bayes:period\(\)\("),
    ):
        with pytest.raises(UsageError, match=message):
            source_of(f"echo:{wrong}")
