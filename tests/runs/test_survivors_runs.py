"""Checkpoints, names of runs, seeds, suggestions in errors, the hub's budgets, and tasks: values by hand."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from filelock import FileLock

from poscli.config.run import SCHEMA, RunConfig
from poscli.data import Corpus, Split, disk_cache
from poscli.data.corpora.hub import _documents, _suggestion
from poscli.data.hubspec import HubSpec
from poscli.data.source import Document
from poscli.data.splitting import cut_point
from poscli.data.tokenizers.bytes import Bytes
from poscli.equation import Encoding
from poscli.equation.shapes import BlankInputs, wrong_shapes
from poscli.runs.checkpoint import Checkpoint, is_whole, load, load_last, save, steps
from poscli.runs.results import training_log, write_training_log
from poscli.runs.run import Run, create, evaluated_as, open_run
from poscli.runs.summary import run_summary, training_summary
from poscli.system import console
from poscli.system.errors import CorruptError, near
from poscli.system.memory import _process_mb, in_words
from poscli.system.registry import _same
from poscli.system.seeds import derive
from poscli.tasks import IGNORED, Batch, Text
from poscli.tasks.copy import Copy
from poscli.tasks.language import Language
from poscli.verify.checks import range_of_dtypes
from poscli.verify.noise import draw, perturbed, rounding, tolerances
from poscli.verify.probe import finite_at
from poscli.verify.subject import SHAPE, Subject


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (5, 20, 100):
        save(tmp_path, step, Checkpoint({"w": torch.tensor([step])}, {"m": torch.zeros(2)}, {"step": step}))
    assert steps(tmp_path) == [20, 100]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-100", "step-20"]
    assert load(tmp_path, 100).state == {"step": 100}
    assert load(tmp_path, 100).model["w"].item() == 100


def test_a_seed_is_the_first_63_bits_of_a_hash_of_its_purpose() -> None:
    digest = hashlib.sha256(b"7/bench/3").digest()
    assert derive(7, "bench", 3) == sum(byte << 8 * n for n, byte in enumerate(digest[:8])) // 2
    assert derive(7, "bench", 3) != derive(7, "bench", 4)


def test_an_unknown_name_comes_with_at_most_three_similar_or_twenty_others() -> None:
    names = [f"name{n:02d}" for n in range(21)]
    assert near("zzz", names[:20]) == f"there are: {', '.join(names[:20])}"
    assert near("zzz", names) == "none of the 21 known names is similar"
    assert near("name", names).count(" or ") == 2
    assert near("ABCD", ["abce"]) == "did you mean abce?"
    assert near("abcdefghij", ["abcdefuvwx"]) == "did you mean abcdefuvwx?"  # 6 of 10 letters are equal
    assert near("abcdefghij", ["abcdeuvwxy"]).startswith("there are")
    assert near("x", []) == "there are none"


def test_memory_of_the_process_is_in_mebibytes() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    if not pages:
        pytest.skip("/proc is Linux's")
    assert _process_mb("VmRSS") == pytest.approx(pages * 4096 / 2**20, rel=0.2)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 GiB"), (999 * 2**30, "999.0 GiB"), (1000 * 2**30, "1.0 TiB"), (1000 * 2**40, "1.0 PiB"),
        (999 * 2**50, "999.0 PiB"), (1000 * 2**50, "1,000 PiB or more"),
    ],
)  # fmt: skip
def test_bytes_in_words_have_a_unit_below_a_thousand(size: int, text: str) -> None:
    assert in_words(size) == text


# ---- plugins


def test_a_module_that_is_imported_again_has_the_classes_of_before() -> None:
    first, second = (type("Toy", (), {"__module__": "mine"}) for _ in range(2))
    assert _same(first, second)
    assert not _same(first, type("Zoo", (), {"__module__": "mine"}))
    assert not _same(type("Zoo", (), {"__module__": "mine"}), first)
    assert not _same(first(), second())


# ---- the corpus


class Rows:
    """A split of twelve documents of ten bytes."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def __iter__(self) -> Iterator[dict[str, str]]:
        yield from [{"text": self.letter * 10}] * 12


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("org/set", [("train", "a" * 10)] * 12 + [("valid", "b" * 10)] * 12),
        ("org/set?bytes=100", [("train", "a" * 10)] * 9 + [("valid", "b" * 10)]),
        ("org/set@train?bytes=100", [(None, "a" * 10)] * 10),
        ("org/set@validation,train?bytes=50", [("train", "b" * 10)] * 5 + [("valid", "a" * 10)]),
    ],
)
def test_nine_tenths_of_a_budget_are_read_from_the_training_split(spec: str, expected: list[tuple[str, str]]) -> None:
    splits = {"train": Rows("a"), "validation": Rows("b")}
    found = list(_documents(HubSpec.parse(spec), splits))
    assert found == [Document(text.encode(), part) for part, text in expected]


@pytest.mark.parametrize(("unit", "factor"), [("", 1), ("K", 1000), ("M", 10**6), ("G", 10**9)])
def test_units_of_a_budget_are_powers_of_a_thousand(unit: str, factor: int) -> None:
    assert HubSpec.parse(f"org/set?bytes=7{unit}").budget == 7 * factor


def test_a_corpus_of_one_line_is_cut_at_nine_tenths_and_never_inside_a_character() -> None:
    assert cut_point(b"x" * 1000) == 900
    assert cut_point("é".encode() * 500) == 900
    assert cut_point(b"x" + "é".encode() * 500) == 899  # 1001 * 9 // 10 is 900, inside a character
    assert cut_point("é".encode()) == 0


# ---- tasks


def test_windows_that_follow_each_other_need_one_target_more_than_they_hold() -> None:
    for tokens, segments in ((40, 3), (41, 4), (42, 4)):
        split = Split(np.zeros(tokens, dtype=np.uint16), np.array([0, tokens]), tokens - 1)
        assert Language(Corpus("x", "", Bytes(), split, split)).segments(10) == segments


def test_documents_have_one_target_less_than_tokens() -> None:
    split = Split(np.arange(10, dtype=np.uint16), np.array([0, 3, 10]), 8)
    text = Text(split, np.arange(10) % 2 == 0)
    assert list(text.sizes) == [2, 6]
    spans = np.array([[0, 2], [1, 6]])
    assert text.windows(spans, 2).tolist() == [[0, 1, 2], [7, 8, 9]]
    assert text.targets(spans, 2).tolist() == [[1, 2], [8, 9]]
    assert text.counts(spans, 2).tolist() == [[False, True], [True, False]]
    assert Text(split).counts(spans, 2).all()


def test_targets_that_do_not_count_are_ignored() -> None:
    batch = Batch(np.array([[1, 2, 3]]), np.array([[False, True]]))
    inputs, targets = batch.tensors(torch.device("cpu"))
    assert (inputs.tolist(), targets.tolist()) == ([[1, 2]], [[IGNORED, 3]])


def test_an_episode_of_copying_is_a_string_of_16_symbols_and_the_string_again() -> None:
    task = Copy()
    assert task.vocab == 18
    batch = task.batch(size=200, length=13, seed=0, step=0)
    tokens, counted = batch.tokens, batch.counted
    assert tokens.shape == (200, 14)
    assert counted is not None
    sizes = counted.sum(1)
    assert (sizes.min(), sizes.max()) == (1, 6)  # up to half of the window
    for row, size in zip(tokens, sizes, strict=True):
        assert list(row[: -2 * size - 1]) == [17] * (13 - 2 * size)
        assert row[-size - 1] == 16
        assert list(row[-size:]) == list(row[-2 * size - 1 : -size - 1])
    assert set(np.unique(tokens)) == set(range(18))
    evaluated = task.text(13)
    assert list(evaluated.sizes) == [13] * 256
    assert evaluated.counted is not None
    assert evaluated.counted.sum() == 256 * 6
    with pytest.raises(Exception, match="at least 2 tokens"):
        task.check(1)
    task.check(2)


# ---- folders of other versions, and messages


@pytest.mark.parametrize(("env", "schema"), [({"schema": 1}, 1), ({}, 1), ({"schema": SCHEMA + 1}, SCHEMA + 1)])
def test_a_folder_of_another_version_says_which(tmp_path: Path, env: dict[str, int], schema: int) -> None:
    corpus = {"corpus": {"fingerprint": "0123456789abcdef"}}
    folder = create(tmp_path / "older", RunConfig(encoding="alibi"), corpus | {"schema": SCHEMA}).folder
    with pytest.raises(CorruptError, match="was edited or renamed"):
        open_run(folder)
    (folder / "env.json").write_text(json.dumps(corpus | env))
    (folder / "MANIFEST.json").unlink()
    with pytest.raises(CorruptError, match=rf"results of schema {schema}, this one has {SCHEMA}\)"):
        open_run(folder)


def test_messages_are_printed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(console, "err", console.PlainConsole(file=text, width=20))
    console.note("[bold]a note[/bold] that is longer than the line")
    console.warn_once("[red]a doubt[/red]")
    console.warn_once("[red]a doubt[/red]")
    assert text.getvalue() == "[bold]a note[/bold] that is longer than the line\nnote: [red]a doubt[/red]\n"


# ---- tolerances of verify


def test_a_tolerance_is_eight_times_the_error_or_the_rounding_of_a_sum_that_cancels() -> None:
    exact = {name: torch.zeros(2) for name in ("output", "dq", "dslope")}
    small = {name: torch.full((2,), 1e-12) for name in exact}
    large = {"output": torch.tensor([0.0, -0.5])} | {name: small[name] for name in ("dq", "dslope")}
    assert tolerances(exact, [small], width=8, keys=16) == {
        "output": 8 * 8 * 2**-23, "dq": 8 * 8 * 2**-23, "dslope": 8 * 8 * 16 * 2**-23,
    }  # fmt: skip
    assert tolerances(exact, [small, large], width=8, keys=16)["output"] == 4.0


def test_weights_are_moved_by_three_tenths_of_normal_numbers_of_their_own() -> None:
    layer = perturbed(torch.nn.Linear(3, 2), seed=5)
    plain = torch.nn.Linear(3, 2)
    plain.load_state_dict(layer.state_dict())
    perturbed(plain, seed=5)
    for n, (before, after) in enumerate(zip(layer.parameters(), plain.parameters(), strict=True)):
        assert torch.allclose(after - before, 0.3 * draw(*before.shape, seed=5000 + n), atol=1e-6)


def test_rounding_is_four_times_the_largest_change_by_one_unit() -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.w * x

    assert rounding(Scale(), torch.tensor([2.0, 4.0])) == 4 * 4 * 2**-23
    assert rounding(Scale(), torch.tensor([2.0, 4.0]), unit=0.5) == 4 * 4 * 0.5


def test_a_post_hoc_evaluation_is_found_again_by_the_name_of_its_folder(tmp_path: Path) -> None:
    """The six hex digits are the beginning of sha256("rope(base=5)"); another number of them is another folder."""
    run = Run(tmp_path / "trained", RunConfig(encoding="alibi"), {})
    assert evaluated_as(run, "rope(base=5)").folder == tmp_path / "trained" / "as" / "rope-base-5-f3e690"


def test_an_unknown_data_set_is_looked_for_among_five_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def list_datasets(self: object, *, search: str, limit: int) -> list[SimpleNamespace]:
        asked.append((search, limit))
        return [SimpleNamespace(id=f"x/{n}") for n in range(limit)]

    monkeypatch.setattr("huggingface_hub.HfApi.list_datasets", list_datasets)
    assert _suggestion("owner/prose") == "there are: x/0, x/1, x/2, x/3, x/4"
    assert asked == [("prose", 5)]


# ---- verify


class Far(Encoding):
    """Queries grow with the position, and positions are a thousand apart."""

    def positions(self, index: torch.Tensor) -> torch.Tensor:
        return index * 1000

    def query(self, q: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        return q * pos.to(q.dtype)[:, None]


def test_the_range_of_a_dtype_is_that_of_the_encodings_own_positions() -> None:
    assert finite_at(Far(SHAPE), torch.float16, 5)
    assert not finite_at(Far(SHAPE), torch.float16, 1000)  # 999,000 is too large, 999 would not be


def test_only_several_encodings_of_one_layer_are_a_composition() -> None:
    assert Subject("alibi+rope", 0).composed
    assert not Subject("alibi", 0).composed


def test_a_process_that_waits_for_a_corpus_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, free = threading.Event(), threading.Event()
    monkeypatch.setattr(disk_cache, "note", lambda message: said.set())

    def build() -> None:
        with disk_cache._locked(tmp_path / "corpus"):
            free.set()

    with FileLock(tmp_path / ".corpus.lock"):
        other = threading.Thread(target=build, daemon=True)
        other.start()
        assert said.wait(60)  # at once, in fact
        assert not free.is_set()
    assert free.wait(60)
    other.join()


class Wider(Encoding):
    """The query comes back twice as wide as the key."""

    def query(self, q: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        return torch.cat([q, q], dim=-1)

    def key(self, k: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        return k.clone()


def test_query_and_key_must_have_equal_widths() -> None:
    found = wrong_shapes(Wider(SHAPE), BlankInputs.of(SHAPE))
    assert found == "query and key come back with 16 and 8 channels"


class FarSubject(Subject):
    encodings = [Far(SHAPE)]  # noqa: RUF012 - takes the place of a property


def test_a_limit_that_was_found_is_told_from_one_that_was_not_reached() -> None:
    told = range_of_dtypes(FarSubject("none", 0))
    assert re.fullmatch(r"float16 [\d,]+, bfloat16 at least [\d,]+, float32 at least [\d,]+ tokens", told), told


# ---- damaged folders, logs and summaries


def a_run(folder: Path, **config: object) -> Run:
    env = {"schema": SCHEMA, "corpus": {"fingerprint": "0123456789abcdef"}, "parameters": 7, "engine": "sdpa"}
    return create(folder, RunConfig(encoding="alibi", **config), env)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "config", "reason"),
    [
        ({}, "", "'corpus'"),
        ({"corpus": {}}, "", "'fingerprint'"),
        ({"corpus": 5}, "", "'int' object"),
        ({"corpus": {"fingerprint": "0"}}, "seed = 1\nseed = 2\n", "Cannot overwrite a value"),
        ({"corpus": {"fingerprint": "0"}}, "seed = 1\n", "the key 'encoding' is missing"),
        (
            {"corpus": {"fingerprint": "0"}},
            b"\xff",
            "'utf-8' codec",
        ),
    ],
)
def test_a_sealed_folder_that_poscli_cannot_have_written_is_corrupt(
    env: dict[str, object], config: str | bytes, reason: str, tmp_path: Path
) -> None:
    """Its sums are right, so that somebody has made it; the error says what is wrong and what to do."""
    run = create(tmp_path / "made", RunConfig(encoding="alibi"), env | {"schema": SCHEMA})
    if config:
        run.files.write("config.toml", config)
    with pytest.raises(CorruptError) as caught:
        open_run(run.folder)
    assert str(caught.value).startswith(f"{run.folder} is not what poscli wrote ({reason}")
    assert str(caught.value).endswith(
        "; repeat the command that made this run, which writes it again and keeps the model"
    )


def test_only_another_version_is_called_one(tmp_path: Path) -> None:
    """Without its manifest, a folder of this version is damaged, and one of an older version had none."""
    folder = a_run(tmp_path / "made").folder
    (folder / "MANIFEST.json").unlink()
    with pytest.raises(CorruptError, match="SHA-256 differs"):
        open_run(folder)
    for schema in (SCHEMA - 1, SCHEMA + 1):
        (folder / "env.json").write_text(json.dumps({"schema": schema}))
        with pytest.raises(CorruptError, match=f"made by another version of poscli .results of schema {schema}, this"):
            open_run(folder)


def test_tensors_that_were_never_such_are_a_damaged_checkpoint(tmp_path: Path) -> None:
    """Their sums are right, so that only the reader of safetensors can notice."""
    for step in (5, 6):
        save(tmp_path, step, Checkpoint({"w": torch.ones(1)}, {}, {"step": step}))
    folder = tmp_path / "step-6"
    (folder / "model.safetensors").write_bytes(b"no tensors")
    sums = json.loads((folder / "MANIFEST.json").read_text())
    sums["model.safetensors"] = hashlib.sha256(b"no tensors").hexdigest()
    (folder / "MANIFEST.json").write_text(json.dumps(sums))
    with pytest.raises(
        CorruptError, match=r"step-6/model\.safetensors cannot be read \(.*\); repeat the command that trained it"
    ):
        load(tmp_path, 6)
    assert not is_whole(tmp_path, 6)
    assert is_whole(tmp_path, 5)
    last = load_last(tmp_path)
    assert last is not None
    assert last.state == {"step": 5}
    (tmp_path / "step-5" / "state.json").unlink()
    assert load_last(tmp_path) is None


def logged(step: int, **values: object) -> dict[str, object]:
    common = {"step": step, "tokens": 100 * step, "nll": 1.0, "bpb": float(step), "grad_norm": 1.0, "lr_scale": 1.0}
    return common | {"tokens_per_s": 50.0, "seconds": 2.0 * step, "status": "ok"} | values


def test_a_log_is_missing_only_before_the_first_checkpoint(tmp_path: Path) -> None:
    run = a_run(tmp_path / "made")
    assert len(training_log(run)) == 0
    run.set_status("interrupted", 0)
    assert len(training_log(run)) == 0
    run.set_status("interrupted", 1)
    with pytest.raises(CorruptError, match=r"train\.csv is missing"):
        training_log(run)
    write_training_log(run, [logged(1)])
    assert list(training_log(run)["step"]) == [1]
    run.set_status("interrupted", 0)
    assert list(training_log(run)["step"]) == [1]


def test_a_summary_has_the_end_of_the_log_and_the_mean_of_its_last_twentieth(tmp_path: Path) -> None:
    run = a_run(tmp_path / "made", seed=3)
    found = training_summary(run)
    assert (found["tokens"], found["seconds"], found["tokens_per_s"], found["bpb"]) == (0, 0.0, 0.0, None)
    assert (found["status"], found["steps"], found["parameters"], found["engine"]) == ("planned", 0, 7, "sdpa")
    for rows, bpb in ((1, 1.0), (39, 39.0), (40, 39.5), (60, 59.0)):
        run.set_status("complete", rows, "done")
        write_training_log(run, [logged(step) for step in range(1, rows + 1)])
        found = training_summary(run)
        assert (found["tokens"], found["seconds"], found["tokens_per_s"]) == (100 * rows, 2.0 * rows, 50.0)
        assert (found["status"], found["message"], found["steps"], found["seed"]) == ("complete", "done", rows, 3)
        assert found["bpb"] == run_summary(run)["bpb"] == bpb
    write_training_log(run, [logged(1), logged(2, bpb=float("nan"))])
    assert training_summary(run)["bpb"] is None
