"""The standings from cells: the order, what ranks are left open, who has none, and what damaged cells say."""

import re
import shutil

import pytest
from lines import printed
from planted_board import plant

from poscli.board.cells import read_cells, write_kept
from poscli.board.show import show_standings
from poscli.board.standings import INCOMPLETE, RANKED, UNDERTRAINED, standings_of
from poscli.board.tables import answers_of
from poscli.system.errors import CorruptError, DataError

# Bits per byte at L and at 16 L. What there is to win is 0.5: 2.0 is the best at L, 1.5 the best trained at 16 L.
LOSSES = {
    "best": (2.0, 1.75),
    "as good": (2.0, 1.75),
    "holds": (2.0, 2.0),
    "breaks": (2.0, 2.5),
    "undertrained": (2.6, 1.6),
}
DOCUMENTS = 64


def row_of(table, encoding):
    return next(row for row in table.rows if row.encoding == encoding)


def test_regret_is_0_for_the_best_trained_long_and_1_for_the_best_at_L(table):
    for name, regret in (("best", 0.5), ("holds", 1.0), ("breaks", 2.0)):
        row = row_of(table, name)
        assert row.regret[0] == pytest.approx(regret, abs=0.25)
        assert row.regret[1] < regret + 0.1
        assert row.regret[2] > regret - 0.1
    assert row_of(table, "best").used[0] == pytest.approx(0.5, abs=0.1)


def test_ranks_are_open_where_nothing_is_shown(table):
    ranks = {row.encoding: row.ranks for row in table.rows}
    assert ranks == {"best": "1 to 2", "as good": "1 to 2", "holds": "3", "breaks": "4", "undertrained": ""}
    assert {row.encoding for row in table.top} == {"best", "as good"}
    assert ("best", "holds") in table.better
    assert ("best", "as good") not in table.better
    assert set(table.without) == set(table.texts)


def test_lengths_are_called_safe_or_harmful_only_where_that_is_shown(table):
    assert (row_of(table, "holds").safe, row_of(table, "holds").harmful != row_of(table, "holds").harmful) == (16, True)
    assert (row_of(table, "breaks").safe, row_of(table, "breaks").harmful) == (1, 2)


def test_a_narrow_terminal_gets_whole_columns_and_explains_no_others(table):
    for width, there in ((220, True), (80, False)):
        shown = printed(lambda console: show_standings([table], console), width)
        assert max(map(len, shown.splitlines())) <= width
        assert all(row.encoding in shown for row in table.rows)
        assert "…" not in shown
        assert (" control" in shown, "control: the gain" in shown) == (there, there)


def test_an_undertrained_encoding_has_no_rank_however_well_it_reads_far(table):
    row = row_of(table, "undertrained")
    assert (row.status, row.first) == (UNDERTRAINED, 0)
    assert re.search(r"is 2\.\d+ times that of (best|as good|holds|breaks); the limit is 1\.25", row.why)


def test_an_encoding_without_all_cells_is_listed_and_not_ranked(made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "cells")
    lost = next(cell for cell in read_cells(folder, made[1].name) if cell.encoding == "holds" and cell.text == "code")
    (folder / lost.file).unlink()
    (table,) = standings_of(folder, made[1])
    row = row_of(table, "holds")
    assert row.status == INCOMPLETE
    assert sum(other.status == RANKED for other in table.rows) == 3
    assert row.why.endswith("1 cell missing to 3")


def test_two_seeds_give_an_order_and_no_rank(tmp_path):
    season = plant(tmp_path, LOSSES, seeds=2)
    (table,) = standings_of(tmp_path, season)
    assert [row.status for row in table.rows] == [INCOMPLETE] * len(LOSSES)
    assert row_of(table, "best").regret[0] < row_of(table, "breaks").regret[0]


def changed(folder, season, change):
    """Write the cells of a folder again, with what `change` says of each; None leaves it as it is."""
    for cell in read_cells(folder, season.name):
        if update := change(cell):
            (folder / cell.file).unlink()
            write_kept(folder / cell.file, cell.model_copy(update=update))


def test_encodings_add_no_parameters_where_they_have_those_of_none(tmp_path):
    """The fewest of a table are not enough: without `none` nobody knows what the model has alone."""
    season = plant(tmp_path, {"none": (2.0, 2.5), "rope": (2.0, 1.9), "t5": (2.0, 1.75)})
    counts = {"none": 3000, "rope": 3000, "t5": 5000}
    changed(tmp_path, season, lambda cell: {"parameters": counts[cell.encoding]})
    (table,) = standings_of(tmp_path, season)
    assert any("without parameters of their own, the best is rope" in said for said in answers_of(table))
    for cell in read_cells(tmp_path, season.name):
        if cell.encoding == "none":
            (tmp_path / cell.file).unlink()
    (table,) = standings_of(tmp_path, season)
    assert not any("without parameters of their own" in said for said in answers_of(table))


def test_where_nobody_has_a_rank_it_is_said_who_lacks_what(tmp_path):
    season = plant(tmp_path, {"none": (2.0, 2.5)}, seeds=2)
    (table,) = standings_of(tmp_path, season)
    assert answers_of(table) == ["Nobody is ranked yet: 1 encoding has fewer than three seeds on all texts."]
    cells = tmp_path / "failing"
    plant(cells, {"none": (2.0, 2.5), "rope": (2.0, 2.0)}, seeds=2)
    failed = {"status": ("ok", "ok", "ok", "ok", "oom")}
    changed(cells, season, lambda cell: failed if (cell.encoding, cell.trained_at) == ("rope", 64) else None)
    (table,) = standings_of(cells, season)
    why = "1 encoding has fewer than three seeds on all texts and 1 encoding has no losses at some length"
    assert answers_of(table) == [f"Nobody is ranked yet: {why}."]


@pytest.mark.parametrize("damage", ["digit", "cut", "hash"])
def test_a_changed_cell_is_named(made, tmp_path, damage):
    folder = shutil.copytree(made[0], tmp_path / "cells")
    path = folder / read_cells(folder, made[1].name)[7].file
    text = path.read_text()
    if damage == "digit":
        at = text.index('"hundredths": [[') + len('"hundredths": [[')
        text = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
    text = text[: len(text) // 2] if damage == "cut" else text
    path.write_text(text.replace('"sha256": "', '"sha256": "0') if damage == "hash" else text)
    with pytest.raises(CorruptError, match=path.name):
        standings_of(folder, made[1])


@pytest.mark.parametrize(
    ("change", "message"), [({"configuration": "other"}, "another season"), ({"documents": "other"}, "other documents")]
)
def test_cells_that_do_not_belong_together_are_refused(made, tmp_path, change, message):
    folder = shutil.copytree(made[0], tmp_path / "cells")
    cell = read_cells(folder, made[1].name)[0]
    (folder / cell.file).unlink()
    cell = cell.model_copy(update=change)
    write_kept(folder / cell.file, cell)
    with pytest.raises(DataError, match=message):
        standings_of(folder, made[1])


def test_sizes_of_documents_that_are_damaged_are_not_to_be_deleted(made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "cells")
    path = min((folder / made[1].name / "documents").iterdir())
    path.write_text(path.read_text().replace("16", "17"))
    with pytest.raises(CorruptError, match=rf"{path.name} .*; restore it from where the cells are kept$"):
        standings_of(folder, made[1])


def test_of_several_tunings_the_row_is_that_of_most_cells(made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "cells")
    for cell in read_cells(folder, made[1].name):
        if cell.encoding == "holds":
            tuned = cell.model_copy(update={"recipe": {"matrix_lr": 0.1}})
            write_kept(folder / tuned.file, tuned)
            if cell.seed == made[1].seeds(1)[0]:  # on another machine, later
                later = cell.origin.model_copy(update={"date": "2026-02-01T00:00:00Z"})
                losses = tuple(tuple(n + 500 for n in line) for line in cell.hundredths)
                other = {"recipe": {"matrix_lr": 0.2}, "origin": later, "hundredths": losses}
                write_kept(folder / cell.model_copy(update=other).file, cell.model_copy(update=other))
    (published, tuned) = standings_of(folder, made[1])
    (row,) = tuned.rows
    assert row.rates == {"matrix_lr": 0.1}
    assert row.loss == row_of(published, "holds").loss


def test_without_a_model_trained_at_the_longest_length_there_is_no_baseline(made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "cells")
    for cell in read_cells(folder, made[1].name):
        if cell.trained_at == 1024:
            (folder / cell.file).unlink()
    with pytest.raises(DataError, match="no baseline"):
        standings_of(folder, made[1])


@pytest.mark.parametrize(("trained_long", "why"), [(2.2, "loses 2."), (1.99, "loses 1.")])
def test_a_text_on_which_a_longer_context_wins_nothing_is_named(tmp_path, trained_long, why):
    """Regret would be upside down, or noise over noise, and the worst encoding could have rank 1."""
    season = plant(tmp_path, LOSSES, trained_long=trained_long, document_sd=0, seed_sd=0)
    with pytest.raises(DataError, match=rf"cannot be ranked on \w+: .* {why}"):
        standings_of(tmp_path, season)


def test_an_interval_does_not_shrink_when_the_best_trained_long_loses_seeds(tmp_path):
    losses = {"best": (2.0, 1.75), "holds": (2.0, 2.0)}
    season = plant(tmp_path, losses, seeds=5, seed_sd=0.05, document_sd=0, draw=2)
    (five,) = standings_of(tmp_path, season)
    for cell in read_cells(tmp_path, season.name):
        if cell.trained_at == 1024 and cell.seed in season.seeds(5)[3:]:
            (tmp_path / cell.file).unlink()
    (three,) = standings_of(tmp_path, season)
    assert row_of(three, "best").seeds == 5
    (_, low, high), (_, low_of_five, high_of_five) = row_of(three, "best").regret, row_of(five, "best").regret
    assert high - low > high_of_five - low_of_five


def test_the_best_at_L_is_not_one_of_fewer_seeds(tmp_path):
    season = plant(tmp_path, LOSSES | {"lucky": (1.9, 1.9)})
    for cell in read_cells(tmp_path, season.name):
        if cell.encoding == "lucky" and cell.seed != season.seeds(1)[0]:
            (tmp_path / cell.file).unlink()
    (table,) = standings_of(tmp_path, season)
    assert "lucky" not in {each.cut_of for each in table.ceilings}


def test_a_cell_is_never_changed(made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "cells")
    cell = read_cells(folder, made[1].name)[0]
    assert not write_kept(folder / cell.file, cell)  # the same again
    with pytest.raises(CorruptError, match="something else"):
        write_kept(folder / cell.file, cell.model_copy(update={"parameters": cell.parameters + 1}))


def test_a_newer_source_of_an_encoding_replaces_the_older_one(made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "cells")
    for cell in read_cells(folder, made[1].name):
        if cell.encoding == "breaks":
            later = cell.origin.model_copy(update={"date": "2026-02-01T00:00:00Z"})
            losses = tuple(tuple(n - 100 for n in line) for line in cell.hundredths)
            newer = cell.model_copy(update={"source": "0dd", "origin": later, "hundredths": losses})
            write_kept(folder / newer.file, newer)
    (table,) = standings_of(folder, made[1])
    assert row_of(table, "breaks").source == "0dd"
    assert row_of(table, "breaks").loss[0] < 1.99
