"""The choice of an engine by measuring: what is measured, what is kept, what a run remembers, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli_runner import ALIBI, cli, run_of
from toys import HEADS, WIDTH, make, model, tokens

from poscli.attention import Choice, Place, choose, tuning
from poscli.attention.call import attend
from poscli.attention.engines import ENGINES
from poscli.attention.tuning import OPTIONS, Inputs, Tuning, best, measure
from poscli.native import why_not

EVALUATION = Place(gradient=False)
needs_kernels = pytest.mark.skipif(bool(why_not()), reason=f"no compiled kernels: {why_not()}")


@pytest.fixture(autouse=True)
def every_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measure small inputs, too, and keep what is found in a folder of the test."""
    monkeypatch.setattr(tuning, "SMALLEST", 0)
    monkeypatch.setattr(tuning, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv(tuning.SWITCH, raising=False)


class Measured:
    """Takes the place of `measure`: every option but one takes a second, and that one `seconds`."""

    def __init__(self, option: str, seconds: float) -> None:
        self.option, self.seconds, self.calls = option, seconds, 0

    def __call__(self, works: dict) -> dict[str, float]:
        self.calls += 1
        for work in works.values():
            work()
        return {name: self.seconds if name == self.option else 1.0 for name in works}


@pytest.fixture
def tiles_win(monkeypatch: pytest.MonkeyPatch) -> Measured:
    measured = Measured("tiles", 0.5)
    monkeypatch.setattr(tuning, "measure", measured)
    return measured


def inputs(spec: str = "alibi", count: int = 24) -> tuple:
    encoding = make(spec)
    q, k, v = (torch.randn(2, HEADS, count, WIDTH // HEADS) for _ in "qkv")
    return encoding, Inputs(q, k, v, encoding.locate(count, torch.device("cpu")), None)


def chosen(by: Tuning, place: Place = EVALUATION, spec: str = "alibi", count: int = 24) -> Choice:
    encoding, x = inputs(spec, count)
    return by.fastest(choose(encoding, place=place), encoding, place, x)


def test_the_first_engine_stays_unless_another_is_much_faster() -> None:
    assert best({"native": 1.0, "tiles": 0.9}) == "native"
    assert best({"native": 1.0, "tiles": 0.8, "sdpa": 0.7}) == "sdpa"
    assert best({"sdpa": 2.0}) == "sdpa"


def test_engines_take_turns_and_a_slow_one_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    times = {"fast": iter([9.0, 0.1, 0.3, 0.2, 0.2, 0.2]), "slow": iter([30.0]), "other": iter([9.0] + [0.1] * 5)}
    monkeypatch.setattr(tuning, "SECONDS", 29.0)
    monkeypatch.setattr(tuning, "sum", lambda _: 0, raising=False)  # never too long in all
    monkeypatch.setattr(tuning, "_seconds", lambda work: next(times[work()]))

    def work(name: str):
        return lambda: (calls.append(name), name)[1]

    assert measure({name: work(name) for name in times}) == {"fast": 0.2, "slow": 30.0, "other": 0.1}
    assert calls == ["fast", "slow", "other", *["fast", "other"] * tuning.TURNS]


@needs_kernels
def test_what_is_measured_is_used_kept_and_not_measured_again(tiles_win: Measured) -> None:
    found = chosen(Tuning())
    assert (found.name, found.reason) == ("tiles", "measured: faster than native on this input")
    assert chosen(Tuning()).name == "tiles"  # another process
    assert tiles_win.calls == 1
    assert chosen(Tuning(), count=25).name == "tiles"  # nearly the same input
    assert tiles_win.calls == 1
    assert chosen(Tuning(), count=40).name == "tiles"
    assert chosen(Tuning(), spec="t5").name == "tiles"
    assert chosen(Tuning(), Place()).name == "native"  # the tiles have no backward pass
    assert tiles_win.calls == 4
    written = json.loads(tuning.file().read_text())
    assert set(written["machine"]) == {"cpu", "torch", "threads", "kernels"}
    assert "evaluation of t5: 2 x 3 heads of 8, 32 queries, 32 keys" in written["cases"]


@needs_kernels
def test_what_is_not_measured(tiles_win: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, x = inputs()
    asked = choose(encoding, "sdpa", EVALUATION)
    assert Tuning().fastest(asked, encoding, EVALUATION, x) is asked
    assert chosen(Tuning(), spec="cope+fox").name == "blocks"  # no other engine can run it
    monkeypatch.setattr(tuning, "SMALLEST", x.work + 1)
    assert chosen(Tuning()).name == "native"
    monkeypatch.setattr(tuning, "SMALLEST", x.work)
    monkeypatch.setenv(tuning.SWITCH, "1")
    assert chosen(Tuning()).name == "native"
    assert tiles_win.calls == 0
    monkeypatch.delenv(tuning.SWITCH)
    assert chosen(Tuning()).name == "tiles"


@needs_kernels
@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"machine": {"cpu": "another"}, "cases": {}}',
        '{"machine": MACHINE, "cases": []}',
        '{"machine": MACHINE, "cases": {"x": {"option": "none", "seconds": {}}}}',
        '{"machine": MACHINE, "cases": {"x": {"option": "tiles", "seconds": {"tiles": "fast"}}}}',
        '{"machine": MACHINE, "cases": {"x": {"option": "tiles", "seconds": {"tiles": NaN}}}}',
        '{"machine": MACHINE, "cases": {"x": {"option": "tiles", "seconds": {}}}}',
        '{"machine": MACHINE, "cases": {"x": {"option": ["tiles"], "seconds": {"tiles": 1.0}}}}',
    ],
)
def test_a_stale_or_damaged_file_is_measured_again_and_said_once(
    content: str, tiles_win: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tuning.file()
    path.parent.mkdir(parents=True)
    path.write_text(content.replace("MACHINE", json.dumps(tuning._machine())))
    by = Tuning()
    assert chosen(by).name == chosen(by, spec="t5").name == "tiles"
    assert (
        " ".join(capsys.readouterr().err.split()).count("damaged or of another machine: engines are measured again")
        == 1
    )
    assert chosen(Tuning()).name == "tiles"
    assert tiles_win.calls == 2


@needs_kernels
def test_an_engine_that_is_not_there_any_more_is_measured_again(tiles_win, monkeypatch) -> None:
    assert chosen(Tuning()).name == "tiles"
    written = tuning.file().read_text().replace('"option": "tiles"', '"option": "native"')
    assert tuning._machine()["kernels"] != ""
    monkeypatch.setenv("POSCLI_NATIVE", "0")
    assert tuning._machine()["kernels"] == ""
    document = json.loads(written) | {"machine": tuning._machine()}
    tuning.file().write_text(json.dumps(document))
    assert chosen(Tuning()).name == "tiles"  # now the first engine of the table
    assert tiles_win.calls == 2


@needs_kernels
def test_a_folder_that_cannot_be_written_costs_a_measurement_and_nothing_else(tiles_win, tmp_path, capsys) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    by = Tuning()
    assert chosen(by).name == chosen(by).name == "tiles"
    assert tiles_win.calls == 1
    assert "cannot be kept" in " ".join(capsys.readouterr().err.split())


@needs_kernels
def test_a_run_takes_what_it_took_before(tiles_win: Measured, tmp_path: Path, capsys) -> None:
    file, by = tmp_path / "tuning.json", Tuning()
    with by.remembered(file):
        assert chosen(by).name == "tiles"
    tiles_win.option = "sdpa"
    tuning.file().unlink()
    again = Tuning()
    with again.remembered(file):
        assert chosen(again).name == "tiles"
        assert chosen(again, spec="t5").name == "sdpa"
    assert list(json.loads(file.read_text()).values()) == ["tiles", "sdpa"]
    assert chosen(again).name == "sdpa"  # outside the run
    for damaged in ("{", '{"x": ["tiles"]}'):
        file.write_text(damaged)
        with again.remembered(file):
            assert chosen(again).name == "sdpa"
    assert "is damaged: engines are chosen again" in " ".join(capsys.readouterr().err.split())


@needs_kernels
@torch.no_grad()
def test_a_model_says_which_engine_its_last_input_ran_on(tiles_win: Measured, monkeypatch) -> None:
    monkeypatch.setattr(tuning.TUNING, "measured", {})
    small = model("alibi")
    assert small.engine == "native"
    small(tokens(1, 24))
    assert (small.engine, small.engine_reason) == ("tiles", "measured: faster than native on this input")
    small.use_engine("sdpa")
    assert (small.engine, small.engine_reason) == ("sdpa", "asked for")


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("spec", ["alibi", "t5", "shaw"])
def test_every_option_computes_the_same(name: str, spec: str) -> None:
    option, (encoding, x) = OPTIONS[name], inputs(spec)
    engine = ENGINES[option.engine]
    if engine.refuses(encoding, EVALUATION):
        return
    with torch.set_grad_enabled(engine.gradient):
        given = (x.q_BHTD, x.k_BHSD, x.v_BHSE, x.positions)
        exact = attend(ENGINES["reference"], encoding, *given)
        found = attend(engine, encoding, *given, sizes=option.sizes)
    assert float((found - exact).detach().abs().max()) <= 64 * 2.0**-24 * float(exact.detach().abs().max())


@needs_kernels
def test_training_remembers_its_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning.TUNING, "measured", {})
    monkeypatch.setattr(tuning, "measure", Measured("sdpa", 0.5))
    assert cli(*ALIBI).code == 0
    remembered = json.loads(run_of("results", "alibi").tuning.read_text())
    assert set(remembered.values()) == {"sdpa"}
    assert all(case.startswith("training of alibi") for case in remembered)


@needs_kernels
def test_the_option_switches_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(tuning.SWITCH, "0")
    measured = Measured("sdpa", 0.5)
    monkeypatch.setattr(tuning, "measure", measured)
    assert cli("--no-tuning", *ALIBI).code == 0
    assert measured.calls == 0
    assert not run_of("results", "alibi").tuning.exists()
