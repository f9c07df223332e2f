"""Windows of texts that a tokenizer opens with a token: each begins with it, and its targets stay as they are.

Token 0 is BEGIN, which opens texts in a checkpoint of the family llama and no text in one of the family gpt2.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import TEXT, write_tokenizer

from poscli.data import Split, load_corpus
from poscli.tasks.language import Language
from poscli.tasks.task import Text

DOCUMENTS = ([1, 2, 3, 4, 5, 6, 7], [8, 9, 1, 2])


def split() -> Split:
    """Documents that begin with token 0."""
    tokens = [token for document in DOCUMENTS for token in (0, *document)]
    return Split(np.array(tokens, np.uint16), np.array([0, 8, 13]))


def test_only_the_first_input_of_a_window_is_another() -> None:
    plain, opened = Text(split()), Text(split(), opening=0)
    spans = np.array([[0, 3], [0, 6], [1, 4]])
    assert plain.windows(spans, 3).tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [8, 9, 1, 2]]
    assert opened.windows(spans, 3).tolist() == [[0, 1, 2, 3], [0, 4, 5, 6], [0, 9, 1, 2]]
    assert opened.windows(spans[:2], 1).tolist() == [[0, 3], [0, 6]]
    for count in (1, 3):
        assert np.array_equal(opened.targets(spans, count), plain.targets(spans, count))
        assert np.array_equal(opened.targets(spans, count), opened.windows(spans, 3)[:, -count:])
    assert np.array_equal(opened.tiles(2), plain.tiles(2))
    assert split().tokens.tolist() == plain.split.tokens.tolist()  # the text itself stays as it is


def language(folder: Path, opens: bool) -> Language:
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    for n in range(12):
        (texts / f"{n}.txt").write_text(f"{n}: {TEXT}")
    write_tokenizer(folder / "tokenizer", opens)
    corpus = load_corpus(f"text:{texts}", tokenizer=f"hf:{folder / 'tokenizer'}", cache=folder / "cache")
    return Language(corpus)


@pytest.mark.parametrize("opens", [True, False])
def test_the_tokenizer_decides_how_windows_begin(opens: bool, tmp_path: Path) -> None:
    task = language(tmp_path, opens)
    text = task.text(16)
    windows = text.windows(text.tiles(16), 16)
    begin = np.flatnonzero(text.tiles(16)[:, 1] == 16)  # those where a document begins
    assert len(windows) > len(begin) > 0
    assert (windows[begin, 0] == task.data.tokenizer.end).all()
    inside = np.delete(windows[:, 0], begin)
    assert (inside == 0).all() if opens else not (inside == 0).any()


@pytest.mark.parametrize("opens", [True, False])
def test_a_model_is_trained_on_windows_that_begin_alike(opens: bool, tmp_path: Path) -> None:
    """With a memory, windows that continue those of the step before do not begin anew."""
    task = language(tmp_path, opens)
    first = [task.batch(size=8, length=16, seed=0, step=step, segments=2).tokens for step in (0, 1)]
    plain = task.batch(size=8, length=16, seed=0, step=3).tokens
    assert (plain[:, 0] == 0).all() == opens
    assert (first[0][:, 0] == 0).all() == opens
    assert np.array_equal(first[1][:, 0], first[0][:, -1])
    assert not (plain[:, 1:] == 0).all(axis=1).any()
