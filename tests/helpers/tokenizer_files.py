"""tokenizer.json files in the forms that GPT-2, Qwen, Llama 2 and Gemma publish, trained on a few lines."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from checkpoints import BEGIN, END, TEXT, trained
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

Description = dict[str, Any]
# Text of which a tokenizer may change nothing.
ODD = "Résumé 漢字 🙂\n\n  two  spaces\tand a tab \n</s><|begin|> <0x41> <|end|>\n"
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": BEGIN, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {BEGIN: {"id": BEGIN, "ids": [0], "tokens": [BEGIN]}},
}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
DECODER = {"type": "Sequence", "decoders": [BACK, {"type": "ByteFallback"}, {"type": "Fuse"}]}
OLDER = {"type": "Metaspace", "replacement": "▁"}  # of Metaspace: with add_prefix_space
SPACED = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def added(number: int, content: str) -> Description:
    """A token that is matched in the text before all others, and is not special."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": content} | flags


def byte_level(**changes: Any) -> Description:
    """As GPT-2 and Llama 3."""
    return json.loads(trained()) | changes


@functools.cache
def _pieces() -> str:
    """A BPE over characters with `▁` for the space and bytes for what is missing, and its merges, as JSON."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    special = [BEGIN, END, "<unk>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special + fallback, show_progress=False)
    made.train_from_iterator(TEXT.splitlines(), trainer)
    description = json.loads(made.to_str())
    description["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    description["added_tokens"] = [each for each in description["added_tokens"] if each["content"] in special]
    return json.dumps(description)


def llama2(**changes: Any) -> Description:
    """A space in front of every text, by a normalizer."""
    steps = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE]}
    settings = {"normalizer": steps, "pre_tokenizer": None, "decoder": DECODER, "post_processor": TEMPLATE}
    return json.loads(_pieces()) | settings | changes


def metaspace(scheme: str = "first", **changes: Any) -> Description:
    """A space in front of every text that does not begin with one."""
    step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    return llama2(**{"normalizer": None, "pre_tokenizer": step} | changes)


def gemma() -> Description:
    """No space in front; line breaks and runs of spaces are tokens that are matched in the text."""
    made = llama2(normalizer=REPLACE)
    first = max(made["model"]["vocab"].values()) + 1
    made["added_tokens"] += [added(first + n, content) for n, content in enumerate(("\n\n", "\n", "▁▁"))]
    made["model"]["vocab"] |= {each["content"]: each["id"] for each in made["added_tokens"][-3:]}
    return made


def qwen() -> Description:
    """NFC, and a token for thoughts, which is not special."""
    return byte_level(normalizer={"type": "NFC"}, added_tokens=[*byte_level()["added_tokens"], added(300, "<think>")])


def word_piece() -> Description:
    model = {"type": "WordPiece", "vocab": {"a": 0, END: 1, "[UNK]": 2}, "unk_token": "[UNK]"}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    return byte_level(normalizer=None, pre_tokenizer={"type": "Whitespace"}, decoder=decoder, model=model)


def two_in_front() -> Description:
    front = {"SpecialToken": {"id": BEGIN, "type_id": 0}}
    return byte_level(post_processor=TEMPLATE | {"single": [front, *TEMPLATE["single"]]})


def written(folder: Path, description: Description, **settings: Any) -> str:
    """The spec of a folder with this tokenizer."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END} | settings))
    return f"hf:{folder}"
