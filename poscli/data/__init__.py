"""Corpora and tokenizers: texts as arrays of tokens.

A corpus is named by a spec such as `stdlib`, `text:PATH` or `hf:REPO`; each kind is one file in corpora/. A tokenizer
turns documents into tokens; each is one file in tokenizers/. `bpe:SIZE` is trained on the corpus that it encodes.

Read in this order: corpus.py (the result), source.py (what a kind provides), corpora/__init__.py (registry of kinds),
one kind such as corpora/text.py, tokenizers/__init__.py, build.py (which documents are held out, and documents into
arrays), disk_cache.py (where the arrays are kept). known_limit/ has texts of random processes whose best possible loss
can be computed.
"""

from __future__ import annotations

from pathlib import Path

from poscli.data import tokenizers
from poscli.data.corpora import CORPORA, Kind, kind_of, limit_of, loss_unit, source_of
from poscli.data.corpus import Corpus, Split, batch, check_trainable, check_tunable
from poscli.data.disk_cache import load_or_build
from poscli.data.tokenizers import TOKENIZERS, Tokenizer, TrainedTokenizer
from poscli.system.console import warn_once

__all__ = [
    "CORPORA",
    "TOKENIZERS",
    "Corpus",
    "Kind",
    "Split",
    "Tokenizer",
    "TrainedTokenizer",
    "batch",
    "check_trainable",
    "check_tunable",
    "kind_of",
    "limit_of",
    "load_corpus",
    "loss_unit",
    "source_of",
]


def load_corpus(spec: str, *, tokenizer: str | Tokenizer = "bytes", cache: Path | None = None) -> Corpus:
    """Load the corpus `spec` as tokens of a tokenizer, given by its spec or itself; the first use builds it.

    Built corpora are kept in the folder `cache`: by default $POSCLI_CACHE, or the user's cache folder. Raises
    UsageError if a spec cannot be understood, and DataError if the data is missing, unreadable, too short or cannot
    be downloaded.
    """
    coder = tokenizers.tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    corpus = load_or_build(source_of(spec), coder, cache)
    if isinstance(corpus.tokenizer, TrainedTokenizer) and (why := corpus.tokenizer.shortage):
        warn_once(f"{corpus.spec}: {why}")
    return corpus
