"""`poscli board` from nothing: a small season is trained, scored, ranked and built, and goes on where it stopped."""

import shutil

import pytest
from cli_runner import cli
from planted_board import plant
from small_season import ALL, write_season

from poscli.bench.timing import TurnPace
from poscli.board import arrays, costs
from poscli.board.cells import read_answers, read_cells, read_costs, read_profiles, write_kept
from poscli.board.progress import jobs_of_board, undecided
from poscli.board.season import season_of
from poscli.board.standings import standings_of
from poscli.system.errors import DataError


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """(folder, season file) of a board of two seeds. Tests must not change the folder.

    Its costs are timed for a moment each: no test asks how large they are. It is ranked although a longer context wins
    nothing, because its models learn next to nothing.
    """
    folder = tmp_path_factory.mktemp("board")
    season = write_season(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "PACE", TurnPace(repeats=3, seconds=6.0, sample=0.002))
        patch.setattr(arrays, "LEAST_HEADROOM", -9.0)
        done = run(folder, season, "--stage", 1)
        assert done.code == 0, done.err
        yield folder, season


def run(folder, season, *options):
    where = ("--cells", folder / "cells", "--out", folder / "results", "--season", season)
    return cli("board", "run", *where, "--workers", 1, "--yes", *options)


def test_every_encoding_has_a_cell_for_each_text_and_seed(board):
    cells = read_cells(board[0] / "cells", "tests")
    at_length = [cell for cell in cells if cell.trained_at == 16]
    assert {cell.encoding for cell in at_length} == ALL
    assert len({(cell.text, cell.seed) for cell in cells}) == 3 * 2
    assert len(at_length) == len(ALL) * 3 * 2
    assert {cell.encoding for cell in cells if cell.trained_at == 32} == {"rope"}
    assert all(cell.lengths == (16, 32) and len(cell.hundredths[1]) > 2 for cell in at_length)


def test_every_encoding_has_costs_and_a_reading_those_of_its_training(board):
    known = {cost.encoding: cost for cost in read_costs(board[0] / "cells", "tests")}
    assert set(known) == ALL
    assert all(
        0 < low <= median <= high for each in known.values() for median, low, high in (each.training, each.reading)
    )
    assert known["rope as rope+window"].training == known["rope"].training


def test_every_encoding_is_asked_the_task(board):
    answers = read_answers(board[0] / "cells", "tests")
    assert {cell.encoding for cell in answers} == ALL
    assert len(answers) == len(ALL) * 2  # seeds
    assert all(cell.lengths == (32, 64) and all(0 <= share <= 1 for share in cell.accuracy) for cell in answers)
    (table,) = standings_of(board[0] / "cells", season_of(board[1]))
    assert all(row.tasks["find"].seeds == 2 for row in table.rows)


def test_every_text_has_a_profile_of_how_far_back_it_repeats_itself(board):
    profiles = read_profiles(board[0] / "cells", "tests")
    assert len(profiles) == 3
    assert all(len(each.octaves) == len(each.density) > 2 for each in profiles.values())


def test_what_is_done_is_not_done_again(board):
    done = run(*board, "--stage", 1)
    assert done.code == 0
    assert "[1/" not in done.err
    assert "all cells of stage 1" in done.err


def test_cells_that_were_lost_come_back_from_the_runs(board):
    lost = sorted((board[0] / "cells").rglob("small-at_*.json"))[:3]
    kept = {path: path.read_bytes() for path in lost}
    for path in lost:
        path.unlink()
    assert run(*board, "--stage", 1).code == 0
    assert {path: path.read_bytes() for path in lost} == kept


def test_cells_that_were_lost_come_back_from_another_training(board, tmp_path):
    """As on another machine: what is there stays as it is, and what is missing is written."""
    cells = shutil.copytree(board[0] / "cells", tmp_path / "cells")
    lost = next(cell for cell in read_cells(cells, "tests") if cell.encoding == "rope as rope+window")
    (cells / lost.file).unlink()
    kept = {path: path.read_bytes() for path in cells.rglob("*.json")}
    done = run(board[0], board[1], "--cells", cells, "--out", tmp_path / "out", "--stage", 1, "--no-costs")
    assert done.code == 0, done.err
    assert {path: path.read_bytes() for path in kept} == kept
    (made,) = (cell for cell in read_cells(cells, "tests") if cell.key == lost.key)
    assert made.hundredths == lost.hundredths


def test_a_damaged_cell_ends_no_sweep(board, tmp_path):
    cells = shutil.copytree(board[0] / "cells", tmp_path / "cells")
    first, seed = season_of(board[1]).texts[0], season_of(board[1]).seeds(1)[0]
    of_rope = [cell for cell in read_cells(cells, "tests") if (cell.encoding, cell.trained_at) == ("rope", 16)]
    of_rope.sort(key=lambda cell: (cell.seed != seed, cell.text != first))
    damaged, lost, last = of_rope[0], of_rope[1], of_rope[-1]
    (cells / damaged.file).write_text("{")
    for cell in (lost, last):
        (cells / cell.file).unlink()
    done = run(board[0], board[1], "--cells", cells, "--out", tmp_path / "out", "--stage", 1, "--no-costs")
    assert done.code == 5, done.err
    assert f"{damaged.file.name} is not JSON" in done.err
    assert (cells / last.file).exists()


def test_the_board_is_the_same_bytes_twice(board, tmp_path):
    for name in ("one", "two"):
        built = cli("board", "build", "--cells", board[0] / "cells", "--season", board[1], "--to", tmp_path / name)
        assert built.code == 0, built.err
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert {"board.md", "board.csv", "board.json"} <= names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert "2 of 3 seeds" in built.out


def test_a_board_of_encodings_that_no_paper_has_is_built(board, tmp_path):
    season = season_of(board[1])
    texts = season.scored
    plant(tmp_path / "cells", {"smear": (2.0, 1.6), "none": (2.0, 1.8)}, table="small", texts=texts, season=season)
    built = cli("board", "build", "--season", board[1], "--cells", tmp_path / "cells", "--to", tmp_path / "board")
    assert built.code == 0, built.err


def test_what_is_not_ranked_needs_no_control(board, tmp_path):
    lines = board[1].read_text().splitlines(keepends=True)
    without = "".join(line for line in lines if not line.startswith(("control", "ceilings")))
    (tmp_path / "season.toml").write_text(without)
    season = season_of(tmp_path / "season.toml")
    for each in jobs_of_board(season, 1, "cpu", tmp_path / "runs", {"small": None}):
        assert each.is_task or each.job.extrapolate.on == season.texts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--table", "smal"), "has no such table; did you mean small?"),
        (("run", "--season", "nowhere.toml"), "there is no season 'nowhere.toml'"),
        (("run", "--enc", "alibi"), "--enc alibi: not in small of season tests"),
        (("build", "--to", __file__), "is not a folder; choose another folder with --to"),
        (("build", "--cells", "nowhere"), "there are no cells of season tests in nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(board, arguments, message):
    season = () if "--season" in arguments else ("--season", board[1])
    done = cli("board", *arguments, *season)
    assert done.code != 0
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_board_without_a_command_is_refused():
    done = cli("board")
    assert (done.code, done.err) == (2, "error: Missing command; poscli board --help shows what there is\n")


@pytest.mark.parametrize(
    ("line", "other", "message"),
    [
        ("max_len = 32", 'max_len = "2x"', "ceilings are trained on windows of max_len tokens"),
        ("ceilings =", 'extrapolate.max_len = "2x"\nceilings =', "ceilings are trained on windows of max_len tokens"),
        ("readings.rope =", "readings.nope =", "has readings of 'nope', which it does not train; did you mean rope"),
        ("batch = 4", "", "needs length and batch"),
        ("control = ", "# ", "tables with ceilings are ranked, and need a control"),
        ('table = "small"', 'table = "large"', "is of table 'large', which is not there"),
        ('name = "find"', 'name = "small"', "two tables or tasks are called 'small'"),
        ("[extrapolate]", "[extrapolat]", "the key 'extrapolate' is missing"),
    ],
)
def test_a_season_that_cannot_be_is_refused_in_one_line(board, tmp_path, line, other, message):
    text = board[1].read_text()
    assert line in text
    (tmp_path / "wrong.toml").write_text(text.replace(line, other, 1))
    done = cli("board", "build", "--season", tmp_path / "wrong.toml", "--to", tmp_path / "out")
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1), done.err
    assert message in done.err


def test_a_season_without_ceilings_is_trained_and_not_ranked(board, tmp_path):
    (tmp_path / "season.toml").write_text(board[1].read_text().replace('ceilings = ["rope"]', ""))
    cells = shutil.copytree(board[0] / "cells", tmp_path / "cells")
    for cell in read_cells(cells, "tests"):
        if cell.trained_at == 32:
            (cells / cell.file).unlink()
    built = cli("board", "build", "--season", tmp_path / "season.toml", "--cells", cells, "--to", tmp_path / "out")
    more = run(board[0], tmp_path / "season.toml", "--stage", 3)
    for done in (built, more):
        assert (done.code != 0, len(done.err.strip().splitlines())) == (True, 1), done.err
        assert "table 'small' has no ceilings, so that nobody is ranked" in done.err


def test_answers_to_another_task_are_refused(board, tmp_path):
    cells = shutil.copytree(board[0] / "cells", tmp_path / "cells")
    other = read_answers(cells, "tests")[0].model_copy(update={"configuration": "0ther", "lengths": (32, 128)})
    write_kept(cells / other.file, other)
    with pytest.raises(DataError, match=rf"{other.file.name} has configuration 0ther, and the others of 'find' have"):
        standings_of(cells, season_of(board[1]))


def test_runs_of_another_source_give_no_cells(board, tmp_path, monkeypatch):
    """Their losses are not those of the source that is there now."""
    monkeypatch.setattr("poscli.board.gather.code_of", lambda spec, rooms: "0ther000-rooms")
    done = run(*board, "--cells", tmp_path / "cells", "--stage", 1)
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1), done.err
    assert "trained or scored with other code of rope than is there now" in done.err
    deleted = done.err.partition("`poscli rm --out ")[2].split("`")[0].split()
    assert deleted[0] == str(board[0] / "results")
    assert {*deleted[1:]} == {path.name for path in (board[0] / "results" / "runs").iterdir() if path.is_dir()}
    assert not list((tmp_path / "cells").rglob("*.json"))


def test_a_season_may_name_its_texts_by_relative_paths(board, tmp_path, monkeypatch):
    monkeypatch.chdir(board[0])
    text = board[1].read_text().partition("[[task]]")[0].replace(f"text:{board[0]}/", "text:")
    for line in ("control = ", "ceilings = ", "readings.rope = "):
        text = text.replace(line, f"# {line}")
    (tmp_path / "season.toml").write_text(text.replace('"none", "rope"', '"none"'))
    done = run(tmp_path, tmp_path / "season.toml", "--stage", 1, "--no-costs")
    assert done.code == 0, done.err
    assert {cell.text for cell in read_cells(tmp_path / "cells", "tests")} == {"text:a", "text:b"}


def test_with_three_seeds_only_what_is_not_decided_gets_more(board, tmp_path):
    season = season_of(board[1])
    texts = season.scored
    plant(tmp_path, {"none": (2.0, 1.8), "rope as rope+window": (2.0, 1.8), "rope": (2.0, 2.9)}, table="small",
          texts=texts, season=season)  # fmt: skip
    encodings = {"small": None}
    assert undecided(season, tmp_path, encodings) == {"small": ["none", "rope"]}  # rope is what rope+window reads
    assert undecided(season, tmp_path, {"small": ["none"]}) == {"small": ["none"]}


def test_more_seeds_of_a_table_do_not_depend_on_another_one(board, tmp_path):
    """Which may have no ceilings, so that nobody is ranked there."""
    other = '\n[[table]]\nname = "other"\ntitle = "Other models"\nencodings = ["none"]\n'
    file = tmp_path / "season.toml"
    file.write_text(board[1].read_text() + other)
    season = season_of(file)
    plant(tmp_path / "cells", {"none": (2.0, 1.8), "rope": (2.0, 1.8)}, table="small", season=season, seeds=3,
          texts=season.scored)  # fmt: skip
    plant(tmp_path / "cells", {"none": (2.0, 1.8)}, table="other", season=season, texts=season.scored)
    assert undecided(season, tmp_path / "cells", {"small": None}) == {"small": ["none", "rope"]}
    done = run(board[0], file, "--stage", 3, "--table", "small", "--dry-run")
    assert done.code == 0, done.err
    refused = run(board[0], file, "--stage", 3, "--dry-run")
    assert "table 'other' has no ceilings" in refused.err


def test_tables_that_are_decided_get_no_more_seeds(board, tmp_path):
    season = season_of(board[1])
    texts = season.scored
    plant(tmp_path, {"none": (2.0, 1.5), "rope": (2.0, 2.9)}, table="small", texts=texts, season=season)
    more = undecided(season, tmp_path, {"small": None})
    assert more == {"small": ()}
    assert jobs_of_board(season, 5, "cpu", tmp_path / "runs", more) == []


def test_with_tuned_rates_the_top_group_is_that_of_tuned_rates(board, tmp_path):
    season = season_of(board[1])
    plant(tmp_path, {"none": (2.0, 1.5), "rope": (2.0, 2.9)}, table="small", season=season,
          texts=season.scored)  # fmt: skip
    for cell in read_cells(tmp_path, "tests"):
        if cell.trained_at == 16:
            tuned = cell.model_copy(update={"recipe": {"matrix_lr": 0.1}, "hundredths": cell.hundredths[:1] * 2})
            write_kept(tmp_path / tuned.file, tuned)
    assert undecided(season, tmp_path, {"small": None}, tuned=True) == {"small": ["none", "rope"]}


def test_a_dry_run_says_what_is_known_of_what_comes(board, tmp_path):
    first = run(*board, "--stage", 3, "--dry-run", "--json")
    assert {job["seed"] for job in first.json["jobs"]} == {season_of(board[1]).seeds(3)[2]}
    assert "to 3 seeds; which encodings get more follows from what these find" in first.err
    trials = run(board[0], board[1], "--out", tmp_path, "--tuned", "--dry-run", "--json")
    assert len(trials.json["jobs"]) == 9 * 2


@pytest.mark.wide
def test_with_tuned_rates_encodings_have_a_table_of_their_own(board, tmp_path):
    folder = shutil.copytree(board[0], tmp_path / "board")
    done = run(folder, board[1], "--stage", 1, "--tuned", "--no-costs")
    assert done.code == 0, done.err
    cells = [cell for cell in read_cells(folder / "cells", "tests") if cell.recipe]
    assert {cell.encoding for cell in cells} == ALL
    assert {cell.trained_at for cell in cells} == {16}
    built = cli("board", "build", "--cells", folder / "cells", "--season", board[1], "--to", tmp_path / "out", "--json")
    assert [table["tuned"] for table in built.json] == [False, True]
    assert "(tuned)" in built.json[1]["rows"][0]["label"]
