"""Tokenizers of checkpoints: which bytes every token stands for, and that the ids are the checkpoint's own.

The tokenizers are trained here on a few lines, in the forms that GPT-2, Qwen, Llama 2 and Gemma publish. The ids are
compared with those of the unchanged tokenizer.json in the package `tokenizers`.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import BEGIN, END, TEXT, trained
from hub_stub import REVISION, Hub, run_child
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from poscli.data import load_corpus, tokenizer_json
from poscli.data.tokenizers import tokenizer
from poscli.system.errors import CorruptError, DataError, PoscliError, UsageError

ODD = (
    "Résumé 漢字 🙂\n\n  two  spaces\tand a tab \n</s><|begin|> <0x41> <|end|>\n"  # nothing that a tokenizer may change
)
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": BEGIN, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {BEGIN: {"id": BEGIN, "ids": [0], "tokens": [BEGIN]}},
}


def byte_level(**changes: Any) -> dict[str, Any]:
    """As GPT-2 and Llama 3."""
    return json.loads(trained()) | changes


@functools.cache
def _pieces() -> str:
    """A BPE over characters with `▁` for the space and bytes for what is missing, and its merges, as JSON."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    special = [BEGIN, END, "<unk>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    made.train_from_iterator(
        TEXT.splitlines(), trainers.BpeTrainer(vocab_size=400, special_tokens=special + fallback, show_progress=False)
    )
    description = json.loads(made.to_str())
    description["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    description["added_tokens"] = [each for each in description["added_tokens"] if each["content"] in special]
    return json.dumps(description)


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
DECODER = {"type": "Sequence", "decoders": [BACK, {"type": "ByteFallback"}, {"type": "Fuse"}]}


def llama2(**changes: Any) -> dict[str, Any]:
    """A space in front of every text, by a normalizer."""
    steps = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE]}
    own = {"normalizer": steps, "pre_tokenizer": None, "decoder": DECODER, "post_processor": TEMPLATE}
    return json.loads(_pieces()) | own | changes


def metaspace(scheme: str = "first", **changes: Any) -> dict[str, Any]:
    """A space in front of every text that does not begin with one."""
    step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    return llama2(**{"normalizer": None, "pre_tokenizer": step} | changes)


def gemma() -> dict[str, Any]:
    """No space in front; line breaks and runs of spaces are tokens that are matched in the text."""
    made = llama2(normalizer=REPLACE)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    first = max(made["model"]["vocab"].values()) + 1
    made["added_tokens"] += [{"id": first + n, "content": each} | flags for n, each in enumerate(("\n\n", "\n", "▁▁"))]
    made["model"]["vocab"] |= {each["content"]: each["id"] for each in made["added_tokens"][-3:]}
    return made


def qwen() -> dict[str, Any]:
    """NFC, and a token for thoughts, which is not special."""
    made = byte_level(normalizer={"type": "NFC"})
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    made["added_tokens"].append({"id": 300, "content": "<think>"} | flags)
    return made


MADE: dict[str, Callable[[], dict[str, Any]]] = {
    "byte-level": byte_level,
    "qwen": qwen,
    "llama2": llama2,
    "metaspace": metaspace,
    "gemma": gemma,
}
LEADS = {"llama2", "metaspace"}


def written(folder: Path, description: dict[str, Any], **settings: Any) -> str:
    """The spec of a folder with this tokenizer."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END} | settings))
    return f"hf:{folder}"


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("text", [TEXT, ODD, "x", "漢"], ids=["plain", "odd", "a letter", "not in the vocabulary"])
def test_ids_are_the_checkpoints_own_and_stand_for_the_text(kind: str, text: str, tmp_path: Path) -> None:
    made = tokenizer(written(tmp_path / kind, MADE[kind]()))
    original = Tokenizer.from_str(json.dumps(MADE[kind]()))
    original.encode_special_tokens = True
    content, lead = text.encode(), b" " if kind in LEADS else b""
    ids = made.encode(content)
    assert ids.tolist() == original.encode(text, add_special_tokens=False).ids
    assert made.decode(ids) == lead + content
    assert made.lead(content) == lead
    assert made.token_bytes[ids].sum() == len(lead + content)


@pytest.mark.parametrize("kind", MADE)
def test_the_bytes_of_tokens_are_those_between_their_offsets(kind: str, tmp_path: Path) -> None:
    """In ASCII every token covers whole characters, so that its place in the text says how many bytes it is."""
    made = tokenizer(written(tmp_path / kind, MADE[kind]()))
    original = Tokenizer.from_str(json.dumps(MADE[kind]()))
    encoding = original.encode(TEXT, add_special_tokens=False)
    sizes = np.array([end - begin for begin, end in encoding.offsets])
    counted = made.token_bytes[made.encode(TEXT.encode())]
    assert np.array_equal(counted[1:], sizes[1:])
    assert counted[0] == sizes[0] + (kind in LEADS)


def test_without_a_fallback_to_bytes_a_token_that_looks_like_a_byte_is_text(tmp_path: Path) -> None:
    made = metaspace()
    made["model"]["byte_fallback"] = False
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    made["added_tokens"].append({"id": made["model"]["vocab"]["<0x41>"], "content": "<0x41>"} | flags)
    coder, text = tokenizer(written(tmp_path, made)), TEXT.splitlines()[0].encode() + b" <0x41>"
    ids = coder.encode(text)
    assert made["model"]["vocab"]["<0x41>"] in ids
    assert coder.decode(ids) == b" " + text
    assert coder.token_bytes[ids].sum() == len(text) + 1


@pytest.mark.parametrize("kind", MADE)
def test_no_special_token_is_made_of_text(kind: str, tmp_path: Path) -> None:
    made = tokenizer(written(tmp_path / kind, MADE[kind]()))
    ids = made.encode(f"{BEGIN}a{END}".encode())
    assert not {0, 1} & set(ids.tolist())
    assert made.decode([made.end, *ids]).strip() == f"{BEGIN}a{END}".encode()


def test_bytes_that_no_token_covers_are_single_bytes(tmp_path: Path) -> None:
    made = tokenizer(written(tmp_path, llama2()))
    ids = made.encode("x🙂".encode())
    assert made.token_bytes[ids[-4:]].tolist() == [1, 1, 1, 1]
    literal = made.encode(b"<0x41>")  # text that looks like such a token
    assert made.decode(literal) == b" <0x41>"


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_a_text_that_begins_with_a_space_needs_no_other(scheme: str, tmp_path: Path) -> None:
    made, always = tokenizer(written(tmp_path / "a", metaspace(scheme))), tokenizer(written(tmp_path / "b", llama2()))
    assert (made.lead(b" a"), made.lead(b"a"), made.lead(b"")) == (b"", b" ", b"")
    assert (always.lead(b" a"), always.lead(b"a"), always.lead(b"")) == (b" ", b" ", b"")
    for each, description in ((made, metaspace(scheme)), (always, llama2())):
        original = Tokenizer.from_str(json.dumps(description)).encode(" a b", add_special_tokens=False)
        assert each.encode(b" a b").tolist() == original.ids


def test_an_older_form_of_metaspace_and_byte_level_lead_too(tmp_path: Path) -> None:
    older = metaspace(pre_tokenizer={"type": "Metaspace", "replacement": "▁", "add_prefix_space": True})
    spaced = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    for name, description in (("old", older), ("bytes", byte_level(pre_tokenizer=spaced))):
        made = tokenizer(written(tmp_path / name, description))
        original = Tokenizer.from_str(json.dumps(description))
        assert made.lead(b"The ship") == b" "
        assert made.encode(b"The ship").tolist() == original.encode("The ship", add_special_tokens=False).ids


def test_text_that_is_not_normalised_is_encoded_as_it_stands(tmp_path: Path) -> None:
    made, content = tokenizer(written(tmp_path, qwen())), "re\u0301sume\u0301 <think>".encode()
    ids = made.encode(content)
    assert made.decode(ids) == content
    assert ids[-1] == 300
    assert made.token_bytes[300] == len("<think>")


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


def test_the_token_that_opens_documents(tmp_path: Path) -> None:
    """BEGIN is token 0 and END token 1. A setting that says whether BEGIN is put in front decides."""
    cases: list[tuple[dict[str, Any], dict[str, Any], tuple[int, bool]]] = [
        (byte_level(), {}, (1, False)),
        (byte_level(post_processor=TEMPLATE), {}, (0, True)),
        (byte_level(), {"add_bos_token": True, "bos_token": {"content": BEGIN}}, (0, True)),
        (byte_level(), {"add_bos_token": True}, (1, False)),  # there is none to put there
        (byte_level(post_processor=TEMPLATE), {"add_bos_token": False}, (1, False)),
        (byte_level(), {"eos_token": {"content": BEGIN}}, (0, False)),
        (llama2(), {}, (0, True)),
    ]
    for n, (description, settings, expected) in enumerate(cases):
        made = tokenizer(written(tmp_path / str(n), description, **settings))
        assert (made.end, made.opens) == expected, n
        assert made.token_bytes[made.end] == 0
        assert made.decode([made.end]) == b""
    (tmp_path / "0" / "tokenizer_config.json").unlink()
    (tmp_path / "0" / "config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert tokenizer(f"hf:{tmp_path / '0'}").end == 7


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
    for split in (corpus.train, corpus.valid):
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


def word_piece() -> dict[str, Any]:
    model = {"type": "WordPiece", "vocab": {"a": 0, END: 1, "[UNK]": 2}, "unk_token": "[UNK]"}
    own = {"normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "decoder": {"type": "WordPiece"}}
    decoder = own["decoder"] | {"prefix": "##", "cleanup": True}
    return byte_level(**own | {"decoder": decoder, "model": model | {"continuing_subword_prefix": "##"}}) | {
        "model": model | {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    }


def two_in_front() -> dict[str, Any]:
    front = {"SpecialToken": {"id": BEGIN, "type_id": 0}}
    return byte_level(post_processor=TEMPLATE | {"single": [front, *TEMPLATE["single"]]})


@pytest.mark.parametrize(
    ("description", "settings", "kind", "says"),
    [
        (word_piece, {}, DataError, "neither byte-level nor SentencePiece's"),
        (two_in_front, {}, DataError, "puts 2 tokens in front of every text"),
        (byte_level, {"eos_token": "nowhere"}, UsageError, "state eos_token in its tokenizer_config.json"),
        (lambda: byte_level(model={"type": "None"}), {}, CorruptError, "tokenizer.json cannot be read"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(
    description: Callable[[], dict[str, Any]],
    settings: dict[str, Any],
    kind: type[PoscliError],
    says: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(kind) as error:
        tokenizer(written(tmp_path, description(), **settings))
    assert says in str(error.value)
    assert f"hf:{tmp_path}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("description", "content", "says"),
    [
        (byte_level, b"caf\xe9", "reads UTF-8 only"),
        (llama2, "a▁b".encode(), "changes a document of 5 bytes"),
        (lambda: byte_level(normalizer={"type": "Lowercase"}), b"Ship", "b'Ship' at byte 0 becomes b'ship'"),
        (lambda: llama2(model=json.loads(_pieces())["model"] | {"byte_fallback": False}), b"\x01", "at byte 0 becomes"),
    ],
)
def test_a_document_that_would_be_changed_is_an_error(
    description: Callable[[], dict[str, Any]], content: bytes, says: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as error:
        tokenizer(written(tmp_path, description())).encode(content)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("argument", "kind", "says"),
    [
        ("/no/such/folder", DataError, "there is no folder /no/such/folder with a tokenizer"),
        ("no:such", UsageError, "names no folder, and no repository"),
        ("a\0b", UsageError, "check the path"),
        (".", DataError, "holds no tokenizer.json and no other vocabulary"),
        ("", UsageError, "is not of the form hf:DIR or ORG/NAME"),
    ],
)
def test_a_bad_argument_is_refused(
    argument: str, kind: type[PoscliError], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as error:
        tokenizer(f"hf:{argument}")
    assert says in str(error.value)


def test_truncation_and_padding_of_the_file_are_left_out(tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    made = tokenizer(written(tmp_path, byte_level(truncation=cut)))
    assert made.decode(made.encode(TEXT.encode())) == TEXT.encode()


def test_listing_tokenizers_imports_none_of_the_packages() -> None:
    code = "import sys\nfrom poscli.data.tokenizers import TOKENIZERS\nassert 'hf' in TOKENIZERS.names()\n"
    code += "assert not {'tokenizers', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
