"""`poscli predict`: planted laws are found, predictions stay as they were registered, misses come first."""

import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_runner import cli
from planted_board import BYTES, TOKENS, plant, plant_star

from poscli.board.predictions import pairs_told_apart
from poscli.board.scaling import STAR, Size, failure, fit, losses_by_size, read_scaling
from poscli.board.season import season_of
from poscli.specs import parse
from poscli.system.errors import DataError

PER_TOKEN = BYTES / TOKENS  # bits per token of a bit per byte
# By how much 16 L change the loss of the board's models, in bits per byte, and what a doubling of width, layers, L and
# tokens adds to that.
LAWS = {
    "none": (0.8, 0.2, 0.1, 0.4, 0.0),
    "rope": (0.6, 0.0, 0.0, 0.1, 0.1),
    "alibi": (-0.1, 0.0, -0.1, 0.0, 0.0),
    "kerple-log": (-0.2, -0.01, 0.0, 0.0, -0.02),
    "t5(far=0.25L)": (-0.05, 0.0, 0.0, 0.08, 0.0),
    "fox": (-0.12, 0.0, 0.03, 0.02, 0.0),
    "sinusoidal": (0.5, 0.0, 0.0, 0.0, 0.05),
    "shaw": (0.01, 0.0, 0.0, 0.03, 0.0),
    "smear": (-0.15, 0.0, 0.0, 0.0, 0.0),
    "rope+window|none+logn": (-0.18, 0.02, 0.0, 0.0, 0.0),
}
EXACT = {"documents": 4, "seed_sd": 0, "document_sd": 0}
CENTER = Size(width=128, layers=2, length=64, tokens=1_500_000)
LARGER = Size(width=256, layers=8, length=256, tokens=6_000_000)
HELD_OUT = """
name = "larger"
texts = ["code"]

[train]
corpus = "panel"
tokenizer = "bpe:1024"
length = 256
batch = 4
tokens = 6_000_000

[extrapolate]
tokens = 4096

[[table]]
name = "8x256"
title = "Eight layers of width 256"
train.model = { layers = 8, width = 256, heads = 8, mlp = 704 }
encodings = ["none", "rope", "alibi", "kerple-log", "clipped", "path"]
"""


def change(name: str, size: Size) -> float:
    """What 16 L change in an encoding's loss by its law, in bits per byte."""
    at_center, *slopes = LAWS[name]
    return at_center + float(np.dot(slopes, size.logarithms - CENTER.logarithms))


def planted(size: Size) -> dict[str, tuple[float, float]]:
    """The losses at L and 16 L of models of a size."""
    return {str(parse(name)): (2.0, 2.0 + change(name, size)) for name in LAWS}


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cells")
    plant_star(folder, planted)
    board = {**planted(CENTER), "clipped": (2.0, 1.9), "xpos": (2.0, 2.3), "path": (2.0, 2.1), "mine.py:Mine": (2, 2)}
    plant(folder, board, **EXACT)
    return folder


def predict(cells, *options):
    return cli("predict", "--cells", cells, *options)


def sized(size: Size) -> tuple[object, ...]:
    return ("--width", size.width, "--layers", size.layers, "--length", size.length, "--tokens", size.tokens)


def predicted(cells, *options):
    """What is predicted on code, by encoding."""
    document = predict(cells, *options, "--json").json
    return {row["encoding"]: row for row in document["predicted"]["code"]}


@pytest.mark.parametrize("size", [CENTER, LARGER])
def test_a_planted_law_is_found(cells, size):
    found = predicted(cells, *sized(size))
    assert list(found) == [str(parse(spec)) for spec in season_of(STAR).encodings]
    for name in LAWS:
        value, low, high = found[str(parse(name))]["changes"][-1]
        assert value == pytest.approx(PER_TOKEN * change(name, size), abs=0.01)
        assert low <= value <= high


def test_a_size_that_nobody_trains_is_predicted_too(cells):
    assert "extrapolation" in predict(cells, "rope", "--width", 10**30).out


def test_the_order_is_that_of_the_losses_at_the_longest_windows(cells):
    found = predicted(cells, *sized(LARGER))
    by_order = sorted(found, key=lambda name: found[name]["order"][0])
    assert by_order == sorted(map(str, map(parse, LAWS)), key=lambda name: planted(LARGER)[name][1])


def test_what_the_star_lacks_has_the_slopes_of_its_family(cells):
    at_center, larger = (predicted(cells, "xpos", *sized(size))["xpos"] for size in (CENTER, LARGER))
    assert at_center["changes"][-1][0] == pytest.approx(PER_TOKEN * 0.3, abs=0.01)
    of_rope = change("rope", LARGER) - change("rope", CENTER)
    assert larger["changes"][-1][0] - at_center["changes"][-1][0] == pytest.approx(PER_TOKEN * of_rope, abs=0.01)
    assert "what a size changes in xpos is taken from rope" in predict(cells, "xpos").out


def test_a_context_harms_from_where_its_change_is_no_longer_small(cells):
    found = predicted(cells)
    # Changes are linear in the octave here, and 0.02 bits per token are where harm begins.
    rope = 2 ** (4 * 0.02 / (PER_TOKEN * 0.6))
    assert found["rope"]["fails"][0] == pytest.approx(rope, abs=0.02)
    assert found["kerple-log"]["fails"][0] in (None, math.inf)


def test_what_is_recommended_says_what_a_longer_training_length_changes(cells):
    done = cli("recommend", "--cells", cells, "--length", 4096, "--max-len", 65536, "--no-parameters")
    said = " ".join(done.out.split())
    assert done.code == 0, done.err
    assert "From L = 32 to 256, each doubling of L changed its loss at 16x, less that at L, by " in said


def test_slopes_are_what_a_doubling_changes(cells):
    rows = {row["encoding"]: row for row in predict(cells, "--slopes", "--json").json["prose"]}
    for name, (_, *slopes) in LAWS.items():
        found = rows[str(parse(name))]["per_octave"]
        assert [each[0] for each in found.values()] == pytest.approx([PER_TOKEN * slope for slope in slopes], abs=0.01)
    assert "2x width" in predict(cells, "--slopes").out


def test_a_size_beyond_what_was_fitted_is_said_to_be_an_extrapolation(cells):
    assert "extrapolation" not in predict(cells, *sized(CENTER)).out
    assert "width 256 (64 to 192)" in " ".join(predict(cells, *sized(LARGER)).out.split())


def test_only_the_sizes_of_an_encodings_own_models_are_fitted(tmp_path):
    def of_longer_windows_only_rope(size):
        losses = planted(size)
        return losses if size.length < 256 else {"rope": losses["rope"]}

    plant_star(tmp_path, of_longer_windows_only_rope)
    plant(tmp_path, planted(CENTER), **EXACT)
    assert "extrapolation" not in predict(tmp_path, "rope", "--length", 256).out
    assert "length 256 (32 to 128)" in predict(tmp_path, "alibi", "--length", 256).out
    both = " ".join(predict(tmp_path, "alibi", "rope", "--length", 256).out.split())
    assert "length 256 (32 to 128 of alibi)" in both
    advice = cli("recommend", "--cells", tmp_path, "--length", 4096, "--max-len", 65536, "--no-parameters")
    assert "From L = 32 to 128, each doubling" in " ".join(advice.out.split())


def test_a_change_in_several_directions_is_said_to_be_an_extrapolation(cells):
    said = " ".join(predict(cells, "--layers", 4, "--width", 192).out.split())
    assert "extrapolation: width and layers at once (the models differ in one at a time)" in said


def test_where_sizes_cannot_be_told_apart_there_are_no_slopes(cells):
    rows = read_scaling(cells).rows
    rows = rows[(rows["encoding"] == "rope") & (rows["text"] == "code") & (rows["width"] == CENTER.width)]
    found = fit(rows, "change_16x")
    assert all(math.isnan(number) for slope in found.per_octave.values() for number in slope)
    assert math.isnan(failure((2, 4), (math.nan, math.nan)))


def test_a_season_that_was_not_read_up_to_16_L_is_refused(tmp_path):
    season = season_of(None)
    short = season.model_copy(update={"extrapolate": season.extrapolate.model_copy(update={"max_len": 512})})
    plant(tmp_path, {"rope": (2.0, 2.1)}, season=short, **EXACT)
    with pytest.raises(DataError, match="has no loss at 1024 tokens"):
        losses_by_size(tmp_path, season)


def test_missing_sizes_of_documents_are_named(cells, tmp_path):
    folder = shutil.copytree(cells, tmp_path / "cells")
    for season in (None, STAR):
        (lost,) = (folder / season_of(season).name / "documents").glob("code-*.json")
        lost.unlink()
        refused = predict(folder, "--left-out")
        assert (refused.code, len(refused.err.splitlines())) == (4, 1), refused.err
        assert "the sizes of the documents of code are missing among the cells; restore them" in refused.err


def test_each_size_is_predicted_from_the_others(cells):
    sizes = predict(cells, "--left-out", "--json").json
    assert {each["size"]["layers"] for each in sizes} == {2, 4, 8}
    (deepest,) = (each for each in sizes if each["size"]["layers"] == 8)
    fits, board = deepest["by_fits"], deepest["by_board"]
    assert fits["right"] == fits["count"] == board["count"] > board["right"]  # alibi passes kerple-log
    assert deepest["off_by_fits"] < 0.01 < deepest["off_by_board"]
    lines = predict(cells, "--left-out").out.splitlines()
    (deepest_line,) = (line for line in lines if "8 layers" in line)
    assert f"{fits['right']} of {fits['count']}" in deepest_line


def test_encodings_without_a_common_seed_are_told_apart_by_their_means():
    models = pd.DataFrame(
        [("a", 1, 3.0), ("a", 2, 3.1), ("b", 3, 3.5), ("c", 4, 3.06)], columns=["encoding", "seed", "bits_16x"]
    ).assign(text="code")
    both = pd.DataFrame({"encoding": ["a", "b", "c"], "text": "code", "bits_16x_predicted": [2.0, 1.0, 2.0]})
    pairs = pairs_told_apart(both, models)
    assert [(each.one, each.other, each.held) for each in pairs.itertuples()] == [("a", "b", False), ("b", "c", False)]
    assert pairs["found"].tolist() == pytest.approx([-0.45, 0.44])


def test_a_recommendation_says_how_often_other_sizes_have_the_order_of_the_board(cells):
    sizes = predict(cells, "--left-out", "--json").json
    right, count = (sum(each["by_board"][name] for each in sizes) for name in ("right", "count"))
    assert 0 < right < count
    found = cli("recommend", "--length", 64, "--max-len", 1024, "--cells", cells, "--json").json
    assert f"{right} of {count} pairs" in " ".join(found["unknown"])


def test_a_board_without_other_sizes_leaves_none_out(tmp_path):
    plant(tmp_path, {"rope": (2.0, 2.1)}, **EXACT)
    done = predict(tmp_path, "--left-out")
    assert done.code != 0
    assert "too few models of other sizes" in done.err


@pytest.fixture
def held_out(cells, tmp_path) -> Path:
    (tmp_path / "season.toml").write_text(HELD_OUT)
    done = predict(cells, "--register", tmp_path)
    assert done.code == 0, done.err
    return tmp_path


def train(folder: Path, losses, **options) -> None:
    """Plant what the models of a registered folder lose."""
    plant(folder / "cells", losses, season=season_of(folder / "season.toml"), seeds=2, **EXACT, **options)


def test_predictions_that_hold_are_counted(cells, held_out):
    right = {
        name: losses for name, losses in planted(LARGER).items() if name in ("none", "rope", "alibi", "kerple-log")
    }
    train(held_out, right, date="2999-01-01T00:00:00Z")
    found = predict(cells, "--score", held_out, "--json").json
    shares = {share["of"]: (share["right"], share["count"]) for share in found["shares"]}
    assert shares["order"] == (6, 6)
    assert shares["order of the board, nothing fitted"] == (5, 6)  # alibi passes kerple-log
    assert shares["harm or gain at 16 L"] == (4, 4)
    assert shares["change within its 95 % interval"][1] == 16
    assert shares["change within its 95 % interval"][0] >= 8  # planted without noise, intervals are as wide as rounding
    assert shares["failure length within a factor of 1.5"] == (2, 2)
    assert shares["no failure up to 16 L"] == (2, 2)
    assert (found["ceiling"]["right"], found["ceiling"]["count"]) == (6, 6)
    assert (found["misses"], found["failures"]) == ([], [])
    without = predict(held_out / "nowhere", "--score", held_out)
    assert "no cells of the board" in without.err
    assert "nothing fitted" not in without.out
    assert (found["encodings"], found["seeds"]) == (4, 2)


def test_only_texts_of_the_season_are_predicted(cells, tmp_path):
    (tmp_path / "season.toml").write_text(HELD_OUT.replace('["code"]', '["records", "prose"]'))
    assert predict(cells, "--register", tmp_path).code == 0
    assert set(pd.read_csv(tmp_path / "predicted.csv", comment="#")["text"]) == {"prose"}


@pytest.mark.parametrize(
    ("line", "other", "message"),
    [
        ('texts = ["code"]', 'texts = ["records"]', "has no text that is fitted; give it some of code and prose"),
        ('tokenizer = "bpe:1024"', "", "has tokenizer = 'bytes', and the fits are to models of 'bpe:1024'"),
        ('corpus = "panel"', 'corpus = "stdlib"', "has corpus = 'stdlib', and the fits are to models of 'panel'"),
    ],
)
def test_models_that_the_fits_say_nothing_of_are_not_predicted(cells, tmp_path, line, other, message):
    (tmp_path / "season.toml").write_text(HELD_OUT.replace(line, other))
    done = predict(cells, "--register", tmp_path)
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1), done.err
    assert message in done.err


def test_misses_come_first_and_the_largest_of_them_at_the_top(cells, held_out):
    losses = {"none": (2.0, 1.5), "rope": (2.0, 2.9), "alibi": (2.0, 1.7)}
    train(held_out, losses, date="2999-01-01T00:00:00Z")
    lines = predict(cells, "--score", held_out).out.splitlines()
    misses, held = (next(n for n, line in enumerate(lines) if begin in line) for begin in ("misses", "What held"))
    assert misses < held
    assert "none" in lines[misses + 4]
    found = predict(cells, "--score", held_out, "--json").json
    shares = {share["of"]: share for share in found["shares"]}
    assert [(miss["what"], miss["found"]) for miss in found["failures"]] == [("none", None)]  # it gains at any length
    assert shares["change within its 95 % interval"]["right"] <= 4  # of 12: alibi does what is predicted


def test_a_prediction_stays_as_it_was(cells, held_out):
    again = predict(cells, "--register", held_out)
    assert (again.code, "must not change" in again.err) == (2, True)
    file = held_out / "predicted.csv"
    file.write_text(file.read_text().replace("rope", "alibi"))
    train(held_out, {"rope": (2.0, 2.1)}, date="2999-01-01T00:00:00Z")
    changed = predict(cells, "--score", held_out)
    assert changed.code != 0
    assert "is not the prediction that was registered" in changed.err


def test_what_was_trained_before_is_no_prediction(cells, held_out, tmp_path):
    train(held_out, {"rope": (2.0, 2.1)})
    done = predict(cells, "--score", held_out)
    assert (done.code != 0, "before the prediction" in done.err) == (True, True)
    (held_out / "predicted.csv").unlink()
    late = predict(cells, "--register", held_out)
    assert (late.code, "can no longer be predicted" in late.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["tapa"], "no models tell what their size changes in 'tapa'"),
        (["--text", "echo"], "--text 'echo': nothing is fitted there"),
        (["--tokens", "many"], "--tokens 'many'"),
        (["--slopes", "--left-out"], "each shows something else"),
        (["--left-out", "--width", "64"], "--left-out takes no --width"),
        (["--register", "a", "--score", "b"], "between the two lies the training"),
        (["nonsense", "--score", "nowhere", "--text", "bla"], "--score takes no ENCODING and --text"),
        (["--register", "nowhere", "--width", 3], "--register takes no --width"),
        (["--slopes", "--layers", 3], "--slopes takes no --layers"),
        (["--score", "nowhere"], "nowhere has no season.toml, which says what is to be trained"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(cells, options, message):
    done = predict(cells, *options)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_where_an_encoding_of_the_star_is_missing_changes_are_predicted_and_no_order(tmp_path):
    plant_star(tmp_path, lambda size: {name: losses for name, losses in planted(size).items() if name != "fox"})
    plant(tmp_path, planted(CENTER), **EXACT)
    found = predicted(tmp_path, *sized(LARGER))
    assert "fox" not in found
    assert found["rope"]["changes"][-1][0] == pytest.approx(PER_TOKEN * change("rope", LARGER), abs=0.01)
    assert found["rope"]["order"] == [None, None, None]
    assert "alibi" in predict(tmp_path).out
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "season.toml").write_text(HELD_OUT)
    done = predict(tmp_path, "--register", tmp_path / "held")
    assert (done.code, "nothing tells the order of none on code yet" in done.err) == (2, True), done.err


def test_of_an_edited_encoding_the_newest_source_counts(tmp_path):
    plant_star(tmp_path, planted)
    plant(tmp_path, planted(CENTER), source="0ld", **EXACT)
    before = predicted(tmp_path)["rope"]
    plant(tmp_path, {"rope": (2.0, 1.0)}, source="new", date="2999-01-01T00:00:00Z", **EXACT)
    after = predicted(tmp_path)["rope"]
    assert after["changes"][-1][0] < before["changes"][-1][0]
    with_old = cli("predict", "rope", "--slopes", "--json", "--cells", tmp_path).json["code"][0]
    assert with_old["models"] == 10 + 3  # a model for each size of the star, and three seeds of the board


def test_without_other_sizes_it_says_how_to_train_them(tmp_path):
    plant(tmp_path, planted(CENTER), seeds=1, **EXACT)
    done = predict(tmp_path)
    assert done.code != 0
    assert "poscli board run --season star" in done.err
