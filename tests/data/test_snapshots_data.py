"""Corpora, tokenizers, images and caches: what every kind reads, keeps and refuses, whole."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from checkpoints import BEGIN, END, TEXT
from corpus_places import Place, Told, write
from hub_stub import parquet
from lines import outcome, sections, table, told
from tokenizer_files import (
    ODD,
    OLDER,
    SPACED,
    TEMPLATE,
    added,
    byte_level,
    gemma,
    llama2,
    metaspace,
    qwen,
    two_in_front,
    word_piece,
    written,
)

from poscli.data import Corpus, Split, batch, check_trainable, filesets, kind_of, limit_of, loss_unit
from poscli.data.build import Parts, StoredDocument, cut_points, fingerprint, hold_out, split_documents
from poscli.data.corpora import CORPORA, check_characters, describe_corpora, source_of, stdlib
from poscli.data.corpora.hub import articles
from poscli.data.disk_cache import load_or_build
from poscli.data.filesets import find_files, read_file
from poscli.data.source import Document, Part, Reading, Source
from poscli.data.tokenizer_json import byte_alphabet, holds_tokenizer, token_text
from poscli.data.tokenizers import TOKENIZERS, Tokenizer, TrainedTokenizer, tokenizer
from poscli.data.tokenizers.bytes import Bytes
from poscli.system.errors import DataError

Snapshot = Callable[..., None]
HASH = re.compile(r"\b[0-9a-f]{16,64}\b")


# ---- splitting and sampling


def test_splits(snapshot: Snapshot) -> None:
    sizes = [[10, 10], [1, 9], [9, 1], [20, 80], [21, 79], [5] * 20, [500, 60, 300, 60, 80], [19, 1, 180]]
    sizes += [[30, 30, 30, 11]]
    sizes += [list(range(1, 15)), [100, 10, 10, 10, 10], [0, 0, 5], [3, 2, 2, 2, 1], [10, 10, 1, 79]]
    contents = [b"", b"a", b"one line\n" * 30, b"x" * 99, b"\n" * 10, "x€".encode() * 31, b"a" * 89 + b"\n" + b"b" * 10]
    contents += [b"a" * 84 + b"\n" + b"b" * 15, b"a" * 85 + b"\n" + b"b" * 14, b"a" * 90 + b"\n" + b"b" * 9]
    documents = [StoredDocument(bytes([7 * n % 10]) * 2, n, 10 + n) for n in range(10)]
    parts: list[Part | None] = ["train", "valid", None, "valid"]
    named = [StoredDocument(bytes([7 * n % 10]), n, 5, part) for n, part in enumerate(parts)]
    rows = {
        "held out": "\n".join(f"{each}: {hold_out(each)}" for each in sizes),
        "cut": "\n".join(f"{each[:12]!r} {len(each)}: {cut_points(each)}" for each in contents),
        "split": offsets(split_documents(documents)),
        "split as named": offsets(split_documents(named)),
        "fingerprints": told([fingerprint(halves(documents, a, b), name) for a, b, name in BETWEEN]),
        "articles": "\n".join(repr(each) for each in articles(WIKI)),
    }
    snapshot(sections(rows))


def offsets(parts: Parts) -> str:
    return "\n".join(f"{name}: {[document.offset for document in part]}" for name, part in parts.items())


def halves(documents: list[StoredDocument], a: int, b: int) -> Parts:
    return {"train": documents[:a], "valid": documents[a:b]}


BETWEEN = ((3, 5, ""), (4, 5, ""), (3, 5, "x"), (3, 6, "x"))
WIKI = [
    *(b"", b"\n", b" = A = \n", b" = B = \n", b"", b" text \n", b"", b" = = part = = \n"),
    *(b"", b" = C = \n", b"", b" = D =\n", b"  ", b" = E = \n"),
]
COPIES = [
    *(Document(b"first", "train"), Document(b"held", "valid"), Document(b"first", "train"), Document(b"held", "train")),
    *(Document(b"late", "train"), Document(b"", "valid"), Document(b"late", "valid"), Document(b"late", "train")),
    *(Document(b"unsaid"), Document(b"unsaid", "valid")),
]


def test_documents_that_say_where_they_belong(place: Place, snapshot: Snapshot) -> None:
    """Copies count once, and are held out if one of them is."""
    lines = []
    for first, end in ((0, 4), (0, 8), (3, 10), (0, 1), (5, 6)):
        source = Source("given:x", first, lambda a=first, b=end: Reading(iter(COPIES[a:b]), {}))  # type: ignore[misc]
        said = place.heard(lambda given=source: Told(load_or_build(given, Bytes(), place.cache)))
        lines.append(f"{first} to {end}: {said}")
        shutil.rmtree(place.cache)
    snapshot(HASH.sub("HASH", "\n".join(lines)) + "\n")


def test_batches(snapshot: Snapshot, place: Place) -> None:
    """Token n stands at place n, so that a window says where it begins."""
    split = Split(np.arange(101, dtype=np.uint16), np.array([0, 101]), 60)
    names = ("length", "seed", "step", "segments")
    asked = [(5, 0, 0, 1), (5, 0, 1, 1), (5, 1, 0, 1), (100, 3, 2, 1), (10, 2, 7, 4), (10, 2, 8, 4), (10, 2, 11, 4)]
    drawn = []
    for values in (*asked, (50, 2, 1, 2)):
        options = dict(zip(names, values, strict=True))
        drawn.append(options | {"first and last": batch(split, size=4, **options)[:, [0, -1]]})
    short = Split(np.arange(9, dtype=np.uint16), np.array([0, 9]), 9_999)
    large = Split(split.tokens, split.starts, 10_000)
    corpora = {
        "short to train": Corpus("text:a", "f", Bytes(), short, split, split),
        "short to hold out": Corpus("text:b", "f", Bytes(), split, short, split),
        "empty": Corpus("text:c", "f", Bytes(), Split(np.zeros(1, np.uint16), np.array([0, 1])), short, short),
        "enough": Corpus("text:d", "f", Bytes(), split, large, split, {"python": "3"}),
    }
    lengths = (1, 8, 9, 100)
    checked = {
        f"{name} {n}": place.heard(check_trainable, corpus, n) for name, corpus in corpora.items() for n in lengths
    }
    said = "\n".join(f"{name}: {text}" for name, text in checked.items())
    snapshot(sections({"batches": table(drawn), "checked": said, "says": told(corpora["enough"].describe())}))


# ---- corpora of files

BOOKS: dict[str, str | bytes] = {
    **{f"books/{n}.txt": f"book {n} ".ljust(30 + 3 * n, ".") + "\n" for n in range(9)},
    "books/part/deep.md": "deeper\n" * 4,
    "books/part/.hidden.txt": "hidden\n",
    "books/.git/config": "hidden, too\n",
    "books/packed.txt.gz": gzip.compress(b"packed\n" * 3, mtime=0),
    "books/frames.zst": zstandard.compress(b"two ") + zstandard.compress(b"frames\n"),
    "books/copy.txt": "deeper\n" * 4,
    "one/only.txt": "".join(f"line {n}\n" for n in range(40)),
    "rows/a.jsonl": '{"text": "first"}\n\n{"text": "", "b": "1"}\n{"text": null, "b": "2"}\n{"text": "caf\\u00e9"}\n',
    "rows/b.jsonl.gz": gzip.compress(b'{"text": "third", "body": "B3"}\n', mtime=0),
    "rows/c.jsonl.zst": zstandard.compress(b'{"text": "fourth"}'),
    "rows/d.txt": "not a row\n",
    "body.jsonl": "".join(f'{{"body": "{c * 20}", "n": {n}}}\n' for n, c in enumerate("abcdef")),
    "table/x.parquet": parquet(["first", None, "", "second\n", "third"]),
    "table/y.parquet": parquet(["fourth", "fifth" * 5]),
    "named.parquet": parquet(["a" * 9, "b" * 9, "c" * 9], column="content"),
    "many/a.txt": "copy" * 20,
    **{f"many/{n}.txt": "copy" * 20 for n in range(4)},
    "many/b.txt": "own\n",
    "many/c.txt": "another\n",
}
SPECS = """\
text:in/books text:in/**/*.md text:in/one/only.txt text:~/books/?.txt text:in/many
jsonl:in/rows jsonl:in/body*#body parquet:in/table parquet:in/named.parquet#content
"""


@pytest.mark.parametrize("spec", SPECS.split())
def test_corpora_of_files(spec: str, place: Place, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a source says of itself, what is built from it, and what is found in the cache the second time."""
    write(place.folder / "in", BOOKS)
    monkeypatch.setenv("HOME", str(place.folder / "in"))
    source = source_of(spec)
    plain = (".txt", ".md", ".jsonl")  # the sizes of other files depend on the version of what packed them
    stamp = [[path, size if Path(path).suffix in plain else "?"] for path, size, _ in source.stamp]
    built = place.loaded(spec)
    parts = {
        "source": told([source.spec, stamp, source.read().origin]),
        "read": "\n".join(f"{each.part} {each.content[:9]!r}" for each in source_of(spec).read().documents),
        "built": built,
        "the second time": "the same" if place.loaded(spec) == built[built.index("{") :] else "another",
        "cache": kept(place),
    }
    snapshot(place.plain(sections(parts)), "corpus-" + re.sub(r"\W+", "-", spec).strip("-"))


def kept(place: Place) -> str:
    """The names of the files of the cache, and the index without what depends on paths and times."""
    files = sorted(path for path in place.cache.rglob("*") if path.is_file())
    index = next(json.loads(path.read_text()) for path in files if path.name == "index.json")
    shown = index | {"key": "", "checksum": "", "files": {name: size for name, (size, _) in index["files"].items()}}
    return f"{told([path.name for path in files])}\n{told(shown)}"


BAD: dict[str, str | bytes] = {
    "empty/e.txt": "",
    "binary/b.bin": b"\x7fELF\0\1",
    "latin/l.txt": "café\n".encode("latin-1"),
    "tiny/t.txt": "x",
    "broken.jsonl": '{"text": "fine"}\n{"text": \n',
    "list.jsonl": "[1]\n",
    "rows.jsonl": '{"id": 1, "text": "a"}\n',
    "surrogate.jsonl": '{"text": "ab\\ud800"}\n',
    "nulls.jsonl": '{"text": null}\n{"text": ""}\n',
    "fake.parquet": "not parquet",
    "rows.parquet": parquet(["a", "b"], column="body"),
    "deep.jsonl": "[" * 100_000,
    "cut.txt.gz": gzip.compress(b"text\n" * 20, mtime=0)[:-9],
    "cut.zst": zstandard.compress(b"text\n" * 20)[:-3],
    "plain.zst": "no zstd",
    "plain.jsonl.gz": "no gzip",
    "large.txt.gz": gzip.compress(b"x" * 200, mtime=0),
    "large.jsonl": '{"text": "' + "x" * 200 + '"}\n',
    "numbers.jsonl": '{"text": 1.5}\n',
    "none.jsonl": "null\n",
    "twice/a.txt": "the same",
    "twice/b.txt": "the same",
    "few/a.txt": "ab",
    "latin1.jsonl": b'{"text": "caf\xe9"}\n',
    "control\x1b.txt": "",
}
REFUSED = """\
text:in/empty text:in/binary text:in/latin text:in/tiny text:in/few text:in/twice text:in/absent text:in/*.nothing
text:in/cut.txt.gz text:in/cut.zst text:in/plain.zst text:in/large.txt.gz text:in/control* text:~nobody-here/x
jsonl:in/broken.jsonl jsonl:in/list.jsonl jsonl:in/rows.jsonl#texts jsonl:in/rows.jsonl#id jsonl:in/latin
jsonl:in/surrogate.jsonl jsonl:in/nulls.jsonl jsonl:in/deep.jsonl jsonl:in/plain.jsonl.gz jsonl:in/large.jsonl
jsonl:in/numbers.jsonl jsonl:in/none.jsonl jsonl:in/latin1.jsonl jsonl:in/rows.jsonl# jsonl:in/absent#id
parquet:in/fake.parquet parquet:in/rows.parquet parquet:in/rows.parquet#Body parquet:in/latin
txt:book wikitext nonsense text: text stdlib:3.11 images images:in in/latin bayes bayes: stdli
"""
ODD_NAMES = ["text:" + "x" * 300, "x" * 120, "x" * 121, "y" * 4097, "text:a\u2028b", "text:a\nb", "text:in/\0"]


def test_what_is_refused(place: Place, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place.folder / "in", BAD)
    lines = []
    for spec in [*REFUSED.split(), *ODD_NAMES]:
        largest = 150 if "large" in spec else 2**20
        monkeypatch.setattr(filesets, "LARGEST_DOCUMENT_BYTES", largest)
        said = place.loaded(spec).splitlines()
        shown = spec if len(spec) < 60 else f"{spec[:9]}... of {len(spec)}"
        lines += [f"{shown!r}", *(f"  {line}" for line in said if "said: preparing" not in line)]
    kept_folders = sorted(path.name for path in place.cache.iterdir() if path.is_dir())
    snapshot(place.plain("\n".join([*lines, f"kept: {kept_folders}", ""])))


def test_the_kinds_of_corpora(place: Place, snapshot: Snapshot) -> None:
    specs = ("stdlib", "images", "images?levels=4", "text:a?b", "bayes:recall", "nonsense:x", "jsonl")
    library = write(place.folder / "lib", {name: "x" * size for name, size in LIBRARY.items()})
    kinds = {name: CORPORA.get(name) for name in CORPORA.names()}
    tokenizers = {name: TOKENIZERS.get(name) for name in TOKENIZERS.names()}
    several = (["images", "images?levels=4"], ["stdlib"], ["images", "stdlib"], [], ["nonsense"], ["bayes:recall"])
    absent = place.folder / "none"
    parts = {
        "listed": table(describe_corpora()),
        "explained": told({name: [kind.unit, kind.explained, kind.examples] for name, kind in kinds.items()}),
        "kinds": told({spec: kind.grammar if (kind := kind_of(spec)) else None for spec in specs}),
        "units": told([loss_unit(each) for each in several]),
        "optima": told({spec: limit_of(spec) is None for spec in specs}),
        "characters": told(
            [outcome(check_characters, each) for each in ("text:é\u00a0x", "a\tb", "\udcff", "p\u2029")]
        ),
        "modules": told([path.relative_to(library).as_posix() for path in stdlib.modules(library)]),
        "library": told([stdlib.available(library), stdlib.available(absent), outcome(stdlib.source, "", absent)]),
        "tokenizers": told({name: [made.summary, made.argument] for name, made in tokenizers.items()}),
    }
    snapshot(place.plain(sections(parts)))


LARGE = stdlib.SMALLEST_MODULE_BYTES
MODULES = """\
a.py b.py json/decoder.py html/parser.py x/test/t.py tests/t.py idlelib/i.py site-packages/p.py encodings/e.py locale.py
html/entities.py _sysconfigdata_x.py pydoc_data/p.py msilib/m.py x/locale.py stringprep.py z.pyc idle_test/i.py
"""
LIBRARY = dict.fromkeys(MODULES.split(), LARGE) | {"small.py": LARGE - 1}


def test_files(place: Place, snapshot: Snapshot) -> None:
    write(place.folder / "in", BOOKS)
    cases = [("text", "in/books", ("",)), ("k", "in", (".gz", ".zst")), ("k", "in/*.jsonl", (".x",))]
    cases += [("k", "in/one", (".x", ".y"))]
    cases += [("k", "in/one/only.txt", (".x",)), ("k", "in/b*s", ("",)), ("k", "nowhere", ("",))]
    rows = "\n".join(f"{case}: {place.heard(find_files, *case)}" for case in cases)
    files = ("books/packed.txt.gz", "books/frames.zst", "books/copy.txt", "books/absent.gz")
    contents = "\n".join(f"{name}: {place.heard(read_file, place.folder / 'in' / name)}" for name in files)
    snapshot(sections({"found": rows, "read": contents}))


# ---- the cache

DAMAGES: dict[str, Callable[[Path], object]] = {
    "an array is missing": lambda folder: (folder / "valid.starts.npy").unlink(),
    "an array is longer": lambda folder: longer(folder / "train.tokens.npy"),
    "an array is another": lambda folder: (folder / "train.tokens.npy").write_bytes(
        b"\0" * (folder / "train.tokens.npy").stat().st_size
    ),
    "the index is missing": lambda folder: (folder / "index.json").unlink(),
    "the index is no JSON": lambda folder: (folder / "index.json").write_text("{"),
    "the index has no checksum": lambda folder: edit(folder, checksum=None),
    "the index is another": lambda folder: edit(folder, spec="text:other"),
    "the index is of another folder": lambda folder: folder.rename(folder.with_name("text-other-0")),
    "the folder is a file": lambda folder: replaced(folder),
    "a process was killed": lambda folder: folder.rename(folder.with_name(f".{folder.name}.partial")),
}


def replaced(folder: Path) -> None:
    """A file in place of a folder."""
    shutil.rmtree(folder)
    folder.write_text("")


def longer(path: Path) -> None:
    """Append a byte."""
    path.write_bytes(path.read_bytes() + b"1")


def edit(folder: Path, **changes: Any) -> None:
    """Change entries of the index; None takes one out."""
    index = json.loads((folder / "index.json").read_text()) | changes
    (folder / "index.json").write_text(json.dumps({name: value for name, value in index.items() if value is not None}))


def test_damaged_caches_are_built_again(place: Place, snapshot: Snapshot) -> None:
    write(place.folder / "in", {f"{n}.txt": f"book {n} ".ljust(99, ".") for n in range(4)})
    lines = []
    for name, damage in DAMAGES.items():
        place.loaded("text:in")
        (folder,) = (path for path in place.cache.iterdir() if not path.name.startswith("."))
        damage(folder)
        first = place.loaded("text:in")
        lines.append(f"{name}:\n{first[: first.index('{')]}  {place.loaded('text:in')[:9]}")
        shutil.rmtree(place.cache)
    place.loaded("text:in")
    (folder,) = (path for path in place.cache.iterdir() if not path.name.startswith("."))
    place.loaded("text:in/[01].txt")
    (other,) = (path for path in place.cache.iterdir() if not path.name.startswith(".") and path != folder)
    shutil.rmtree(other)
    shutil.copytree(folder, other)
    lines.append(f"a copy of another folder:\n{place.loaded('text:in/[01].txt')}")
    shutil.rmtree(place.cache)
    place.cache.write_text("")
    lines.append(f"the cache is a file:\n{place.loaded('text:in')}")
    snapshot("\n".join(lines) + "\n")


# ---- tokenizers

TEXTS = [
    b"",
    b" a ship",
    TEXT[:60].encode(),
    ODD.encode(),
    b"\n\n\tx  y",
    "a\u0301 \u2581b".encode(),
    b"caf\xe9 \xff",
    b"<|endoftext|> 12345",
]


def test_tokenizers(place: Place, snapshot: Snapshot) -> None:
    parts = {}
    for name, description, settings in CHECKPOINTS:
        made = tokenizer(written(place.folder / name, description, **settings))
        parts[name] = place.plain(properties(made, TEXTS[:3] if "opened" in name else TEXTS))
    for spec in ("bpe:256", "bpe:262", "bpe:400"):
        blank = tokenizer(spec)
        assert isinstance(blank, TrainedTokenizer)
        learned = blank.trained(blank.train([b"the cat and the hat\n" * 3, b"the \xff\xfe bat", "é é é the".encode()]))
        kept = json.loads(learned.content)
        model = kept.pop("model")
        numbers = [model["vocab"][token] for token in sorted(model["vocab"])]
        pieces = [learned.decode([n]) for n in range(256, learned.end)]
        own = {"untrained": blank.fingerprint, "shortage": learned.shortage, "merges": model.pop("merges")}
        own |= {"pieces": pieces, "numbers": numbers[:9], "kept": kept, "type": model["type"]}
        parts[spec] = f"{properties(learned)}\n{told(own)}"
    parts["bytes"] = properties(Bytes())
    parts["alphabet"] = "".join(sorted(byte_alphabet(), key=byte_alphabet().__getitem__))
    snapshot(sections(parts))


ACCENT = added(300, "\u00e9\u0120")  # of characters that stand for other bytes in other tokens
CHECKPOINTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("byte-level", byte_level(), {}),
    ("byte-level, opened", byte_level(post_processor=TEMPLATE), {"bos_token": BEGIN}),
    ("byte-level, never opened", byte_level(post_processor=TEMPLATE), {"add_bos_token": False}),
    ("byte-level, opened by a setting", byte_level(), {"add_bos_token": True, "bos_token": {"content": BEGIN}}),
    ("byte-level, lead", byte_level(pre_tokenizer=SPACED), {}),
    ("qwen", qwen(), {}),
    ("llama2", llama2(), {}),
    ("metaspace", metaspace(), {}),
    ("metaspace, always", metaspace("always"), {}),
    ("metaspace, never", metaspace("never"), {}),
    ("metaspace, older", metaspace(pre_tokenizer=OLDER | {"add_prefix_space": True}), {}),
    ("metaspace, older, never", metaspace(pre_tokenizer=OLDER | {"add_prefix_space": False}), {}),
    # of characters that stand for other bytes in other tokens
    (
        "added",
        byte_level(added_tokens=[*byte_level()["added_tokens"], ACCENT]),
        {"eos_token": {"content": BEGIN}},
    ),
    ("gemma", gemma(), {}),
]


def properties(made: Tokenizer, contents: Sequence[bytes] = ()) -> str:
    """What a tokenizer says of itself and makes of texts: its first tokens, their number and their sum."""
    said = {"vocab": made.vocab, "end": made.end, "opens": made.opens, "bytes of tokens": made.token_bytes.sum()}
    lines = [told(said | {"tokens by bytes": np.bincount(made.token_bytes)}), HASH.sub("HASH", made.fingerprint)]
    for content in contents or TEXTS:
        try:
            tokens = made.encode(content)
            whole = made.decode(tokens) == made.lead(content) + content
            found = f"{told(tokens[:9])} {len(tokens)} {tokens.sum()} {'' if whole else 'LOST'}"
        except DataError as error:
            found = str(error)
        lines.append(f"{content[:9]!r} {made.lead(content)!r}: {found}")
    return "\n".join(lines)


STATED = [{}, {"eos_token": BEGIN}, {"bos_token": BEGIN, "add_bos_token": True}, {"fails": True}]


def converted(folder: Path, stated: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """The tokenizer of a folder of an older form, which a stand-in for transformers converts."""

    def from_pretrained(found: Path, **options: bool) -> Any:
        if stated.get("fails"):
            raise RuntimeError("no\nvocabulary")
        backend = SimpleNamespace(to_str=lambda: json.dumps(byte_level()))
        return SimpleNamespace(backend_tokenizer=backend, bos_token=None, eos_token=END)

    module: Any = ModuleType("transformers")
    module.__version__, module.__spec__ = "0", ModuleSpec("transformers", None)
    module.AutoTokenizer = SimpleNamespace(from_pretrained=from_pretrained)
    monkeypatch.setitem(sys.modules, "transformers", module)
    folder.mkdir()
    (folder / "vocab.txt").write_text("a")
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    made = tokenizer(f"hf:{folder}")
    return told([made.end, made.opens, made.vocab])


def test_tokenizers_that_are_refused(place: Place, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    lossy = {"lower": byte_level(normalizer={"type": "Lowercase"}), "two": two_in_front(), "pieces": word_piece()}
    made = {name: written(place.folder / name, each) for name, each in lossy.items()}
    made["no end"] = written(place.folder / "end", byte_level(), eos_token="nowhere")
    made["no model"] = written(place.folder / "model", byte_level(model={"type": "None"}))
    made["no files"] = f"hf:{place.folder}/cache"
    (place.folder / "cache").mkdir()
    (place.folder / "broken").mkdir()
    (place.folder / "broken/tokenizer.json").write_text("{")
    specs = [
        "byte",
        "bytes:",
        "bytes:1",
        "bpe",
        "bpe:",
        "bpe:255",
        "bpe:262145",
        "bpe:4k",
        "bpe:0300",
        "bpe:4_096",
        "bpe:٤٠٩٦",
    ]
    specs += ["hf", "hf:no:such", "hf:a/b/c", "hf:/no/such", "hf:~nobody-here/x", "Bpe:300", "bep:300"]
    specs += ["no.such:Class", "hf:broken", "poscli.data:Split"]
    lines = [f"{spec}: {place.heard(tokenizer, spec)}" for spec in specs]
    lines += [
        f"{name}: {place.heard(lambda spec=spec: tokenizer(spec).encode(b'A Ship'))}" for name, spec in made.items()
    ]
    ends = [{"eos_token_id": 7}, {"eos_token_id": [400, 8]}, {"eos_token_id": 400}]
    for n, config in enumerate(ends):
        folder = place.folder / f"config{n}"
        written(folder, byte_level())
        (folder / "tokenizer_config.json").unlink()
        (folder / "special_tokens_map.json").write_text('{"bos_token": "<|begin|>"}')
        (folder / "config.json").write_text(json.dumps(config))
        lines.append(f"{config}: {place.heard(lambda folder=folder: tokenizer(f'hf:{folder}').end)}")
    for n, each in enumerate(STATED):
        lines.append(f"{each}: {place.heard(converted, place.folder / f'vocabulary{n}', each, monkeypatch)}")
    vocabularies = [["tokenizer.json"], ["vocab.json"], ["vocab.json", "merges.txt", "x"], ["spiece.model"]]
    vocabularies += [["tokenizer_config.json"], ["vocab.txt"], []]
    lines += [told([each, holds_tokenizer(each)]) for each in vocabularies]
    lines.append(told([token_text(each) for each in ("a", {"content": "b"}, {"content": 1}, None, 3, {})]))
    snapshot("\n".join(lines) + "\n")
