"""`poscli bench`: its numbers, the rows of cases that cannot run, and interruption."""

from __future__ import annotations

import io
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cli_runner import cli
from rich.console import Console
from small_bench import CPU, SMALL, read, settings
from torch import Tensor
from toys import Slope

from poscli.bench.session import Bench
from poscli.bench.settings import BenchSettings
from poscli.bench.show import draw_costs, show_bench
from poscli.encodings import names
from poscli.equation.shapes import TOKENS
from poscli.native import why_not
from poscli.system.errors import Interrupted

OPTIONS = (
    *("--preset", "nano", "--train-length", 32, "--batch", 2, "--lengths", "32,64", "--past", 32),
    *("--repeats", 2, "--seconds", 1, "--threads", 1, "--device", "cpu"),
)


class Failing(Slope):
    """A bug: no length can be computed."""

    def distance_bias(self, d: Tensor) -> Tensor:
        raise ArithmeticError("no such luck")


class Greedy(Slope):
    """Torch finds no memory for inputs of up to 32 tokens."""

    def distance_bias(self, d: Tensor) -> Tensor:
        if int(d.max()) < 32:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 1 PB")
        return super().distance_bias(d)


class Interrupting(Slope):
    """Its first call on more tokens than it is tried on beforehand sends SIGINT to this process."""

    signals = 1

    def distance_bias(self, d: Tensor) -> Tensor:
        if Interrupting.signals and len(d) > TOKENS:
            Interrupting.signals -= 1
            os.kill(os.getpid(), signal.SIGINT)
        return super().distance_bias(d)


def run(folder: Path, *, resume: bool = False, **given: Any) -> Bench:
    """A small bench, run to its end."""
    bench = Bench(settings(**given), CPU, folder, resume=resume, sizes=SMALL)
    bench.run()
    return bench


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A bench of two encodings on two engines."""
    return run(tmp_path_factory.mktemp("bench"), encodings=("alibi", "cope"), engines=("auto", "reference"))


def folder_of(bench: Bench) -> Path:
    return bench.costs.path.parent


def test_every_case_is_a_row(made: Bench) -> None:
    rows = read(folder_of(made))
    cases = {("train", 32), ("eval", 32), ("eval", 64), ("decode", 32)}
    wanted = {(e, a, *case) for e in ("alibi", "cope") for a in ("auto", "reference") for case in cases}
    assert {tuple(row) for row in rows[["encoding", "asked", "what", "length"]].itertuples(index=False)} == wanted
    assert len(rows) == len(wanted)
    pd.testing.assert_frame_equal(rows, made.costs.table())


def test_numbers_of_a_row_agree_with_each_other(made: Bench) -> None:
    rows = read(folder_of(made))
    assert (rows["status"] == "ok").all()
    assert (rows["repeats"] == 2).all()
    assert rows["ratio"].to_numpy() == pytest.approx((rows["seconds"] / rows["none_seconds"]).to_numpy(), rel=1e-9)
    assert (rows["ratio_low"] <= rows["ratio"] * (1 + 1e-9)).all()
    assert (rows["ratio"] <= rows["ratio_high"] * (1 + 1e-9)).all()
    assert (rows["seconds_min"] <= rows["seconds"]).all()
    assert (rows["seconds"] <= rows["seconds_max"]).all()
    per_second = rows["tokens"] / rows["seconds"]
    assert rows["tokens_per_s"].to_numpy() == pytest.approx(per_second.to_numpy(), rel=1e-9)
    trained = rows[rows["what"] == "train"]
    used = trained["tokens_per_s"] * trained["flops"] / (trained["product_gflops"] * 1e9)
    assert trained["mfu"].to_numpy() == pytest.approx(used.to_numpy(), rel=1e-9)
    assert rows.loc[rows["what"] != "train", "mfu"].isna().all()


def test_rows_say_what_ran(made: Bench) -> None:
    rows = read(folder_of(made))
    trained = rows[(rows["what"] == "train") & (rows["asked"] == "auto") & (rows["encoding"] == "cope")]
    assert len(trained)
    if why_not():
        assert all("sdpa" in reason for reason in trained["engine_reason"])
    else:
        assert set(trained["engine"]) == {"native"}
    rows = rows.set_index(["encoding", "asked"])
    assert set(rows.loc[("alibi", "auto"), "tier"]) == {"distance"}
    assert set(rows.loc[("cope", "auto"), "tier"]) == {"row"}
    assert set(rows.loc[("alibi", "reference"), "engine"]) == {"reference"}
    assert (rows["machine"] != "").all()
    assert (rows["threads"] == torch.get_num_threads()).all()


def test_limits_are_rates(made: Bench) -> None:
    limits = read(folder_of(made), "machine.csv")
    assert set(limits["limit"]) == {
        "matrix product", "memory copy", "causal attention", "causal attention with backward"
    }  # fmt: skip
    square = limits[limits["shape"] == "128 x 128 x 128"].iloc[0]
    assert square["rate"] == pytest.approx(2 * 128**3 / square["seconds"] / 1e9)
    copy = limits[limits["limit"] == "memory copy"].iloc[0]
    assert copy["rate"] == pytest.approx(2 * 2**20 / copy["seconds"] / 1e9)
    forward_pass = limits[limits["why"] == "one layer at 64"].iloc[0]
    assert forward_pass["shape"] == "[8, 4, 64, 16]"
    assert forward_pass["rate"] == pytest.approx(8 * 4 * 2 * 2 * 64 * 64 / 2 * 16 / forward_pass["seconds"] / 1e9)


def test_pictures_are_drawn_of_what_was_measured(made: Bench, tmp_path: Path) -> None:
    files = draw_costs(made.own(made.costs.table()), tmp_path)
    assert [path.name for path in files] == ["training.png", "time.png", "memory.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files)


def test_printed_tables_state_each_failure_once(made: Bench) -> None:
    rows = made.costs.table()
    rows.loc[rows["encoding"] == "cope", ["status", "message"]] = ["oom", "needs a lot"]
    text = io.StringIO()
    show_bench(rows, made.limits.table(), Console(file=text, width=200))
    assert text.getvalue().count("needs a lot") == 1
    assert "GFLOP/s" in text.getvalue()


def test_the_json_document_holds_every_row_and_file(tmp_path: Path) -> None:
    result = cli("bench", *OPTIONS, "--enc", "alibi", "--what", "eval", "--json", "--out", tmp_path)
    assert result.code == 0, result.err
    assert [(row["what"], row["length"]) for row in result.json["rows"]] == [("eval", 32), ("eval", 64)]
    assert result.json["limits"] == []
    assert [Path(name).name for name in result.json["files"]] == ["bench.csv", "time.png", "memory.png"]
    assert all(Path(name).exists() for name in result.json["files"])


def test_a_case_that_cannot_fit_is_not_tried_and_others_go_on(tmp_path: Path) -> None:
    far = 10**8  # tokens: a score matrix of the reference has 10^16 entries
    result = cli(
        *("bench", *OPTIONS, "--what", "eval", "--what", "decode", "--enc", "alibi", "--engine", "reference"),
        *("--lengths", f"32,{far}", "--max-len", far, "--limit", 1e30, "--out", tmp_path),
    )
    assert result.code == 0
    rows = read(tmp_path).set_index(["what", "length"])
    assert rows["status"].to_dict() == {("eval", 32): "ok", ("eval", far): "oom", ("decode", 32): "ok"}
    assert "GiB are free" in rows.loc[("eval", far), "message"]
    assert math.isnan(rows.loc[("eval", far), "seconds"])
    assert "oom: alibi" in result.out


def test_a_failed_allocation_is_a_row_and_others_go_on(tmp_path: Path) -> None:
    run(tmp_path, what=("eval",), encodings=("test_bench:Greedy",), engines=("reference",))
    assert read(tmp_path).set_index("length")["status"].to_dict() == {32: "oom", 64: "ok"}


def test_an_unforeseen_failure_is_a_row_and_the_exit_code(tmp_path: Path) -> None:
    result = cli("bench", *OPTIONS, "--what", "eval", "--enc", "test_bench:Failing", "--out", tmp_path)
    assert result.code == 3
    assert set(read(tmp_path)["message"]) == {"ArithmeticError: no such luck"}


def test_an_encoding_that_an_engine_cannot_run_gets_unsupported_rows(tmp_path: Path) -> None:
    run(tmp_path, what=("eval",), encodings=("cope", "alibi"), engines=("sdpa",))
    rows = read(tmp_path)
    assert set(rows.loc[rows["encoding"] == "alibi", "status"]) == {"ok"}
    refused = rows[rows["encoding"] == "cope"]
    assert set(refused["status"]) == {"unsupported"}
    assert all(message.endswith((" native can", " blocks can")) for message in refused["message"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--enc", "cope", "--engine", "sdpa"), "--engine sdpa: the engine sdpa cannot run cope"),
        (("--enc", "alibi", "--engine", "spda"), "did you mean sdpa?"),
        (("--enc", "alibbi"), "did you mean alibi or alibi-2d?"),
        (("--enc", "alibi", "--preset", "tinny"), "did you mean tiny"),
        (("--enc", "alibi", "--what", "tran"), "'machine', 'train', 'eval' or 'decode'"),
        (("--enc", "alibi", "--lengths", "64,oops"), "--lengths 'oops': no number of tokens"),
        (("--enc", "alibi", "--lengths", "64", "--max-len", "32"), "all above --max-len 32"),
        (("--enc", "alibi", "--seconds", "-1"), "seconds = -1.0"),
    ],
)
def test_bad_input_gets_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = cli("bench", *OPTIONS, *arguments, "--out", tmp_path / "out")
    assert result.code == 2, result.err
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_case_that_would_take_too_long_is_skipped(tmp_path: Path) -> None:
    run(tmp_path, what=("eval",), encodings=("alibi",), limit=1e-6)
    rows = read(tmp_path).set_index("length")
    assert rows.loc[32, "status"] == "ok"  # nothing predicts the time of the first evaluation
    assert rows.loc[64, "status"] == "skipped"
    assert "longer than --limit 1e-06" in rows.loc[64, "message"]


def test_positions_that_an_encoding_lacks_are_unsupported(tmp_path: Path) -> None:
    run(tmp_path, what=("eval",), encodings=("learned",))
    rows = read(tmp_path).set_index("length")
    assert list(rows["status"]) == ["ok", "unsupported"]
    assert "learned has 32 positions" in rows.loc[64, "message"]


def test_an_interrupted_bench_keeps_its_rows_and_resume_measures_the_others_only(tmp_path: Path) -> None:
    given = {"what": ("eval",), "encodings": ("alibi", "test_bench:Interrupting")}
    Interrupting.signals = 1
    with pytest.raises(Interrupted, match="--resume goes on from there") as stopped:
        run(tmp_path, **given)
    assert stopped.value.exit_code == 130
    before = read(tmp_path)
    assert list(before["encoding"]) == ["alibi", "alibi"]
    run(tmp_path, resume=True, **given)
    after = read(tmp_path)
    assert list(after["status"]) == ["ok"] * 4
    pd.testing.assert_frame_equal(after.head(2), before)


def test_a_damaged_file_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "bench.csv").write_text("what,encoding\ntrain,alibi\n")
    result = cli("bench", *OPTIONS, "--enc", "alibi", "--resume", "--out", tmp_path)
    assert result.code == 5
    assert "lacks the column" in result.err


def test_settings_describe_every_option_without_torch() -> None:
    assert all(field.description for field in BenchSettings.model_fields.values())
    code = "import sys, poscli.bench.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_rows_of_other_machines_and_other_shapes_are_not_shown(made: Bench) -> None:
    """After --resume the file may hold them; they would be drawn as if one of them had been measured."""
    rows = made.costs.table()
    others = [rows.assign(**{name: value}) for name, value in (("machine", "B"), ("threads", 99), ("width", 9))]
    table = pd.concat([*others, rows], ignore_index=True)
    assert list(made.own(table).index) == list(range(len(table) - len(rows), len(table)))


@pytest.mark.slow
def test_every_registered_encoding_is_measured(tmp_path: Path) -> None:
    run(tmp_path, repeats=1)
    rows = read(tmp_path)
    assert set(rows["encoding"]) == set(names())
    assert set(rows["status"]) <= {"ok", "oom", "unsupported", "skipped"}
