"""`poscli extrapolate --model`: its losses are those of a plain loop, and its runs are runs like any other."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from checkpoints import LENGTH, make, write_corpus
from cli_runner import assert_refused, cli, document, snapshot
from several_ranks import on_ranks

from poscli import api
from poscli.checkpoints.models import Wish, checkpoint_config, load_checkpoint
from poscli.runs.run import list_runs
from poscli.system import memory
from poscli.system.errors import CorruptError, DataError
from poscli.tasks import open_task

CPU = torch.device("cpu")
BUDGET = ("--max-len", "2x", "--tokens", 128, "--stride", 16)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some checkpoints and a corpus of sixteen documents."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for family in ("llama", "gpt2", "bloom"):
        make(family, folder / family)
    write_corpus(folder / "text.jsonl")
    return folder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def corpus(place: Path) -> str:
    return f"jsonl:{place / 'text.jsonl'}"


def evaluated(place: Path, family: str, *more: object) -> list[dict[str, Any]]:
    options = ("--corpus", corpus(place), *BUDGET, *(() if "--out" in more else ("--out", place / "results")))
    return document("extrapolate", "--model", place / family, *options, *more)


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_summed_losses_are_those_of_a_plain_loop_over_windows(
    place: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop knows neither slices nor passes of several windows; it reads the same windows of the same text."""
    monkeypatch.setattr(
        "poscli.checkpoints.checkpoint_model.SLICE_NUMBERS", 50 * 320
    )  # so that a window has several slices
    rows = evaluated(place, family)
    [run] = [run for run in list_runs(place / "results" / "runs") if run.label == family]
    task = open_task("language", run.config.corpus, run.config.tokenizer)
    stock: Any = transformers.AutoModelForCausalLM.from_pretrained(place / family, use_safetensors=True).eval()
    for window in (LENGTH, 2 * LENGTH):
        table = pq.read_table(run.folder / "nll" / f"{window}.parquet").to_pandas()
        spans = table[["document", "end"]].drop_duplicates().to_numpy(np.int64)
        found = table["nll"].to_numpy().reshape(len(spans), window)
        total = 0.0
        for span, own in zip(spans, found, strict=True):
            tokens = torch.from_numpy(task.text(window).windows(span[None], window))
            with torch.inference_mode():
                logits = stock(input_ids=tokens[:, :-1], use_cache=False).logits[0]
            expected = torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
            # Layers amplify rounding: see ROUNDING of test_checkpoint_positions.py.
            np.testing.assert_allclose(own, expected.numpy(), atol=1e-3)
            total += float(expected.double().sum())
        assert math.isclose(float(found.sum(dtype=np.float64)), total, rel_tol=1e-6)
    assert {row["length"] for row in rows} == {LENGTH, 2 * LENGTH}
    assert {row["status"] for row in rows} == {"ok"}


def test_windows_begin_with_the_token_that_opens_texts(place: Path) -> None:
    config, _ = checkpoint_config(Wish(str(place / "llama"), corpus(place)), CPU)
    task = open_task(config.task, config.corpus, config.tokenizer)
    windows = task.text(LENGTH).windows(task.text(LENGTH).ends(16, LENGTH)[:3], LENGTH)
    assert (windows[:, 0] == 0).all()
    assert (windows[:, 1:] != 0).any()


def test_a_checkpoint_is_a_run_that_every_command_knows(place: Path) -> None:
    out = ("--out", place / "known")
    asked = ("--as", "yarn(factor=2)", "--as", "none", "--baseline", "sink(2)+window(32)")
    rows = evaluated(place, "llama", *asked, *out)
    names = {row["encoding"] for row in rows}
    assert names == {"llama", "llama as yarn(factor=2.0, base=5000.0)", "llama as none"}
    assert {row["variant"] for row in rows} == {"full", "crop", "window", "sink(4)+window", "sink(2)+window(32)"}
    assert all(row["bpb"] > 0 and row["bytes"] > row["tokens"] for row in rows)
    before = snapshot(place / "known")
    again = cli("extrapolate", *out, *BUDGET, "--baseline", "sink(2)+window(32)")
    assert again.code == 0
    assert "evaluated already" in again.err
    assert snapshot(place / "known") == before
    [known] = document("ls", "runs", *out)
    assert (known["state"], known["evaluated"]) == ("complete", True)
    assert cli("report", *out).code == 0
    summary = pd.read_csv(place / "known" / "report" / "summary.csv")
    assert names <= set(summary["encoding"])


def test_a_table_of_positions_ends_where_it_ends_in_the_tables(place: Path) -> None:
    rows = evaluated(place, "gpt2", "--as", "learned(beyond=interpolate)")
    status = {(row["encoding"], row["length"]): row["status"] for row in rows if row["variant"] == "full"}
    assert status["gpt2", LENGTH] == "ok"
    assert status["gpt2", 2 * LENGTH] == "unsupported"
    assert status["gpt2 as learned(beyond=interpolate)", 2 * LENGTH] == "ok"


def test_a_checkpoint_named_twice_is_evaluated_once_and_keeps_the_whole_name_of_its_folder(place: Path) -> None:
    make("llama", place / "an @ odd, [name]")
    plan = document(
        "extrapolate", "--model", place / "an @ odd, [name]", "--model", f"{place}/gpt2/../an @ odd, [name]/",
        "--corpus", corpus(place), "--out", place / "dry", "--dry-run",
    )  # fmt: skip
    assert [job["encoding"] for job in plan["jobs"]] == ["an @ odd, [name]"]


def test_a_dry_run_writes_nothing(place: Path) -> None:
    out = place / "dry"
    plan = document("extrapolate", "--model", place / "bloom", "--corpus", corpus(place), "--out", out, "--dry-run")
    assert [job["encoding"] for job in plan["jobs"]] == ["bloom"]
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--model", "nowhere"), 4, "there is no folder nowhere"),
        (("--model", "{place}/text.jsonl"), 4, "is a file, and a checkpoint is a folder"),
        (("--corpus", "stdlib"), 2, "--corpus stdlib is for --model"),
        (("--model", "{place}/llama", "--enc", "rope"), 2, "rope selects a trained run"),
        (("--model", "{place}/llama", "--as", "alibi"), 2, "cannot be evaluated as alibi"),
        (("--model", "{place}/llama", "--as", "learned"), 2, "cannot be evaluated as learned"),
        (("--model", "{place}/bloom", "--as", "yarn"), 2, "cannot be evaluated as yarn"),
        (("--model", "{place}/llama", "--precision", "float8"), 2, "--precision 'float8'"),
        (("--model", "{place}/llama", "--max-len", "x"), 2, "--max-len"),
        (("--model", "{place}/llama", "--as", "none", "--recalibrate", "1k"), 2, "trains poscli's own models"),
    ],
)
def test_bad_input_gets_one_line(place: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    given = [argument.replace("{place}", str(place)) for argument in arguments]
    assert_refused(("extrapolate", *given, "--out", place / "refused"), code, message)
    assert not (place / "refused").exists()


def test_what_does_not_fit_the_memory_is_refused_before_it_is_loaded(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _: 1e5)
    arguments = ("extrapolate", "--model", place / "llama", "--corpus", corpus(place), "--out", place / "refused")
    assert_refused(arguments, 2, "parameters in float32 needs about")


def test_positions_that_are_not_those_of_the_model_are_noticed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = checkpoint_config(Wish(str(place / "llama"), corpus(place)), CPU)
    assert load_checkpoint(config, CPU).engine
    monkeypatch.setattr("poscli.checkpoints.models.config_of", lambda source: _without_theta(source.folder))
    with pytest.raises(DataError, match="the logits differ from those of transformers"):
        load_checkpoint(config, CPU)


def _without_theta(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    return {key: value for key, value in config.items() if key not in ("rope_theta", "rope_parameters")}


def test_a_checkpoint_that_changed_since_is_noticed(place: Path, tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "llama")
    config, _ = checkpoint_config(Wish(str(folder), corpus(place)), CPU)
    changed = json.loads((folder / "config.json").read_text()) | {"rms_norm_eps": 0.5}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(CorruptError, match="has changed since"):
        load_checkpoint(config, CPU)


def test_a_checkpoint_is_evaluated_from_python_as_on_the_command_line(place: Path) -> None:
    run = api.checkpoint(place / "bloom", corpus=corpus(place), out=place / "python")
    found = api.extrapolate(run, max_len="2x", tokens=128, stride=16)
    rows = found.rows[found.rows["variant"] == "full"]
    expected = [row for row in evaluated(place, "bloom") if row["variant"] == "full"]
    assert rows["nll"].tolist() == pytest.approx([row["nll"] for row in expected], rel=1e-6)


def test_two_ranks_share_out_the_windows_of_a_checkpoint(place: Path, tmp_path: Path) -> None:
    command = ("extrapolate", "--model", place / "llama", "--corpus", corpus(place), *BUDGET)
    assert cli(*command, "--out", tmp_path / "alone").code == 0
    ended = on_ranks(*command, "--out", tmp_path / "shared")
    assert [each.code for each in ended] == [0, 0], ended[0].err
    alone, shared = (
        {path.name: pd.read_parquet(path) for path in (tmp_path / out).rglob("nll/*.parquet")}
        for out in ("alone", "shared")
    )
    assert alone
    assert alone.keys() == shared.keys()
    assert all(shared[name].equals(table) for name, table in alone.items())
