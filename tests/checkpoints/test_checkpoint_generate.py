"""`poscli generate --model`: text of a checkpoint, against transformers' own generation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import LENGTH, ROWS, TOKENS
from cli_runner import assert_refused, cli, environment

PROMPT = "The keeper counted"
TEMPLATE = "{% for turn in messages %}<|begin|>{{ turn.role }}: {{ turn.content }}\n{% endfor %}keeper:"


def theirs(folder: Path, text: str, tokens: int, *, opens: bool) -> str:
    """What transformers continues a text with, always with the likeliest token that the tokenizer has."""
    coder: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = coder(text, add_special_tokens=opens, return_tensors="pt").input_ids
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
            suppress_tokens=list(range(TOKENS, ROWS)),
        )  # fmt: skip
    made = out[0, ids.shape[1] :]
    return str(coder.decode(made[made != coder.eos_token_id], clean_up_tokenization_spaces=False))


def ours(*options: str | Path) -> dict[str, Any]:
    result = cli("generate", "--temperature", "0", "--json", *options)
    assert result.code == 0, result.err
    return dict(result.json)


def test_in_one_file_what_is_said_of_a_text_stands_on_a_line_of_its_own(place: Path) -> None:
    command = [sys.executable, "-m", "poscli", "generate", "--model", str(place / "llama"), "--tokens", "3"]
    joined = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(), check=True)
    said = joined.stdout.splitlines()[-1]
    assert said.startswith(b"llama: 3 tokens, "), joined.stdout


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_the_likeliest_text_is_that_of_transformers_beyond_the_trained_length_too(family: str, place: Path) -> None:
    count = LENGTH + 20
    made = ours("--model", place / family, "--prompt", PROMPT, "--tokens", count)
    assert made["text"].replace("\ufffd", "") == theirs(place / family, PROMPT, count, opens=True).replace("\ufffd", "")
    places = [(each["begin"], each["end"]) for each in made["repeated"]]
    assert places[0][0] == made["read"]
    assert places[-1][1] == made["read"] + made["tokens"]


def test_without_a_prompt_a_document_begins(place: Path) -> None:
    made = ours("--model", place / "bloom", "--prompt", "", "--tokens", 5)
    assert (made["read"], made["tokens"]) == (1, 5)


def test_another_encoding_and_a_text_before_the_prompt_change_what_is_written(place: Path) -> None:
    corpus = ("--corpus", f"jsonl:{place / 'text.jsonl'}", "--prompt", PROMPT, "--tokens", "12")
    plain = ours("--model", place / "llama", "--after", 2 * LENGTH, *corpus)
    scaled = ours("--model", place / "llama", "--after", 2 * LENGTH, "--as", "yarn(factor=4)", *corpus)
    assert plain["read"] == scaled["read"] > 2 * LENGTH
    assert (plain["encoding"].partition("(")[0], scaled["encoding"].partition("(")[0]) == ("rope", "yarn")
    assert plain["text"] != scaled["text"]


def chatting(place: Path, folder: Path, template: str) -> Path:
    """The Llama of a place with a chat template, in a new folder."""
    shutil.copytree(place / "llama", folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return folder


def test_a_prompt_is_put_into_the_chat_template_of_the_model(place: Path, tmp_path: Path) -> None:
    folder = chatting(place, tmp_path / "chatting", TEMPLATE)
    asked = ("--prompt", PROMPT, "--tokens", "20", "--chat")
    made = ours("--model", folder, *asked)
    expected = theirs(folder, f"<|begin|>user: {PROMPT}\nkeeper:", 20, opens=False)
    assert made["text"].replace("\ufffd", "") == expected.replace("\ufffd", "")
    refused = cli("generate", "--model", place / "llama", *asked)
    assert refused.code == 4
    assert "has no chat template; leave out --chat" in refused.err


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('a system turn comes first') }}", "fails (a system turn comes first)"),
        ("{% for turn in messages %}", "fails (Unexpected end of template."),
        ("{{ messages[0].content.first.second }}", "has no attribute 'first')"),
        ("{{ messages[0].content + 1 }}", 'fails (can only concatenate str (not "int") to str)'),
    ],
)
def test_a_chat_template_that_fails_is_one_line(template: str, said: str, place: Path, tmp_path: Path) -> None:
    folder = chatting(place, tmp_path / "failing", template)
    assert_refused(("generate", "--model", folder, "--prompt", PROMPT, "--tokens", "20", "--chat"), 4, said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--chat"], "--chat is for --model"),
        (["--model", "llama", "--corpus", "nonsense:abc"], "--corpus nonsense:abc is the text that --after reads"),
        (["--model", "llama", "--chat"], "--chat puts a prompt into the model's chat template; give one with --prompt"),
        (["--model", "llama", "--chat", "--prompt", "a", "--after", "30"], "--chat begins a conversation"),
        (
            ["--model", "llama", "--run", "x"],
            "x is a trained run, and --model llama a checkpoint; leave one of the two out",
        ),
        (["--model", "llama", "--enc", "rope"], "rope is a trained run, and --model llama a checkpoint"),
        (["--model", "llama", "--side", "4"], "for which --side means nothing"),
        (["--model", "llama", "--corpus", "jsonl:text.jsonl", "--after", "999999"], "--after 999999: the corpus"),
        (["--model", "llama", "--as", "alibi"], "cannot be evaluated as alibi"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: list[str], said: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    result = cli("generate", *options)
    assert result.code == 2
    assert said in " ".join(result.err.split())
