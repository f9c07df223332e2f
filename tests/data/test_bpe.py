"""The tokenizer `bpe`: lossless on any bytes, trained on the training split only, kept with the corpus and the run."""

from __future__ import annotations

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
from cli_runner import NANO, SHORT, assert_refused, cli, document, run_of, shell
from hypothesis import given
from hypothesis import strategies as st

from poscli.data import Corpus, load_corpus, tokenizer_json
from poscli.data.tokenizers import TOKENIZERS, TrainedTokenizer, bpe, tokenizer
from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.model import transformer
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
    """A single document of about 90 kB: its first nine tenths are for training."""
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


# --- tokens and bytes


ANY = st.one_of(st.binary(), st.text().map(str.encode), st.lists(st.sampled_from([*WORDS, " ", "\n"])).map("".join))


@given(content=ANY)
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


TRAINED: dict[int, TrainedTokenizer] = {}
HARD = {
    "nothing": b"",
    "not UTF-8": b"ab\xff\xfecd\xc3",
    "half a surrogate pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "an emoji of several characters": "👩‍👩‍👧 ﷽ e\u0301".encode(),
    "the name of the end": bpe.END.encode() * 2,
    "zeros": b"\0" * 500,
    "random": random.Random(0).randbytes(4000),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_documents_come_back(name: str, corpus: Corpus) -> None:
    made = corpus.tokenizer
    assert made.decode(made.encode(HARD[name])) == HARD[name]
    assert made.encode(HARD[name]).max(initial=0) < made.end


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


def test_long_documents_are_encoded_as_in_one_piece(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    content = text(5, 100).encode()
    whole = corpus.tokenizer.encode(content)
    monkeypatch.setattr(tokenizer_json, "PIECE", 300)
    assert np.array_equal(corpus.tokenizer.encode(content), whole)


def test_the_file_is_a_tokenizer_for_hf(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(corpus.tokenizer.content)  # type: ignore[attr-defined]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": bpe.END}))
    other = tokenizer(f"hf:{tmp_path}")
    assert (other.vocab, other.end) == (corpus.vocab, corpus.tokenizer.end)
    assert np.array_equal(other.token_bytes, corpus.tokenizer.token_bytes)
    content = text(3, 20).encode()
    assert np.array_equal(other.encode(content), corpus.tokenizer.encode(content))


# --- what it is trained on


def test_training_again_gives_the_same(corpus: Corpus, file: Path, tmp_path: Path) -> None:
    again = load_corpus(f"text:{file}", tokenizer="bpe:300", cache=tmp_path)
    assert again.tokenizer.fingerprint == corpus.tokenizer.fingerprint
    assert again.fingerprint == corpus.fingerprint
    code = "import sys\nfrom poscli.data import load_corpus\n"
    code += "print(load_corpus(sys.argv[1], tokenizer='bpe:300').tokenizer.fingerprint)"

    one = {**os.environ, "POSCLI_CACHE": str(tmp_path / "other"), "RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code, f"text:{file}"], env=one, capture_output=True, text=True)
    assert done.stdout.strip() == corpus.tokenizer.fingerprint, done.stderr


def test_only_the_training_split_is_learned_from(corpus: Corpus, file: Path, tmp_path: Path, cache: Path) -> None:
    """The split of a single document depends on its size and its lines near the cut, which stay as they are."""
    content = file.read_text(encoding="utf-8")
    at = content.rfind("wizards")
    (tmp_path / "changed.txt").write_text(content[:at] + "lizards" + content[at + 7 :], encoding="utf-8")
    changed = load_corpus(f"text:{tmp_path / 'changed.txt'}", tokenizer="bpe:300", cache=cache)
    assert changed.tokenizer.fingerprint == corpus.tokenizer.fingerprint
    assert changed.fingerprint != corpus.fingerprint


def test_other_training_text_is_another_tokenizer(corpus: Corpus, file: Path, tmp_path: Path, cache: Path) -> None:
    content = file.read_text(encoding="utf-8")
    half = len(content) // 2
    (tmp_path / "other.txt").write_text(content[:half].replace("the", "eht") + content[half:], encoding="utf-8")
    other = load_corpus(f"text:{tmp_path / 'other.txt'}", tokenizer="bpe:300", cache=cache)
    assert other.tokenizer.fingerprint != corpus.tokenizer.fingerprint
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
    found = corpus.vocab - 1
    assert 256 < found < 270
    err = " ".join(capsys.readouterr().err.split())
    assert re.search(rf"short\.txt: bpe:4096 has only {found} tokens: .* add text, or give bpe:{found}", err)
    same = load_corpus(f"text:{tmp_path / 'short.txt'}", tokenizer=f"bpe:{found}", cache=cache)
    assert "has only" not in capsys.readouterr().err
    assert same.fingerprint == corpus.fingerprint


def test_the_corpus_describes_its_tokenizer(corpus: Corpus, file: Path, cache: Path) -> None:
    told = corpus.describe()
    assert told["tokenizer"] == "bpe:300"
    assert re.fullmatch(r"bpe1-[0-9a-f]{16}", told["tokenizer_fingerprint"])
    assert told["vocab"] == 301
    plain = load_corpus(f"text:{file}", cache=cache)
    for split, of_bytes in ((corpus.train, plain.train), (corpus.valid, plain.valid)):
        assert split.bytes == of_bytes.bytes == corpus.tokenizer.token_bytes[split.tokens].sum()
        assert len(split.tokens) < len(of_bytes.tokens) / 1.3
        assert corpus.tokenizer.decode(split.tokens) == plain.tokenizer.decode(of_bytes.tokens)


# --- the cache


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "junk"])
def test_a_damaged_file_is_made_again(
    corpus: Corpus, file: Path, cache: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    indices = {path.parent: json.loads(path.read_text()) for path in cache.glob("*/index.json")}
    (folder,) = [where for where, index in indices.items() if index["fingerprint"] == corpus.fingerprint]
    path, content = folder / "tokenizer.json", corpus.tokenizer.content  # type: ignore[attr-defined]
    assert path.read_bytes() == content
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": content[:-9], "changed": content.replace(b"Z", b"Q"), "junk": b"{}"}[damage])
    again = load_corpus(corpus.spec, tokenizer="bpe:300", cache=cache)
    err = capsys.readouterr().err
    assert err.count("is damaged") == 1
    assert again.describe() == corpus.describe()
    load_corpus(corpus.spec, tokenizer="bpe:300", cache=cache)
    assert "damaged" not in capsys.readouterr().err
    assert path.read_bytes() == content


def test_processes_that_start_together_train_once(file: Path, tmp_path: Path) -> None:

    code = "import sys\nfrom poscli.data import load_corpus\n"
    code += "print(load_corpus(sys.argv[1], tokenizer='bpe:290').fingerprint)"
    env = {**os.environ, "POSCLI_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", code, f"text:{file}"]
    kinds = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, env=env, **kinds) for _ in range(3)]  # type: ignore[call-overload]
    told = [child.communicate() for child in children]
    assert len({out for out, _ in told}) == 1
    assert sum("training the tokenizer" in err for _, err in told) == 1
    assert len(list(tmp_path.glob("*/tokenizer.json"))) == 1


# --- specs


@pytest.mark.parametrize(
    "size", ["0", "100", "255", "x", "-1", "4096.0", "4_096", " 4096", "04096", "1e4", "٤٠٩٦", "4k"]
)
@pytest.mark.parametrize("huge", [False, True])
def test_sizes_that_are_none_are_refused(size: str, huge: bool) -> None:
    size = "9" * (len(size) + 6) if huge else size
    with pytest.raises(UsageError) as caught:
        tokenizer(f"bpe:{size}")
    assert str(caught.value).startswith(f"'bpe:{size}': the size of the vocabulary is a whole number from 256")
    assert "262144; give bpe:4096" in str(caught.value)


def test_the_smallest_and_the_largest_size_are_taken() -> None:
    assert [tokenizer(f"bpe:{size}").name for size in (256, 2**18)] == ["bpe:256", "bpe:262144"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("bpe", "'bpe' is not of the form bpe:SIZE"),
        ("bpe:", "'bpe:' is not of the form bpe:SIZE"),
        ("bpee:4096", "there is no tokenizer 'bpee:4096': did you mean bpe:4096?"),
        ("BPE:4096", "there is no tokenizer 'BPE:4096': did you mean bpe:4096?"),
        ("bpe4096", "did you mean bpe?"),
        ("bep", "did you mean bpe"),
        ("hff:folder", "did you mean hf:folder?"),
    ],
)
def test_near_names_are_suggested(spec: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        tokenizer(spec)
    assert says in str(caught.value)


@pytest.mark.parametrize("task", ["copy"])
def test_a_command_refuses_in_one_line(task: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = ("train", "--enc", "alibi", *NANO)
    for spec, says in (("bpe:100", "'bpe:100'"), ("bpe:x", "'bpe:x'"), ("bep:300", "did you mean bpe:300?")):
        assert_refused((*train, "--corpus", f"text:{file}", "--tokenizer", spec), 2, says)
    assert_refused((*train, "--task", task, "--tokenizer", "bpe:300"), 2, "leave out --corpus and --tokenizer")


def test_without_the_package_one_line_says_what_to_install(file: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'tokenizers' else find(name, *more)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = ("train", "--enc", "alibi", *NANO, "--corpus", f"text:{file}", "--tokenizer", "bpe:300")
    result = shell(*command, "--out", tmp_path / "results", PYTHONPATH=path)
    assert result.code == 2, result.err
    assert result.err == "error: bpe needs tokenizers: pip install 'poscli[bpe]'\n"
    assert not (tmp_path / "results").exists()


# --- runs


@pytest.fixture(scope="module")
def runs(file: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of results: bytes, bpe:256, bpe:300 and hf; alibi, trained and evaluated on the same text."""
    base = tmp_path_factory.mktemp("runs")
    folder = base / "hf"
    folder.mkdir()
    content = load_corpus(f"text:{file}", tokenizer="bpe:256", cache=cache).tokenizer.content  # type: ignore[attr-defined]
    (folder / "tokenizer.json").write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": bpe.END}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSCLI_CACHE", str(cache))
        for name, spec in (("bytes", "bytes"), ("256", "bpe:256"), ("300", "bpe:300"), ("of-hf", f"hf:{folder}")):
            train = ("train", "--enc", "alibi", *NANO, "--corpus", f"text:{file}", "--tokenizer", spec)
            for command in (train, ("extrapolate", *SHORT)):
                result = cli(*command, "--out", base / name)
                assert result.code == 0, result.err
    return base


@pytest.mark.parametrize("other", ["256", "of-hf"])
def test_single_bytes_as_tokens_give_the_results_of_bytes(runs: Path, other: str) -> None:
    """Equal tokens, seeds and weights, so equal losses; `nll` and `bpb` are written in full."""
    one, two = (run_of(runs / name, "alibi") for name in ("bytes", other))
    assert one.fingerprint != two.fingerprint
    ours, theirs = (pd.read_csv(run.eval_csv) for run in (one, two))
    columns = ["length", "protocol", "variant", "tokens", "bytes", "documents"]
    pd.testing.assert_frame_equal(ours[columns], theirs[columns])
    for column in ("nll", "bpb", "ppl", "gain", "unigram", "chance"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-6, equal_nan=True)
    assert (ours["bytes"] == ours["tokens"]).all()
    np.testing.assert_allclose(ours["bpb"], ours["nll"] / math.log(2), rtol=1e-12)


def test_bits_per_byte_are_the_nats_of_all_tokens_over_the_bytes_they_decode_to(
    runs: Path, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-evaluation-harness's definition, from the logits in float64 and the decoded targets."""
    monkeypatch.setenv("POSCLI_CACHE", str(cache))
    run = run_of(runs / "300", "alibi")
    task = open_task("language", f"text:{file}", "bpe:300")
    model, coder = load_trained(run, torch.device("cpu")), load_tokenizer(run)
    settings = EvaluationSettings(train_length=32, max_len=128, tokens=256, stride=16)
    plan, rows = Plan(task, settings), pd.read_csv(run.eval_csv)
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


def test_logits_of_a_large_vocabulary_are_computed_in_slices(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_trained(run_of(runs / "300", "alibi"), torch.device("cpu"))
    tokens = torch.arange(2 * 50).view(2, 50)
    with torch.inference_mode():
        ((everything, whole),) = model.logits_in_slices(tokens)
        assert everything == slice(None)
        monkeypatch.setattr(transformer, "SLICE_NUMBERS", 2 * 301 * 8)
        parts = list(model.logits_in_slices(tokens))
    assert [part for part, _ in parts] == [slice(first, first + 8) for first in range(0, 50, 8)]
    # Sums over the width in another order differ by a few roundings of float32.
    assert torch.allclose(torch.cat([logits for _, logits in parts], dim=1), whole, rtol=1e-5, atol=1e-5)


def test_it_is_listed() -> None:
    assert "bpe" in TOKENIZERS.names()
    (row,) = [row for row in document("ls", "tokenizers") if row["tokenizer"] == "bpe"]
    assert "bpe:4096" in row["what"]
