"""Tokenizers of checkpoints: which bytes every token stands for, and that the ids are the checkpoint's own.

The ids are compared with those of the unchanged tokenizer.json in the package `tokenizers`. What opens a text, and what
is refused, is in test_snapshots_data.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import BEGIN, END, TEXT, trained
from hub_stub import REVISION, Hub, run_child
from tokenizer_files import ODD, OLDER, SPACED, TEMPLATE, added, byte_level, gemma, llama2, metaspace, qwen, written
from tokenizers import Tokenizer

from poscli.data import load_corpus, tokenizer_json
from poscli.data.tokenizers import tokenizer
from poscli.system.errors import PoscliError

MADE: dict[str, Callable[[], dict[str, Any]]] = {
    "byte-level": byte_level,
    "qwen": qwen,
    "llama2": llama2,
    "metaspace": metaspace,
    "gemma": gemma,
    "metaspace, older": lambda: metaspace(pre_tokenizer=OLDER | {"add_prefix_space": True}),
    "byte-level with a space": lambda: byte_level(pre_tokenizer=SPACED),
}
LEADS = {"llama2", "metaspace", "metaspace, older", "byte-level with a space"}  # with a space in front of every text


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("text", [TEXT, ODD, "x", "漢"], ids=["plain", "odd", "a letter", "not in the vocabulary"])
def test_ids_are_the_checkpoints_own_and_stand_for_the_text(kind: str, text: str, tmp_path: Path) -> None:
    """No special token is made of text, neither."""
    made = tokenizer(written(tmp_path / kind, MADE[kind]()))
    original = Tokenizer.from_str(json.dumps(MADE[kind]()))
    original.encode_special_tokens = True
    content, lead = text.encode(), b" " if kind in LEADS else b""
    ids = made.encode(content)
    assert ids.tolist() == original.encode(text, add_special_tokens=False).ids
    assert made.decode(ids) == made.decode([made.end, *ids]) == lead + content
    assert made.lead(content) == lead
    assert made.token_bytes[ids].sum() == len(lead + content)


@pytest.mark.parametrize("kind", [kind for kind in MADE if kind != "byte-level with a space"])  # it trims its offsets
def test_the_bytes_of_tokens_are_those_between_their_offsets(kind: str, tmp_path: Path) -> None:
    """In ASCII every token covers whole characters, so that its place in the text says how many bytes it is."""
    made = tokenizer(written(tmp_path / kind, MADE[kind]()))
    encoding = Tokenizer.from_str(json.dumps(MADE[kind]())).encode(TEXT, add_special_tokens=False)
    sizes = np.array([end - begin for begin, end in encoding.offsets])
    counted = made.token_bytes[made.encode(TEXT.encode())]
    assert np.array_equal(counted[1:], sizes[1:])
    assert counted[0] == sizes[0] + (kind in LEADS)


def test_without_a_fallback_to_bytes_a_token_that_looks_like_a_byte_is_text(tmp_path: Path) -> None:
    made = metaspace()
    made["model"]["byte_fallback"] = False
    number = made["model"]["vocab"]["<0x41>"]
    made["added_tokens"].append(added(number, "<0x41>"))
    coder, text = tokenizer(written(tmp_path, made)), TEXT.splitlines()[0].encode() + b" <0x41>"
    ids = coder.encode(text)
    assert number in ids
    assert coder.decode(ids) == b" " + text
    assert coder.token_bytes[ids].sum() == len(text) + 1


@pytest.mark.parametrize("description", [metaspace("first"), metaspace("always"), llama2()])
def test_a_text_that_begins_with_a_space_gets_another_only_where_the_original_gives_one(
    description: dict[str, Any], tmp_path: Path
) -> None:
    made, scheme = tokenizer(written(tmp_path, description)), description["pre_tokenizer"]
    assert (made.lead(b" a"), made.lead(b"a"), made.lead(b"")) == ((b"" if scheme else b" "), b" ", b"")
    original = Tokenizer.from_str(json.dumps(description))
    assert made.encode(b" a b").tolist() == original.encode(" a b", add_special_tokens=False).ids


def test_text_that_is_not_normalised_is_encoded_as_it_stands(tmp_path: Path) -> None:
    made, content = tokenizer(written(tmp_path, qwen())), "re\u0301sume\u0301 <think>".encode()
    ids = made.encode(content)
    assert made.decode(ids) == content
    assert ids[-1] == 300
    assert made.token_bytes[300] == len("<think>")


def test_a_number_that_no_vocabulary_has_is_refused_before_memory_is_taken_for_it(tmp_path: Path) -> None:
    made = qwen()
    made["model"]["vocab"]["far"] = 2**24 + 1
    with pytest.raises(PoscliError, match="gives a token the number 16777217, and at most 16777216 is taken"):
        tokenizer(written(tmp_path, made))


LONG = {
    "lines": TEXT * 20,
    "odd": (ODD + TEXT) * 12,
    "spaces": " \n  \n".join(TEXT.split()) * 10,
    "no places to cut": "ab" * 2000 + "\n \n" * 400,
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("name", LONG)
def test_a_long_document_is_encoded_in_pieces_as_it_is_in_one(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, content = tokenizer(written(tmp_path, MADE[kind]())), LONG[name].encode()
    whole = made.encode(content)
    monkeypatch.setattr(tokenizer_json, "PIECE", 300)
    assert np.array_equal(made.encode(content), whole)
    pieces = list(tokenizer_json.text_pieces(made._backend, LONG[name]))
    assert "".join(pieces) == LONG[name]
    assert len(pieces) > 10 or name == "no places to cut"


def test_what_decides_the_encoding_decides_the_fingerprint(tmp_path: Path) -> None:
    variants = [
        written(tmp_path / "a", byte_level()),
        written(tmp_path / "b", qwen()),
        written(tmp_path / "c", byte_level(post_processor=TEMPLATE)),
        written(tmp_path / "d", byte_level(), eos_token=BEGIN),
    ]
    prints = [tokenizer(each).fingerprint for each in variants]
    assert len(set(prints)) == len(prints)
    assert tokenizer(written(tmp_path / "again", byte_level())).fingerprint == prints[0]


def test_a_corpus_is_read_with_the_tokenizer_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for n in range(20):
        (tmp_path / "texts" / f"{n}.txt").write_text(f"{n} {TEXT}")
    corpus = load_corpus(f"text:{tmp_path / 'texts'}", tokenizer=written(tmp_path / "t", llama2()), cache=tmp_path)
    for split in (corpus.train, corpus.valid, corpus.tune):
        assert (split.tokens[split.starts[:-1]] == 0).all()
        assert corpus.tokenizer.token_bytes[split.tokens].sum() == split.bytes + split.documents  # a space each
    assert corpus.describe()["tokenizer"].startswith("hf:")


def test_files_of_an_older_form_are_converted(tmp_path: Path) -> None:
    """As facebook/opt-125m has them: vocab.json and merges.txt, and a setting for the token in front."""
    model = json.loads(trained())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"]), ""]))
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": BEGIN, "eos_token": END, "unk_token": END}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"add_bos_token": True}))
    made = tokenizer(f"hf:{tmp_path}")
    assert (made.end, made.opens) == (0, True)
    assert made.encode(TEXT.encode()).tolist() == Tokenizer.from_str(trained()).encode(TEXT).ids


def test_a_tokenizer_of_the_hub_is_that_of_its_folder(tmp_path: Path) -> None:
    code = "import sys\nfrom poscli.data.tokenizers import tokenizer\nfor spec in sys.argv[1:]:\n"
    code += "    made = tokenizer(spec)\n    print(made.fingerprint, made.name)\n"
    spec = written(tmp_path / "folder", llama2())
    files = {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    with Hub({"org/model": files | {"model.safetensors": b"large"}}) as hub:
        lines = run_child(code, ["hf:org/model", f"hf:org/model@{REVISION}"], tmp_path, HF_ENDPOINT=hub.url)
        assert not hub.requested("safetensors")
        assert run_child(code, ["hf:org/model"], tmp_path, HF_HUB_OFFLINE="1") == lines[:1]
    assert lines[0] == f"{tokenizer(spec).fingerprint} hf:org/model"
    assert lines[1].split()[0] == lines[0].split()[0]


def test_truncation_and_padding_of_the_file_are_left_out(tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    made = tokenizer(written(tmp_path, byte_level(truncation=cut)))
    assert made.decode(made.encode(TEXT.encode())) == TEXT.encode()
