"""The tokenizer `bpe`: lossless on any bytes, trained on the training split only, kept with the corpus and the run."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from cli_runner import NANO, SHORT, cli, document, run_of
from hypothesis import example, given
from hypothesis import strategies as st

from poscli.data import Corpus, load_corpus
from poscli.data.tokenizers import TrainedTokenizer, bpe, tokenizer
from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.model.load import load_tokenizer, load_trained
from poscli.system.errors import CorruptError, UsageError
from poscli.tasks import open_task

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "seven", "wizards", "brew"]
WORDS += ["potions", "in", "Zürich", "漢字", "🙂"]


def text(seed: int, lines: int) -> str:
    draw = random.Random(seed)
    return "".join(" ".join(draw.choices(WORDS, k=9)) + "\n" for _ in range(lines))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A single document of about 90 kB: its first two thirds are for training."""
    path = tmp_path_factory.mktemp("bpe") / "text.txt"
    path.write_text(text(0, 1600), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def corpus(file: Path, cache: Path) -> Corpus:
    return load_corpus(f"text:{file}", tokenizer="bpe:300", cache=cache)


def trained(size: int, *documents: bytes) -> TrainedTokenizer:
    made = tokenizer(f"bpe:{size}")
    assert isinstance(made, TrainedTokenizer)
    return made.trained(made.train(documents))


def test_tokenizers_that_encode_alike_are_equal(corpus: Corpus, file: Path, cache: Path) -> None:
    """A suite then opens a corpus once, and not for each of its models, until the process has no file left to open."""
    again = load_corpus(f"text:{file}", tokenizer="bpe:300", cache=cache).tokenizer
    assert again is not corpus.tokenizer
    assert {corpus.tokenizer: "met"}.get(again) == "met"
    others = [tokenizer("bpe:300"), trained(300, b"other words"), tokenizer("bytes")]
    assert not any(other == corpus.tokenizer for other in others)
    assert tokenizer("bytes") == tokenizer("bytes")


# --- tokens and bytes


ANY = st.one_of(st.binary(), st.text().map(str.encode), st.lists(st.sampled_from([*WORDS, " ", "\n"])).map("".join))


TRAINED: dict[int, TrainedTokenizer] = {}


@given(content=ANY)
@example(content=b"\xed\xa0\xbd\xed\xb8\x80")  # half a surrogate pair
@example(content="👩‍👩‍👧 ﷽ e\u0301")
@example(content=bpe.END * 2)
@pytest.mark.parametrize("size", [256, 300])
def test_every_sequence_of_bytes_comes_back(size: int, content: bytes | str) -> None:
    content = content if isinstance(content, bytes) else content.encode()
    made = TRAINED.setdefault(size, trained(size, text(0, 200).encode()))
    ids = made.encode(content)
    assert made.decode(ids) == made.decode([made.end, *ids, made.end]) == content
    assert made.token_bytes[ids].sum() == len(content)
    assert made.end not in ids
    if size == 256:
        assert ids.tolist() == list(content)


def test_tokens_are_bytes_then_what_was_joined_then_the_end() -> None:
    """By hand: in `ab ab ab abc` the most frequent pair is a b; then the space and ab; then nothing occurs twice."""
    made = trained(300, b"ab ab ab abc")
    assert made.vocab == 259
    assert [made.decode([n]) for n in range(256)] == [bytes([n]) for n in range(256)]
    assert [made.decode([n]) for n in (256, 257, 258)] == [b"ab", b" ab", b""]
    assert made.end == 258
    assert made.encode(b"ab abc a").tolist() == [256, 257, ord("c"), ord(" "), ord("a")]
    assert made.token_bytes.tolist() == [1] * 256 + [2, 3, 0]


def test_a_text_is_not_joined_across_bytes_that_are_no_text() -> None:
    assert trained(300, b"xa\xffbx" * 50).encode(b"ab").tolist() == [ord("a"), ord("b")]


def test_the_file_is_a_tokenizer_for_hf(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(corpus.tokenizer.content)  # type: ignore[attr-defined]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": bpe.END}))
    other = tokenizer(f"hf:{tmp_path}")
    assert (other.vocab, other.end) == (corpus.vocab, corpus.tokenizer.end)
    assert np.array_equal(other.token_bytes, corpus.tokenizer.token_bytes)
    content = text(3, 20).encode()
    assert np.array_equal(other.encode(content), corpus.tokenizer.encode(content))


# --- what it is trained on


def test_only_the_training_split_is_learned_from(corpus: Corpus, file: Path, tmp_path: Path, cache: Path) -> None:
    """The split of a single document depends on its size and its lines near the cut, which stay as they are."""
    content = file.read_text(encoding="utf-8")
    at, half = content.rfind("wizards"), len(content) // 2
    held_out = content[:at] + "lizards" + content[at + 7 :]
    learned = content[:half].replace("the", "eht") + content[half:]
    for name, changed, same in (("held-out", held_out, True), ("learned", learned, False)):
        (tmp_path / f"{name}.txt").write_text(changed, encoding="utf-8")
        other = load_corpus(f"text:{tmp_path / name}.txt", tokenizer="bpe:300", cache=cache)
        assert (other.tokenizer.fingerprint == corpus.tokenizer.fingerprint) is same
        assert other.fingerprint != corpus.fingerprint


def test_training_reads_no_more_text_than_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "MOST_BYTES", 60)
    documents = [b"ab" * 20, b"cd" * 20, b"ef" * 20]
    tokens = {each.decode([n]) for each in [trained(400, *documents)] for n in range(256, each.vocab)}
    assert {b"ab", b"cd"} <= tokens
    assert b"ef" not in tokens
    assert b"cdcd" * 4 not in tokens  # of the second document, 20 bytes are read


def test_a_text_with_too_few_pairs_says_so(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.txt").write_text("ab ab ab abc\n" * 3 + "de\n")
    corpus = load_corpus(f"text:{tmp_path / 'short.txt'}", tokenizer="bpe:4096", cache=cache)
    size = corpus.vocab - 1
    assert 256 < size < 270
    err = " ".join(capsys.readouterr().err.split())
    assert re.search(rf"short\.txt: bpe:4096 has only {size} tokens: .* add text, or give bpe:{size}", err)
    same = load_corpus(f"text:{tmp_path / 'short.txt'}", tokenizer=f"bpe:{size}", cache=cache)
    assert "has only" not in capsys.readouterr().err
    assert same.fingerprint == corpus.fingerprint


# --- the cache


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "junk"])
def test_a_damaged_file_is_made_again(
    corpus: Corpus, file: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = load_corpus(corpus.spec, tokenizer="bpe:300", cache=tmp_path)
    assert sound.describe() == corpus.describe()  # training again gives the same
    (path,) = tmp_path.glob("*/tokenizer.json")
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": content[:-9], "changed": content.replace(b"Z", b"Q"), "junk": b"{}"}[damage])
    capsys.readouterr()
    again = load_corpus(corpus.spec, tokenizer="bpe:300", cache=tmp_path)
    assert capsys.readouterr().err.count("is damaged") == 1
    assert again.describe() == corpus.describe()
    assert path.read_bytes() == content


def test_processes_that_start_together_train_once_and_the_same(corpus: Corpus, tmp_path: Path) -> None:
    code = "import sys\nfrom poscli.data import load_corpus\n"
    code += "print(load_corpus(sys.argv[1], tokenizer='bpe:300').fingerprint)"
    command = [sys.executable, "-c", code, corpus.spec]
    env = {**os.environ, "POSCLI_CACHE": str(tmp_path), "RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    kinds = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, env=env, **kinds) for _ in range(3)]  # type: ignore[call-overload]
    said = [child.communicate() for child in children]
    assert {out.strip() for out, _ in said} == {corpus.fingerprint}, said
    assert sum("training the tokenizer" in err for _, err in said) == 1
    assert len(list(tmp_path.glob("*/tokenizer.json"))) == 1


# --- specs


def test_the_smallest_and_the_largest_size_are_taken() -> None:
    assert [tokenizer(f"bpe:{size}").name for size in (256, 2**18)] == ["bpe:256", "bpe:262144"]


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tokenizers" else find(name))
    with pytest.raises(UsageError, match=r"^bpe needs tokenizers: pip install 'poscli\[bpe\]'$"):
        tokenizer("bpe:300")


# --- runs


@pytest.fixture(scope="module")
def runs(file: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of results: bytes, bpe:256 and bpe:300; alibi, trained and evaluated on the same text."""
    base = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSCLI_CACHE", str(cache))
        for spec in ("bytes", "bpe:256", "bpe:300"):
            train = ("train", "--enc", "alibi", *NANO, "--corpus", f"text:{file}", "--tokenizer", spec)
            for command in (train, ("extrapolate", *SHORT)):
                result = cli(*command, "--out", base / spec.removeprefix("bpe:"))
                assert result.code == 0, result.err
    return base


def test_single_bytes_as_tokens_give_the_results_of_bytes(runs: Path) -> None:
    """Equal tokens, seeds and weights, so equal losses; `nll` and `bpb` are written in full."""
    one, two = (run_of(runs / name, "alibi") for name in ("bytes", "256"))
    assert one.fingerprint != two.fingerprint
    of_bytes, of_tokens = (pd.read_csv(run.folder / "eval.csv") for run in (one, two))
    columns = ["length", "protocol", "variant", "tokens", "bytes", "documents"]
    pd.testing.assert_frame_equal(of_bytes[columns], of_tokens[columns])
    for column in ("nll", "bpb", "ppl", "gain", "unigram", "chance"):
        np.testing.assert_allclose(of_bytes[column], of_tokens[column], rtol=1e-6, equal_nan=True)
    assert (of_bytes["bytes"] == of_bytes["tokens"]).all()
    np.testing.assert_allclose(of_bytes["bpb"], of_bytes["nll"] / math.log(2), rtol=1e-12)


def test_bits_per_byte_are_the_nats_of_all_tokens_over_the_bytes_they_decode_to(
    runs: Path, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-evaluation-harness's definition, from the logits in float64 and the decoded targets."""
    monkeypatch.setenv("POSCLI_CACHE", str(cache))
    run = run_of(runs / "300", "alibi")
    task = open_task("language", f"text:{file}", "bpe:300")
    model, coder = load_trained(run, torch.device("cpu")), load_tokenizer(run)
    settings = EvaluationSettings(train_length=32, max_len=128, tokens=256, stride=16)
    plan, rows = Plan(task, settings), pd.read_csv(run.folder / "eval.csv")
    for length, protocol in ((32, "nonoverlapping"), (64, "sliding"), (128, "fixed")):
        spans, scored = plan.windows(protocol, length, length), plan.protocols[protocol].piece(settings, length)
        windows = torch.from_numpy(task.text(length).windows(spans, length))
        with torch.inference_mode():
            logs = model(windows[:, :-1]).double().log_softmax(-1)
        targets = windows[:, 1:]
        nats = -logs.gather(-1, targets[..., None])[:, -scored:, 0].sum().item()
        size = sum(len(coder.decode(row)) for row in targets[:, -scored:].tolist())
        chosen = rows[(rows["length"] == length) & (rows["protocol"] == protocol) & (rows["variant"] == "full")]
        (row,) = chosen.to_dict("records")
        assert row["tokens"] == len(spans) * scored
        assert row["bytes"] == size > row["tokens"]
        assert row["bpb"] == pytest.approx(nats / math.log(2) / size, rel=1e-6)  # losses are measured in float32


def test_a_run_keeps_its_tokenizer(runs: Path, corpus: Corpus, tmp_path: Path) -> None:
    run = run_of(runs / "300", "alibi")
    assert run.env["corpus"]["tokenizer_fingerprint"] == corpus.tokenizer.fingerprint
    assert load_tokenizer(run).fingerprint == corpus.tokenizer.fingerprint
    assert run.fingerprint == corpus.fingerprint
    assert not (run_of(runs / "bytes", "alibi").folder / "tokenizer.json").exists()
    shutil.copytree(runs / "300", tmp_path / "copy")
    path = run_of(tmp_path / "copy", "alibi").folder / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"Z", b"Q"))
    with pytest.raises(CorruptError, match=r"tokenizer\.json"):
        load_tokenizer(run_of(tmp_path / "copy", "alibi"))


def test_generate_needs_no_corpus(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path))
    made = document("generate", "--tokens", 20, "--prompt", "the quick 🙂", "--out", runs / "300")
    assert made["tokens"] == 20
    assert len(made["text"].encode()) > 20  # tokens of several bytes
    assert not list(tmp_path.iterdir())
