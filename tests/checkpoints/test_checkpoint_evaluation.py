"""`extrapolate --model` and `advise`: losses are those of a plain loop, and their runs are runs like any other."""

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
from checkpoints import LENGTH, corpus, make
from cli_runner import cli, document, snapshot
from fake_results import Shape, results, units_of
from several_ranks import on_ranks

from poscli import api
from poscli.checkpoints import matrix
from poscli.checkpoints.matrix import read_target
from poscli.checkpoints.models import checkpoint_at, load_checkpoint
from poscli.checkpoints.request import AdviceRequest
from poscli.runs.results import Tables
from poscli.runs.run import list_runs
from poscli.system.errors import CorruptError, UsageError
from poscli.tasks import open_task

CPU = torch.device("cpu")
BUDGET = ("--max-len", "2x", "--tokens", 128, "--stride", 16)


def evaluated(place: Path, family: str, *more: object) -> list[dict[str, Any]]:
    options = ("--corpus", corpus(place), *BUDGET, *(() if "--out" in more else ("--out", place / "results")))
    return document("extrapolate", "--model", place / family, *options, *more)


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_summed_losses_are_those_of_a_plain_loop_over_windows(
    place: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop knows neither slices nor passes of several windows; it reads the same windows of the same text."""
    several = 50 * 320  # so that a window has several slices
    monkeypatch.setattr("poscli.checkpoints.checkpoint_model.SLICE_NUMBERS", several)
    rows = evaluated(place, family)
    [run] = [run for run in list_runs(place / "results" / "runs") if run.label == family]
    task = open_task("language", run.config.corpus, run.config.tokenizer)
    stock: Any = transformers.AutoModelForCausalLM.from_pretrained(place / family, use_safetensors=True).eval()
    for window in (LENGTH, 2 * LENGTH):
        table = pq.read_table(run.folder / "nll" / f"{window}.parquet").to_pandas()
        wide = table.pivot(index=["document", "end"], columns="position", values="nll")
        spans, found = np.array(wide.index.to_list()), wide.reindex(columns=range(1, window + 1)).to_numpy()
        total = 0.0
        for span, own in zip(spans, found, strict=True):
            tokens = torch.from_numpy(task.text(window).windows(span[None], window))
            with torch.inference_mode():
                logits = stock(input_ids=tokens[:, :-1], use_cache=False).logits[0]
            expected = torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
            measured = ~np.isnan(own)
            assert measured[-1]
            # Layers amplify rounding: see ROUNDING of test_checkpoint_positions.py.
            np.testing.assert_allclose(own[measured], expected.numpy()[measured], atol=1e-3)
            total += float(expected.double()[torch.from_numpy(measured)].sum())
        assert math.isclose(float(np.nansum(found, dtype=np.float64)), total, rel_tol=1e-6)
    assert {row["length"] for row in rows} == {LENGTH, 2 * LENGTH}
    assert {row["status"] for row in rows} == {"ok"}


def test_windows_begin_with_the_token_that_opens_texts(place: Path) -> None:
    config = checkpoint_at(str(place / "llama"), CPU, corpus=corpus(place)).run
    task = open_task(config.task, config.corpus, config.tokenizer)
    windows = task.text(LENGTH).windows(task.text(LENGTH).ends(16, LENGTH)[:3], LENGTH)
    assert (windows[:, 0] == 0).all()
    assert (windows[:, 1:] != 0).any()


def test_a_checkpoint_is_a_run_that_every_command_knows(place: Path) -> None:
    out = ("--out", place / "known")
    masks = [f"sink(2)+window({LENGTH // 2})", "sink(2)+window(0.5L)"]  # L is the length of the checkpoint
    asked = ("--as", "yarn(factor=2)", "--as", "none", "--baseline", masks[0], "--baseline", masks[1])
    rows = evaluated(place, "llama", *asked, *out)
    names = {row["encoding"] for row in rows}
    assert names == {"llama", "llama as yarn(factor=2.0, base=5000.0)", "llama as none"}
    assert {row["variant"] for row in rows} == {"full", "crop", "window", "sink(4)+window", *masks}
    one, other = ([row["bpb"] for row in rows if row["variant"] == mask] for mask in masks)
    assert one == other
    assert all(row["bpb"] > 0 and row["bytes"] > row["tokens"] for row in rows)
    before = snapshot(place / "known")
    again = cli("extrapolate", *out, *BUDGET, "--baseline", masks[0], "--baseline", masks[1])
    assert again.code == 0
    assert "evaluated already" in again.err
    assert snapshot(place / "known") == before
    [known] = document("ls", "runs", *out)
    assert (known["state"], known["evaluated"]) == ("complete", True)
    assert cli("report", *out).code == 0
    summary = pd.read_csv(place / "known" / "report" / "summary.csv")
    assert names <= set(summary["encoding"])


@pytest.mark.parametrize(
    ("spec", "other", "same"),
    [
        # positions are random in training only, and twice the length is the range that they are drawn from
        ("randomized-yarn", "yarn(factor=2)", True),
        ("jet-long", "rope", False),
        ("sink-logit(start=-60)", "rope", True),  # e^-60 beside the sum of the softmax
        ("sink-logit", "rope", False),
        (f"window({LENGTH // 2})+sink-logit(start=-60)", f"window({LENGTH // 2})", True),
    ],
)
def test_a_checkpoint_under_what_newer_models_are_built_with(
    place: Path, spec: str, other: str, same: bool, tmp_path: Path
) -> None:
    def losses(spec: str) -> list[float]:
        asked = () if spec == "rope" else ("--as", spec)
        rows = evaluated(place, "llama", *asked, "--out", tmp_path / "out")
        of = [row for row in rows if row["variant"] == "full" and row["length"] == 2 * LENGTH]
        return [row["nll"] for row in of if (" as " in row["encoding"]) == bool(asked)][-3:]

    assert len(losses(spec)) >= 2
    assert (losses(spec) == pytest.approx(losses(other), abs=1e-5)) is same


def test_a_checkpoint_named_twice_is_evaluated_once_and_keeps_the_whole_name_of_its_folder(place: Path) -> None:
    make("llama", place / "an @ odd, [name]")
    plan = document(
        "extrapolate", "--model", place / "an @ odd, [name]", "--model", f"{place}/llama/../an @ odd, [name]/",
        "--corpus", corpus(place), "--out", place / "dry", "--dry-run",
    )  # fmt: skip
    assert [job["encoding"] for job in plan["jobs"]] == ["an @ odd, [name]"]
    assert not (place / "dry").exists()


def test_a_checkpoint_that_changed_since_is_noticed(place: Path, tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "llama")
    config = checkpoint_at(str(folder), CPU, corpus=corpus(place)).run
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


def test_a_random_model_gets_no_advice_and_its_runs_can_be_reported(place: Path, tmp_path: Path) -> None:
    out = ("--corpus", corpus(place), "--out", tmp_path / "results")
    command = ("advise", place / "llama", "--target", "2x", "--tokens", 256, "--as", "yarn", "--as", "rope-dynamic")
    advice = document(*command, *out)
    assert advice["answer"][0].startswith("No advice: on this text llama is no better than a guess")
    specs = [candidate["spec"] for candidate in advice["candidates"]]
    assert sorted(filter(None, specs)) == ["rope-dynamic(base=5000.0)", "yarn(factor=2.0, base=5000.0)"]
    assert advice["target"] == 2 * LENGTH
    assert advice["paste"] == []
    assert cli(*command, *out).err.count("nothing to do") == 3  # everything was measured before
    report = document("report", "--out", tmp_path / "results" / "advise")
    assert {row["encoding"] for row in report["summary"]} >= {"llama", "llama as yarn(factor=2.0, base=5000.0)"}


def test_advice_leaves_what_extrapolate_measured(place: Path, tmp_path: Path) -> None:
    evaluated(place, "llama", "--as", "yarn(factor=2)", "--out", tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("eval.csv")}
    asked = ("--target", "2x", "--tokens", 128, "--as", "yarn", "--corpus", corpus(place), "--out", tmp_path)
    document("advise", place / "llama", *asked)
    assert len(before) == 2
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("eval.csv")} == before


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8}


@pytest.mark.parametrize(
    ("scaling", "target", "expected"),
    [
        (YARN, "yarn", ["yarn(factor=16.0, original=16, base=5000.0)"]),
        (YARN, "yarn(factor=8)", ["yarn(factor=8.0, original=16, base=5000.0)"]),
        (YARN, "temper", ["yarn(factor=16.0, original=16, base=5000.0)+temper"]),
        ({"rope_type": "dynamic", "factor": 3.0}, "rope-linear", ["rope-linear(factor=4.0, base=5000.0)"]),
        (LLAMA3, "all", ["llama3(factor=32.0, original=8, base=5000.0)"]),
    ],
)
def test_a_scaled_checkpoint_is_measured_with_the_factor_for_the_target(
    scaling: dict[str, Any], target: str, expected: list[str], place: Path, tmp_path: Path
) -> None:
    folder = make("llama", tmp_path / "scaled", rope_scaling=scaling)
    request = AdviceRequest.model_validate({"corpus": corpus(place), "as": [target]})
    asked = matrix.opened(str(folder), "4x", request, device_name="cpu", runs=Path("runs"))
    specs = [each.run.config.encoding for each in asked.work[1:]]
    assert specs[:1] == expected
    if target == "all":
        assert "rope-linear(factor=32.0, original=8, base=5000.0)" in specs
        assert not [spec for spec in specs if "factor=8.0" in spec]


def test_what_is_pasted_counts_from_the_length_that_was_measured(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Shape] = {
        "llama": (1.3, lambda octaves: -0.5 * octaves),
        "llama as yarn(factor=4.0, base=5000.0)": (1.3, lambda octaves: 0.2 * octaves),
    }
    length = LENGTH // 2
    rows, _ = results(names, train_length=length, lengths=(length, 4 * length))
    monkeypatch.setattr(matrix, "measured", lambda _: Tables(rows, rows, {"units": units_of(rows, documents=16)}))
    asked = ("--length", length, "--target", "4x", "--as", "yarn", "--corpus", corpus(place), "--out", tmp_path / "out")
    pasted = {each["runtime"]: each["text"] for each in document("advise", place / "llama", *asked)["paste"]}
    for runtime, original in (
        ("transformers 5", '"original_max_position_embeddings": 32'),
        ("transformers 4", '"original_max_position_embeddings": 32'),
        ("vLLM", '"original_max_position_embeddings": 32'),
        ("llama.cpp", "--yarn-orig-ctx 32"),
    ):
        assert original in pasted[runtime]


def test_lengths_of_contexts_are_binary_and_multiples_of_the_trained_length() -> None:
    for text, tokens in (("32k", 32768), ("128K", 131072), ("0.5M", 524288), ("3.5x", 7168), (" 5000 ", 5000)):
        assert read_target(text, 2048) == tokens
    for text in ("", "-1", "4xx", "1e5", "k", "9" * 200):
        with pytest.raises(UsageError, match="is no length"):
            read_target(text, 2048)


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
