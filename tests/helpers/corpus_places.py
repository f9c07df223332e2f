"""A folder in which tests read corpora, and what they hear of it: notes, warnings, contents and errors, as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lines import heard, told
from numpy.typing import NDArray

from poscli.data import Corpus, Split, load_corpus
from poscli.data.known_limit import Draw, KnownLimit
from poscli.data.tokenizers.bytes import END

# What differs between folders, libraries and machines.
LABEL = re.compile(r"\b(text|jsonl|parquet)-\S*?-[0-9a-f]{16}\b")
REASON = re.compile(
    r"(is not JSON|damaged|cannot be read|cut.png|JSONDecodeError:) (\(.*?\)(?=[;,])|Expecting.*?\)(?=\)))"
)


def write(folder: Path, contents: dict[str, str | bytes]) -> Path:
    """A folder of files."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def written(source: KnownLimit, count: int, name: str = "test") -> NDArray[np.int64]:
    """Some documents of a source as tokens, END first: `[count, tokens]`."""
    return np.array([[END, *source.document(Draw(name, number))] for number in range(count)])


class Place:
    """A folder for a test, in which texts are read from `in` and built corpora kept in `cache`."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.cache = folder / "cache"

    def plain(self, text: str) -> str:
        """A text without the folder's own name, and without the reasons that other packages give."""
        return REASON.sub(r"\1 (WHY)", LABEL.sub(r"\1-LABEL-HASH", text.replace(str(self.folder), "HERE")))

    def heard(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
        """What a call returns or refuses with, after its notes and warnings."""
        return self.plain(heard(self.capsys, call, *arguments, **options))

    def loaded(self, spec: str, tokenizer: str = "bytes") -> str:
        """All that a corpus holds, after the notes of loading it."""
        return self.heard(lambda: Told(load_corpus(spec, tokenizer=tokenizer, cache=self.cache)))


class Told:
    """A corpus as text."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __str__(self) -> str:
        lines = [told(self.corpus.describe())]
        splits = {"train": self.corpus.train, "valid": self.corpus.valid, "tune": self.corpus.tune}
        for name, split in splits.items():
            lines.append(f"{name}: {split.tokens.dtype} {split.starts.dtype} {told(split.starts)} {split.bytes} bytes")
            lines += [f"  {document}" for document in self._documents(split)]
        return "\n".join(lines)

    def _documents(self, split: Split) -> Iterator[str]:
        for begin, end in zip(split.starts[:-1], split.starts[1:], strict=True):
            tokens = split.tokens[begin:end]
            shown = self.corpus.tokenizer.decode(tokens)
            yield f"{tokens[0]} {len(tokens)} {shown[:16]!r}" + (f"...{shown[-9:]!r}" if len(shown) > 25 else "")
