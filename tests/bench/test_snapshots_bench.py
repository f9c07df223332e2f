"""Whole benches with made-up times, as tables, as printed and as drawn; their settings, cases, timing and refusals."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from against import Against, draw_comparisons
from against import show as show_comparisons
from drawn import drawn
from looks import looks, pictured
from matplotlib.backends.backend_agg import FigureCanvasAgg
from measured import number
from peers import find_peer
from pydantic import ValidationError
from rich.console import Console
from small_bench import CPU, SMALL, settings

from poscli.bench import limits, timing
from poscli.bench.cases import BenchCase, TimeEstimate, cases_of, engine_refusal, outcome, run_configs
from poscli.bench.session import Bench
from poscli.bench.settings import BenchSettings
from poscli.bench.show import Bar, BarPage, draw_costs, show_bench
from poscli.bench.tables import COLUMNS, KEYS
from poscli.bench.timing import SIZES, Conditions, Timing, TurnPace, ratio, time_in_turns
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.drawing.style import FAINT, INK, PALETTE

LOOKS_AT_PICTURES = True
WHERE = {
    "device": "cpu", "machine": "Abacus", "cores": 3, "threads": 2, "torch": "9.9", "poscli": "1.0", "commit": "abc+",
}  # fmt: skip
OF_THE_MACHINE = ["engine", "engine_reason"]  # which kernels a machine has decides these columns


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, memory and a machine that are the same everywhere."""
    call = itertools.count(1)

    def timed(works: Sequence[Any], pace: TurnPace, device: torch.device, check: Any = lambda: None) -> list[Timing]:
        check()
        n, found = next(call), []
        for place, work in enumerate(works):
            work()
            usual = 0.002 * (1 + (n * n + place) % 7)
            turns = [usual * (1 + 0.1 * (k * (n + place) % 3)) for k in range(pace.repeats)]
            turns = [5.0 - place] if n % 13 == 2 else turns
            found.append(Timing(tuple(turns), 2.5 * (1 + (n + place) % 5), "process" if n % 4 == 0 else "case"))
        return found

    for module in (timing, limits):
        monkeypatch.setattr(module, "time_in_turns", timed)
    monkeypatch.setattr(Conditions, "where", WHERE)
    monkeypatch.setattr("poscli.system.memory.free_memory", lambda device: 2.0**40)
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda canvas, file: file.write(drawn(canvas.figure).encode()))


def compact(table: pd.DataFrame) -> Iterator[str]:
    """The columns that have one value, then a line per row with the others."""
    same = [name for name in table.columns if len(table) < 2 or table[name].nunique(dropna=False) == 1]
    yield " ".join(f"{name}={shown(value)}" for name in same for value in table[name].head(1))
    rest = table.drop(columns=same)
    yield "|".join(rest.columns)
    yield from ("|".join(shown(value) for value in row) for row in rest.itertuples(index=False))


def shown(value: Any) -> str:
    """A value in few digits."""
    return "" if pd.isna(value) else number(value) if isinstance(value, float) else str(value)


def printed(show: Callable[..., None], *tables: pd.DataFrame) -> list[str]:
    """What is printed of tables."""
    console = Console(width=180, file=io.StringIO(), no_color=True)
    show(*tables, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [re.sub("─+", "─", line).rstrip() for line in text.splitlines()]


ASKED: dict[str, dict[str, Any]] = {
    "everything": {"encodings": ("none", "learned", "t5"), "lengths": (64, 32), "limit": 7.0, "repeats": 3},
    "engines": {
        "encodings": ("cope|none", "none"), "engines": ("reference", "sdpa"), "lengths": (32, 96, 48), "past": (40, 16),
        "what": ("eval", "decode"), "repeats": 1, "seconds": 9.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", [*ASKED, "against"])
def test_a_bench(
    kind: str,
    tmp_path: Path,
    snapshot: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tables of a bench, what is printed of them and said meanwhile, and what is left to a second one."""
    monkeypatch.setattr("poscli.system.progress.SECONDS_BETWEEN_LINES", 0.0)

    def bench(encodings: tuple[str, ...], resume: bool) -> Bench:
        asked = settings(**(ASKED.get(kind, ASKED["everything"]) | {"encodings": encodings}))
        if kind == "against":
            return Against(asked, CPU, tmp_path, find_peer("nanogpt-like"), sizes=SMALL, resume=resume)
        return Bench(asked, CPU, tmp_path, sizes=SMALL, resume=resume)

    first = bench(ASKED.get(kind, ASKED["everything"])["encodings"], resume=False)
    first.run()
    tables = [file.table() for file in first.files]
    lines = []
    for file, table in zip(first.files, tables, strict=True):
        lines += [f"##### {file.path.name}", *compact(table.drop(columns=OF_THE_MACHINE, errors="ignore"))]
    shown_ = [table.assign(engine="E") if "engine" in table else table for table in tables]
    lines += ["##### printed", *printed(show_comparisons if kind == "against" else show_bench, *shown_)]
    resumed = bench(("none", "rope"), resume=True)
    resumed.run()
    for before, file in zip(tables, resumed.files, strict=True):
        new = file.table().iloc[len(before) :]
        lines += [
            f"##### new in {file.path.name}",
            *(" ".join(map(str, row)) for row in new[new.columns[:2]].to_numpy()),
        ]
    lines += ["##### said", re.sub(r"^\w+ +(\d+%) .*\n", r"\1 ", capsys.readouterr().err, flags=re.MULTILINE).rstrip()]
    text = re.sub(r"; \w+ can\b", "", "\n".join(lines))  # which engine can, machines differ in
    snapshot(text + "\n", rounded=True)


# ---- pictures


def costs_of(names: Sequence[str], lengths: Sequence[int]) -> pd.DataFrame:
    """Rows of training and of evaluations for some encodings, each dearer than the last; two of them fail in part."""
    rows = []
    for place, name in enumerate(names):
        encoding, _, asked = name.partition(" on ")
        for what, length in (("train", 32), *(("eval", length) for length in lengths)):
            ratio_ = 1 + 0.07 * place * (length / 64) ** 0.5
            status = {(2, 128): "oom", (3, 32): "oom", (3, 64): "failed", (5, 128): "oom"}.get((place, length), "ok")
            found = {
                "seconds": 0.01 * ratio_, "ratio": ratio_, "ratio_low": 0.95 * ratio_, "ratio_high": 1.04 * ratio_,
                "tokens_per_s": 6400 / ratio_, "peak_mb": length * ratio_ / 4, "none_peak_mb": length / 4,
                "mfu": 0.4 / ratio_,
            }  # fmt: skip
            rows.append(
                {
                    "what": what, "encoding": encoding, "asked": asked or "auto", "engine": "E", "length": length,
                    "batch": 4, "status": status, "message": "" if status == "ok" else "the cause",
                    "repeats": 3 + place % 2 if status == "ok" else 0, "dtype": "bfloat16",
                    "train_length": 32, "layers": 2, "width": 64, "heads": 4, **WHERE,
                    **(found if status == "ok" else dict.fromkeys(found, float("nan"))),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


PICTURED: dict[str, Sequence[str]] = {
    "few": ("none", "alibi", "rope", "t5", "rope on sdpa"),
    "many": ("none", *(f"e{n}" for n in range(1, 12))),
    "alone": ("none",),
}


@pytest.mark.parametrize("kind", PICTURED)
def test_pictures_of_a_bench(kind: str, tmp_path: Path, snapshot: Callable[..., None]) -> None:
    """The pictures of few encodings, of more than have a line each, and of `none` alone, on a CPU or a GPU."""
    costs = costs_of(PICTURED[kind], (128, 32, 64))
    costs = costs[costs["what"] == "eval"].assign(device="GPU 7") if kind == "many" else costs
    drawn_of = costs[(costs["what"] == "train") | (costs["length"] == 64)] if kind == "few" else costs
    lines = [line for path in draw_costs(drawn_of, tmp_path) for line in drawn_lines(path)]
    lines += ["##### printed", *printed(show_bench, costs, costs.iloc[:0])] if kind == "few" else []
    snapshot("\n".join(lines) + "\n", rounded=True)


def test_pictures_of_comparisons(tmp_path: Path, snapshot: Callable[..., None]) -> None:
    """A picture and a table for each of two peers."""
    against = compared(costs_of(PICTURED["few"], (128, 32, 64)))
    lines = [line for path in draw_comparisons(against, tmp_path) for line in drawn_lines(path)]
    snapshot("\n".join([*lines, "##### printed", *printed(show_comparisons, against)]) + "\n", rounded=True)


def compared(costs: pd.DataFrame) -> pd.DataFrame:
    """Comparisons of some of the encodings with two peers, one of which was not timed in every case."""
    rows = []
    for n, (_, row) in enumerate(costs[costs["encoding"].isin(["alibi", "t5"])].iterrows()):
        for peer in ("others 1.2", "plain"):
            faster = (0.5 + 0.3 * n) * (2 if peer == "plain" else 1)
            values = {
                "speedup": faster, "speedup_low": 0.9 * faster, "speedup_high": 1.2 * faster,
                "peer_tokens_per_s": 5000 / faster, "peer_peak_mb": 20.0 + n,
            }  # fmt: skip
            lost = row["status"] != "ok" or (n == 1 and peer == "plain")
            rows.append(
                {
                    **row, **(dict.fromkeys(values, float("nan")) if lost else values), "peer": peer,
                    "parameters": 5000, "peer_parameters": 5100 + n,
                    "peer_attention": "eager" if n % 3 == 0 else "fused",
                    "repeats": 0 if row["status"] != "ok" else 1 if n == 2 else 3,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def drawn_lines(path: Path) -> Iterator[str]:
    """The name of a picture, and what it shows."""
    yield f"##### {path.name}"
    yield from path.read_text(encoding="utf-8").splitlines()


# ---- settings, cases, refusals, times

GIVEN: list[dict[str, Any]] = [
    {}, {"quick": True}, {"quick": True, "repeats": 9, "limit": 5}, {"max_len": 100},
    {"max_len": 5000, "lengths": ("1k", "8k", 3000)}, {"max_len": 300, "lengths": (512,)},
    {"quick": True, "max_len": 700}, {"quick": True, "max_len": 100}, {"past": ("2k",), "max_len": 1000},
    {"lengths": (512, 65536), "past": (65536,)},
    {"train_length": 7}, {"batch": 0}, {"what": ("eval", "x")}, {"seconds": 0}, {"repeats": 0}, {"limit": 0},
    {"lengths": (0,)}, {"colour": 1}, {"max_len": 0},
    {"max_len": 1, "batch": 1, "repeats": 1, "seconds": 0.5, "limit": 0.5},
]  # fmt: skip


def test_settings_and_their_cases(snapshot: Callable[..., None]) -> None:
    """The fields that differ from the defaults and the cases that follow, or the refusals."""
    lines = [f"{name}: {field.default!r}: {field.description}" for name, field in BenchSettings.model_fields.items()]
    for given in GIVEN:
        try:
            made = BenchSettings(**given)
        except ValidationError as refused:
            lines += [f"{given}: {error['loc']}: {error['msg']}" for error in refused.errors()]
            continue
        changed = {name: value for name, value in made.model_dump().items() if value != getattr(BenchSettings(), name)}
        lines.append(f"{given}: {changed}")
        for case in cases_of(made, 5, 2048):
            sizes = f"{case.length} x {case.batch}: {case.tokens} tokens, {case.scores} scores"
            lines.append(f"  {case.what} {sizes}{' in training' if case.training else ''}")
    for name, columns in COLUMNS.items():
        lines.append(
            f"{name}: "
            + " ".join(f"{'*' * (column in KEYS[name])}{column}:{kind[0]}" for column, (kind, _) in columns.items())
        )
    lines.append(f"sizes: {SIZES}")
    snapshot("\n".join(lines) + "\n")


def test_configurations_and_refusals(snapshot: Callable[..., None]) -> None:
    """The runs whose models are timed, those that cannot be, and engines, memory and time that refuse a case."""
    lines = []
    for given in ({"encodings": ("rope(10000)", "learned"), "precision": "float16"}, {"train_length": 8, "batch": 3}):
        for name, found in run_configs(settings(**given), CPU).items():
            if isinstance(found, str) or "encodings" in given or name == "none":
                fields = (
                    found
                    if isinstance(found, str)
                    else f"{found.batch} x {found.length}, {found.steps} steps, {found.precision}"
                )
                lines.append(f"{given} {name}: {fields}")
    for spec, engine in itertools.product(
        ("none", "cope", "shaw|none", "alibi-2d"), ("auto", "reference", "sdpa", "blocks")
    ):
        config = resolve(TrainRequest(preset="nano", length=32), spec, 0, CPU, axes=2)
        why = [engine_refusal(config, engine, CPU, training) for training in (True, False)]
        lines.append(f"{spec} on {engine}: {' / '.join(re.sub(r'; .* can$', '', each) or 'runs' for each in why)}")
    lines.append(f"no model on sdpa: {engine_refusal('a reason', 'sdpa', CPU, True)}")
    estimate = TimeEstimate(2.0)
    for what, length, batch, seconds in (
        ("eval", 32, 4, 0.5),
        ("eval", 64, 4, 1.9),
        ("train", 512, 8, 90.0),
        ("decode", 64, 1, 0.1),
        ("eval", 66, 4, 0),
        ("eval", 64, 5, 0),
        ("decode", 200, 1, 0),
    ):
        case = BenchCase(what, length, batch)
        lines.append(f"{case}: {outcome(lambda case=case: {'allowed': estimate.check(case) is None})}")
        if seconds:
            estimate.note(case, seconds)
    snapshot("\n".join(lines) + "\n")


@pytest.mark.parametrize("length_of_first", [0.01, 0.6, 3.0])
def test_turns(length_of_first: float, monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., None]) -> None:
    """The order in which two functions are called by a clock that only they move, and what is found of their times."""
    clock, calls, lines, peaks = [0.0], list[str](), list[str](), itertools.count(1)

    def work(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            clock[0] += seconds * (1 + 0.1 * (len(calls) % 3))
            calls.append(name)

        return run

    class Peak:
        def __init__(self, device: torch.device) -> None:
            self.mb, self.of = 0.0, "case"

        def __enter__(self) -> Peak:
            return self

        def __exit__(self, *_: object) -> None:
            self.mb = float(next(peaks))

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(timing, "Peak", Peak)
    for pace in (TurnPace(4, 2.0), TurnPace(4, 0.5, 0.02), TurnPace(2, 2.9, 0.5), TurnPace(1, 9.0, 0.001)):
        calls.clear()
        found = time_in_turns([work("a", length_of_first), work("b", 0.03)], pace, CPU, lambda: calls.append("?"))
        order = [f"{len(list(same))}{name}" for name, same in itertools.groupby(calls)]
        lines.append(f"{pace}: {' '.join(order)}")
        lines += [f"  {shown_all(each.seconds)} median {number(each.median)}, {each.peak_mb} MiB" for each in found]
        lines.append(f"  ratio {shown_all(ratio(*found))}")
    snapshot("\n".join(lines) + "\n", rounded=True)


def shown_all(values: Sequence[float]) -> str:
    """Numbers in few digits."""
    return " ".join(number(value) for value in values)


def test_bars(snapshot: Callable[..., None]) -> None:
    """Ratios on both sides of 1, far from it and near it."""
    long = "a specification whose name is far too long for the margin: rope(base=10000.0)+window(width=128)+sink(2)"
    several = [
        Bar("rope", 1.12, 1.05, 1.3, "1.12x", PALETTE[0]),
        Bar(long, 0.83, 0.79, 0.9, "0.83x of a long text", PALETTE[1]),
        Bar("none", 1.0, 1.0, 1.0, "the baseline", FAINT),
        Bar("t5", 6.4, 5.2, 7.9, "6.40x", PALETTE[2]),
    ]
    parts = []
    for bars, named in (
        (several, "time, as a multiple"),
        (several[:1], "memory"),
        ([Bar("a", 120, 40, 260, "", INK)], "x"),
    ):
        page = BarPage(bars)
        page.name_axis(named)
        parts.append(pictured(page.figure) + "\n".join(looks(page.figure)) + "\n")
    snapshot("\n".join(parts), rounded=True)
