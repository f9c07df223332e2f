"""Evaluation end to end, against its definitions: every window of a small corpus is scored, and every sum redone.

Here a document of n bytes has windows ending at bytes 1..n; S is the stride, L the training length, l a window's.
"""

import itertools
import json
import math
import shutil
import signal

import numpy as np
import pandas as pd
import pytest
import torch
from books import write_books
from cli_runner import LENGTH, NANO, cli
from safetensors.torch import load_file
from torch.nn import functional as F
from toys import make

import poscli
from poscli.attention import Place, choose
from poscli.data import load_corpus
from poscli.data.tokenizers.bytes import END, VOCAB
from poscli.evaluation import measure
from poscli.model.initialise import build_model, fresh_model, load_weights
from poscli.runs.run import list_runs
from poscli.runs.schema import DETAILS, EVAL_COLUMNS, POSITION_COLUMNS, read_table
from poscli.training.trainer import Trainer

CPU = torch.device("cpu")
STRIDE = 16
LENGTHS = (LENGTH, 2 * LENGTH, 4 * LENGTH)
LONGEST = LENGTHS[-1]
ALL = ("--max-len", LONGEST, "--stride", STRIDE, "--tokens", "1M")  # more than there is
FEW = (*ALL, "--tokens", 256)  # where it does not matter what is scored
VARIANTS = {"nonoverlapping": ["full"], "sliding": ["full", "crop", "window"], "fixed": ["full", "crop", "window"]}
ROWS = [(length, p, v) for length in LENGTHS for p, variants in VARIANTS.items() for v in variants]
NUMBERS = ["nll", "bpb", "ppl", "nll_low", "nll_high", "gain", "gain_low", "gain_high"]
COST = ["seconds", "tokens_per_s", "peak_mb"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSCLI_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    return write_books(tmp_path_factory.mktemp("corpus") / "books")


@pytest.fixture(scope="module")
def results(books, tmp_path_factory):
    """Three evaluated runs. Tests must not change them."""
    out = tmp_path_factory.mktemp("results")
    encodings = [word for name in ("alibi", "learned", "sinusoidal") for word in ("--enc", name)]
    for command in (("train", *encodings, *NANO, "--corpus", f"text:{books}"), ("extrapolate", *ALL)):
        result = cli(*command, "--out", out)
        assert result.code == 0, result.err
    return out


@pytest.fixture
def copied(results, tmp_path):
    """A copy with the run of alibi only, which a test may change."""
    for run in (results / "runs").glob("alibi-*"):
        shutil.copytree(run, tmp_path / "runs" / run.name)
    return tmp_path


@pytest.fixture(scope="module")
def few_scored(results, tmp_path_factory):
    """The run of alibi, evaluated on few tokens. Tests must not change it."""
    out = tmp_path_factory.mktemp("few")
    for run in (results / "runs").glob("alibi-*"):
        shutil.copytree(run, out / "runs" / run.name)
    assert cli("extrapolate", *FEW, "--out", out).code == 0
    return out


@pytest.fixture
def few(few_scored, tmp_path):
    """A copy of that run, which a test may change."""
    shutil.copytree(few_scored, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="module")
def sizes(books):
    """Bytes of each held-out document."""
    return (np.diff(load_corpus(f"text:{books}").valid.starts) - 1).tolist()


def run_of(out, encoding):
    (run,) = [run for run in list_runs(out / "runs") if run.config.encoding == encoding]
    return run


def table_of(run):
    return read_table(run.folder / "eval.csv", EVAL_COLUMNS)


def row_of(run, length, protocol, variant):
    table = table_of(run)
    where = (table["length"] == length) & (table["protocol"] == protocol) & (table["variant"] == variant)
    (row,) = table[where].to_dict("records")
    return row


def assert_honest(table):
    """A row is ok and has its numbers, or says why it has none."""
    assert set(table["status"]) <= {"ok", "unsupported", "diverged", "oom", "nonfinite", "failed"}
    good = table["status"] == "ok"
    ok, bad = table[good], table[~good]
    assert np.isfinite(ok[["nll", "bpb", "ppl"]]).all(axis=None)
    assert (ok["tokens"] > 0).all()
    assert (ok["reason"] == "").all()
    assert bad[NUMBERS].isna().all(axis=None)
    assert (bad[["tokens", "bytes", "documents"]] == 0).all(axis=None)
    assert (bad["reason"] != "").all()


def assert_same(run, before):
    """The rows of a run are those from before, but for what they cost."""
    pd.testing.assert_frame_equal(table_of(run).drop(columns=COST), before.drop(columns=COST))


def forget(run, *, losses=False):
    """Remove the finished tables, as if the evaluation had been cut off before them; returns the rows from before."""
    before = table_of(run)
    for path in (run.folder / "eval.csv", run.folder / "position.csv", run.folder / "eval.json"):
        path.unlink()
    if losses:
        shutil.rmtree(run.folder / "nll")
    return before


def windows(sizes, protocol, length):
    """Every window (document, end) of a protocol, by its definition."""
    ends = {
        "nonoverlapping": lambda n: range(length, n - n % LONGEST + 1, length),
        "sliding": lambda n: [e for e in range(STRIDE, n + 1, STRIDE) if e >= LONGEST],
        "fixed": lambda n: [e for e in range(STRIDE, n + 1, STRIDE) if e - STRIDE >= LONGEST],
    }[protocol]
    return pd.DataFrame([(d, e) for d, n in enumerate(sizes) for e in ends(n)], columns=["document", "end"])


def scored(run, sizes, length, protocol, variant):
    """(document, byte, nll) of every token that a row of eval.csv stands for, from the tables of losses."""
    own = LENGTH if variant == "crop" else length
    suffix = "-window" if variant == "window" and length > LENGTH else ""
    losses = pd.read_parquet(run.folder / "nll" / f"{own}{suffix}.parquet")
    scored = piece = length
    if protocol != "nonoverlapping":
        scored, piece = STRIDE, min(STRIDE, own // (8 if own > LENGTH else 32))
    parts = [windows(sizes, protocol, length).assign(back=back) for back in range(0, scored, piece)]
    ends = pd.concat(parts).assign(end=lambda part: part["end"] - part["back"])
    rows = ends.merge(losses, on=["document", "end"])
    rows = rows[rows["position"] > own - piece]
    return pd.DataFrame(
        {"document": rows["document"], "byte": rows["end"] - own + rows["position"], "nll": rows["nll"].astype(float)}
    )


@pytest.mark.parametrize("encoding", ["alibi", "learned", "sinusoidal"])
def test_one_row_for_each_length_protocol_and_variant(results, encoding):
    table = table_of(run_of(results, encoding))
    assert list(zip(table["length"], table["protocol"], table["variant"], strict=True)) == ROWS
    assert_honest(table)


def test_every_row_says_on_what_it_was_measured(results):
    run = run_of(results, "sinusoidal")
    row = row_of(run, 2 * LENGTH, "sliding", "full")
    expected = {
        "parameters": sum(weight.numel() for weight in load_file(checkpoint_of(run)).values()),
        "engine": choose(make("alibi"), place=Place(gradient=False)).name,
        "device": "cpu",
        "dtype": "float32",
        "poscli": poscli.__version__,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["seconds"] > 0
    assert row["peak_mb"] > 100  # torch alone takes more


def checkpoint_of(run):
    return run.checkpoints / f"step-{run.config.steps}" / "model.safetensors"


@pytest.mark.parametrize(("length", "protocol", "variant"), ROWS)
def test_losses_are_sums_over_the_tokens_of_the_definition(results, sizes, length, protocol, variant):
    run = run_of(results, "sinusoidal")
    row, tokens = row_of(run, length, protocol, variant), scored(run, sizes, length, protocol, variant)
    stride = length if protocol == "nonoverlapping" else STRIDE
    assert row["tokens"] == len(tokens) == len(windows(sizes, protocol, length)) * stride
    assert row["bytes"] == row["tokens"]
    assert not tokens.duplicated(["document", "byte"]).any()
    assert row["documents"] == tokens["document"].nunique()
    nll = math.fsum(tokens["nll"]) / len(tokens)
    assert row["nll"] == pytest.approx(nll, rel=1e-12)
    assert row["bpb"] == pytest.approx(nll / math.log(2), rel=1e-12)
    assert row["ppl"] == pytest.approx(math.exp(nll), rel=1e-12)
    assert row["nll_low"] < row["nll"] < row["nll_high"]


@pytest.mark.parametrize(("length", "protocol", "variant"), [r for r in ROWS if r[1] != "nonoverlapping"])
@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal"])
def test_gain_is_crop_minus_this_row_on_identical_tokens(results, sizes, encoding, length, protocol, variant):
    run = run_of(results, encoding)
    crop, this = (scored(run, sizes, length, protocol, v) for v in ("crop", variant))
    pairs = crop.merge(this, on=["document", "byte"], suffixes=("_crop", "_this"))
    assert len(pairs) == len(crop) == len(this)
    gain = math.fsum(pairs["nll_crop"] - pairs["nll_this"]) / len(pairs)
    row = row_of(run, length, protocol, variant)
    assert row["gain"] == pytest.approx(gain, abs=1e-12)
    assert row["gain_low"] <= row["gain"] <= row["gain_high"]
    if variant == "crop" or length == LENGTH:
        assert row["gain"] == 0
    elif encoding == "sinusoidal":
        assert abs(row["gain"]) > 1e-3  # else there is nothing to tell apart here


@pytest.mark.parametrize("protocol", list(VARIANTS))
def test_every_protocol_scores_the_same_tokens_at_every_length(results, sizes, protocol):
    run = run_of(results, "alibi")
    sets = []
    for length, variant in itertools.product(LENGTHS, VARIANTS[protocol]):
        tokens = scored(run, sizes, length, protocol, variant)
        assert len(tokens) == row_of(run, length, protocol, variant)["tokens"]
        sets.append(set(zip(tokens["document"], tokens["byte"], strict=True)))
    assert all(other == sets[0] for other in sets)
    if protocol == "fixed":
        assert min(byte for _, byte in sets[0]) > LONGEST


def test_the_table_of_units_adds_up_to_the_rows(results):
    """units.csv: the tokens, bytes and losses of each document make those of the row."""
    run = run_of(results, "sinusoidal")
    units, rows = read_table(run.folder / "units.csv", DETAILS["units"]), table_of(run)
    key = ["length", "protocol", "variant"]
    sums = units.assign(total=units["nll"] * units["tokens"]).groupby(key)[["tokens", "bytes", "total"]].sum()
    for row in rows.to_dict("records"):
        whole = sums.loc[tuple(row[name] for name in key)]
        assert (whole["tokens"], whole["bytes"]) == (row["tokens"], row["bytes"])
        assert whole["total"] / whole["tokens"] == pytest.approx(row["nll"], rel=1e-12)
    assert units.groupby(key)["unit"].nunique().eq(rows.set_index(key)["documents"]).all()
    assert not units.duplicated([*key, "unit"]).any()


def losses(run, model, books, length, spans):
    """Nats of each token of some windows, one window at a time, from the documents themselves."""
    corpus = load_corpus(f"text:{books}")
    contents = {path.read_bytes() for path in books.iterdir()}
    rows = []
    for document, end in spans:
        content = corpus.valid.tokens[corpus.valid.starts[document] + 1 : corpus.valid.starts[document + 1]]
        assert bytes(content.astype(np.uint8)) in contents
        tokens = torch.tensor([END, *content.tolist()])
        with torch.no_grad():
            logits = model(tokens[None, end - length : end])[0]
        rows.append(F.cross_entropy(logits, tokens[end - length + 1 : end + 1], reduction="none").numpy())
    return np.stack(rows)


def saved(run, name):
    """(spans, losses `[spans, length]`) as evaluation wrote them; NaN for tokens that were not measured."""
    table = pd.read_parquet(run.folder / "nll" / f"{name}.parquet")
    wide = table.pivot(index=["document", "end"], columns="position", values="nll")
    length = int(name.partition("-")[0])
    return np.array(wide.index.to_list()), wide.reindex(columns=range(1, length + 1)).to_numpy()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal"])
def test_the_saved_losses_are_those_of_the_model(results, books, encoding, length):
    run = run_of(results, encoding)
    model = fresh_model(run.config, VOCAB, CPU)
    load_weights(model, load_file(checkpoint_of(run)))
    spans, nll = saved(run, str(length))
    some = [0, len(spans) // 2, len(spans) - 1]
    # float32 logits of a few units: a batch sums them in another order than a single window
    np.testing.assert_allclose(nll[some], losses(run, model, books, length, spans[some]), atol=5e-5)


@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal"])
def test_the_window_variant_is_the_encoding_joined_with_a_window(results, books, encoding):
    run = run_of(results, encoding)
    joined = build_model(run.config.model, f"{encoding}+window({LENGTH})", vocab=VOCAB, length=LENGTH, seed=1)
    load_weights(joined, load_file(checkpoint_of(run)))
    spans, nll = saved(run, f"{LONGEST}-window")
    some = [0, len(spans) // 2, len(spans) - 1]
    measured = ~np.isnan(nll[some])
    assert measured[:, -1].all()
    joined_nll = losses(run, joined, books, LONGEST, spans[some])
    np.testing.assert_allclose(nll[some][measured], joined_nll[measured], atol=5e-5)
    window, full = (row_of(run, LONGEST, "fixed", variant)["nll"] for variant in ("window", "full"))
    assert abs(window - full) > 1e-4  # else the mask is not seen to do anything


@pytest.fixture
def forwards(monkeypatch):
    """The lengths that go through a model, in order, and whether a baseline restricts its attention."""
    seen = []
    original = measure.score

    def counted(model, task, inputs, targets):
        seen.append((inputs.shape[1], "reach" in model.encodings[0].blanks))
        return original(model, task, inputs, targets)

    monkeypatch.setattr(measure, "score", counted)
    return seen


def test_an_evaluation_goes_on_from_the_lengths_it_has(copied, forwards):
    run = run_of(copied, "alibi")
    before = forget(run)
    (run.folder / "nll" / f"{2 * LENGTH}.parquet").unlink()
    assert cli("extrapolate", *ALL, "--out", copied).code == 0
    assert set(forwards) == {(2 * LENGTH, False)}
    assert_same(run, before)
    known = before["length"] != 2 * LENGTH
    pd.testing.assert_frame_equal(table_of(run)[known], before[known])


def test_windows_that_were_measured_alone_are_measured_once(copied, monkeypatch, forwards):
    """Where each window is a pass of its own, an evaluation of more tokens goes on from one of fewer."""
    run = run_of(copied, "alibi")
    monkeypatch.setattr(measure, "PASS_TOKENS", 1)
    forget(run, losses=True)
    for tokens in (64, 256):
        before = len(forwards)
        assert cli("extrapolate", *ALL, "--tokens", tokens, "--out", copied).code == 0
    further = len(forwards) - before
    after = forget(run, losses=True)
    assert cli("extrapolate", *ALL, "--tokens", 256, "--out", copied).code == 0
    assert 0 < further < len(forwards) - before - further
    pd.testing.assert_frame_equal(table_of(run).drop(columns=COST), after.drop(columns=COST))


def test_an_interrupted_evaluation_keeps_what_is_done(few, monkeypatch, forwards):
    run = run_of(few, "alibi")
    before = forget(run, losses=True)
    counted = measure.score

    def interrupted(model, task, inputs, targets):
        if inputs.shape[1] == 2 * LENGTH:
            signal.raise_signal(signal.SIGINT)
        return counted(model, task, inputs, targets)

    with monkeypatch.context() as patch:
        patch.setattr(measure, "score", interrupted)
        result = cli("extrapolate", *FEW, "--out", few)
    assert result.code == 130
    assert "error: stopped at 64 tokens" in result.err
    assert not (run.folder / "eval.csv").exists()
    forwards.clear()
    assert cli("extrapolate", *FEW, "--out", few).code == 0
    assert {length for length, _ in forwards} == {64, 128}
    pd.testing.assert_frame_equal(table_of(run).drop(columns=COST), before.drop(columns=COST))


def test_losses_of_other_code_are_measured_again_unless_the_evaluation_is_complete(few, monkeypatch, forwards):
    run = run_of(few, "alibi")
    before = forget(run)
    monkeypatch.setattr(measure, "code_of", lambda *_: "other")
    assert cli("extrapolate", *FEW, "--out", few).code == 0
    assert {length for length, _ in forwards} == set(LENGTHS)
    assert set(table_of(run)["measured_code"]) == {"other"}
    before["measured_code"] = table_of(run)["measured_code"]
    assert_same(run, before)
    monkeypatch.setattr(measure, "code_of", lambda *_: "third")
    forwards.clear()
    assert "evaluated already" in cli("extrapolate", *FEW, "--out", few).err
    assert not forwards


def test_the_losses_of_another_run_or_length_are_not_taken(copied, results, forwards):
    run, other = run_of(copied, "alibi"), run_of(results, "sinusoidal")
    before = forget(run)
    nll = run.folder / "nll"
    shutil.copy(other.folder / "nll" / "32.parquet", nll / "32.parquet")
    shutil.copy(nll / "128-window.parquet", nll / "64-window.parquet")
    assert cli("extrapolate", *ALL, "--out", copied).code == 0
    assert set(forwards) == {(32, False), (64, True)}
    pd.testing.assert_frame_equal(table_of(run).drop(columns=COST), before.drop(columns=COST))


def test_json_is_the_table(results):
    run = run_of(results, "learned")
    rows = cli("extrapolate", *ALL, "--enc", "learned", "--out", results, "--json").json
    table = table_of(run)
    assert [list(row) for row in rows] == [list(EVAL_COLUMNS)] * len(table)
    for row, record in zip(rows, json.loads(table.to_json(orient="records", double_precision=15)), strict=True):
        expected = {k: pytest.approx(v) if isinstance(v, float) else v for k, v in record.items()}
        assert row == expected


def bit(at):
    def flip(content):
        position = int(at * len(content))
        return content[:position] + bytes([content[position] ^ 8]) + content[position + 1 :]

    return flip


DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "text": lambda content: b"nll\n1.0\n" * 100,
    "grown": lambda content: content + b"\0" * 64,
} | {f"bit at {at}": bit(at) for at in (0.01, 0.5, 0.99)}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_table_of_losses_is_never_used(few, damage):
    run = run_of(few, "alibi")
    before = forget(run)
    path = run.folder / "nll" / f"{LENGTH}.parquet"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    result = cli("extrapolate", *FEW, "--out", few)
    if result.code:
        assert result.code == 5
        assert str(path) in result.err
    else:
        assert_same(run, before)


def failing(monkeypatch, length, error):
    """Let the forward passes at one length raise an error or, without one, give an infinite loss to one token."""
    original = measure.score

    def score(model, task, inputs, targets):
        scored = original(model, task, inputs, targets)
        if inputs.shape[1] == length:
            if error is not None:
                raise error
            scored["nll"][-1, -1] = math.inf
        return scored

    monkeypatch.setattr(measure, "score", score)


@pytest.mark.parametrize(
    ("status", "error"),
    [("oom", RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")), ("nonfinite", None)],
)
def test_a_failed_length_gets_rows_with_its_status_and_others_go_on(few, monkeypatch, status, error):
    run = run_of(few, "alibi")
    before = forget(run, losses=True)
    failing(monkeypatch, 2 * LENGTH, error)
    result = cli("extrapolate", *FEW, "--out", few, "--json")
    assert result.code == 0, result.err
    table = table_of(run)
    assert_honest(table)
    hit = (table["length"] == 2 * LENGTH) & (table["variant"] != "crop")
    assert (table["status"] == np.where(hit, status, "ok")).all()
    pd.testing.assert_frame_equal(table[~hit].drop(columns=COST), before[~hit].drop(columns=COST))
    assert not (run.folder / "nll" / "64.parquet").exists()
    assert set(read_table(run.folder / "position.csv", POSITION_COLUMNS)["length"]) == {32, 128}


def test_if_the_training_length_fails_longer_ones_keep_their_losses(few, monkeypatch):
    run = run_of(few, "alibi")
    before = forget(run, losses=True)
    failing(monkeypatch, LENGTH, torch.OutOfMemoryError("CUDA out of memory"))
    assert cli("extrapolate", *FEW, "--out", few).code == 0
    table = table_of(run)
    assert_honest(table)
    hit = (table["length"] == LENGTH) | (table["variant"] == "crop")
    assert (table["status"] == np.where(hit, "oom", "ok")).all()
    assert table["gain"].isna().all()  # there is nothing to compare with
    assert table[~hit]["nll"].tolist() == before[~hit]["nll"].tolist()


def test_errors_other_than_lack_of_memory_end_the_command(few, monkeypatch):
    run = run_of(few, "alibi")
    forget(run, losses=True)
    failing(monkeypatch, 2 * LENGTH, RuntimeError("shapes do not match"))
    result = cli("extrapolate", *FEW, "--out", few)
    assert result.code == 1
    assert "shapes do not match" in result.err
    assert not (run.folder / "eval.csv").exists()


def test_a_training_that_failed_is_evaluated_again_when_it_has_succeeded(books, tmp_path, monkeypatch):
    train = ("train", "--enc", "alibi", *NANO, "--corpus", f"text:{books}", "--out", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(
            Trainer, "take_step", lambda _: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))
        )
        assert cli(*train).code == 3
    assert cli("extrapolate", *FEW, "--out", tmp_path).code == 3
    assert set(table_of(run_of(tmp_path, "alibi"))["status"]) == {"oom"}
    assert cli(*train).code == 0
    assert cli("extrapolate", *FEW, "--out", tmp_path).code == 0
    assert set(table_of(run_of(tmp_path, "alibi"))["status"]) == {"ok"}


def test_a_diverged_run_has_rows_that_say_so(books, tmp_path):
    train = ("train", "--enc", "alibi", *NANO, "--corpus", f"text:{books}", "--set", "matrix_lr=1e30")
    assert cli(*train, "--out", tmp_path).code == 3
    result = cli("extrapolate", *ALL, "--out", tmp_path, "--json")
    assert result.code == 3
    assert len(result.json) == len(ROWS)
    assert_honest(table_of(run_of(tmp_path, "alibi")))
    assert {row["status"] for row in result.json} == {"diverged"}
