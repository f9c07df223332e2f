"""What holds when a cell is made again on another CPU, where a training ends as with another seed."""

from dataclasses import replace

import pytest
from planted_board import plant

from poscli.board.bundle import compare_again, entry_on_board
from poscli.system.errors import UsageError

NAMES = [
    "none", "rope", "alibi", "kerple-log", "fox", "t5", "fire", "smear", "cable", "bam", "window", "shaw", "cope",
    "xpos", "p-rope", "pope", "fope", "dape", "sandwich", "clipped",
]  # fmt: skip


def test_the_cells_that_are_made_again_are_of_two_models(tmp_path):
    season = plant(tmp_path, dict.fromkeys(NAMES[:2], (1.5, 1.6)))
    known = entry_on_board("rope", season, tmp_path)
    for number in range(40):
        drawn = replace(known, digest=str(number)).drawn()
        assert len({cell.seed for cell in drawn}) == 2


def test_a_cell_that_scored_other_documents_is_compared_with_nothing(tmp_path):
    known = entry_on_board("rope", plant(tmp_path, dict.fromkeys(NAMES[:2], (1.5, 1.6))), tmp_path)
    with pytest.raises(UsageError, match="scored other documents of code than this machine has"):
        compare_again(known, known.cells[0].model_copy(update={"text": "code", "documents": "0ther"}))


def test_a_model_that_diverged_holds_if_it_does_so_again(tmp_path):
    known = entry_on_board("rope", plant(tmp_path, dict.fromkeys(NAMES[:2], (1.5, 1.6))), tmp_path)
    lost = {"documents": "", "status": ("diverged",) * 5, "hundredths": ((),) * 5}
    cell = next(cell for cell in known.cells if cell.text == "code")
    failed = cell.model_copy(update=lost)
    among = replace(known, cells=tuple(failed if each is cell else each for each in known.cells))
    alone = replace(known, cells=tuple(each.model_copy(update=lost) for each in known.cells))
    for bundle in (among, alone):
        assert compare_again(bundle, failed).holds
        assert not compare_again(bundle, cell).holds
    assert not compare_again(known, failed).holds


def test_true_cells_of_another_cpu_are_seldom_refused_and_better_ones_are_found(tmp_path):
    season = plant(tmp_path, dict.fromkeys(NAMES, (1.5, 1.6)), seeds=4)
    first, *others, fourth = season.seeds(4)
    refused = count = 0
    for name in NAMES:
        known = entry_on_board(name, season, tmp_path)
        bundle = replace(known, cells=tuple(cell for cell in known.cells if cell.seed in (first, *others)))
        for cell in known.cells:
            if cell.seed == fourth:  # in place of the first seed
                origin = cell.origin.model_copy(update={"cpu": "another"})
                again = compare_again(bundle, cell.model_copy(update={"seed": first, "origin": origin}))
                refused, count = refused + (not again.holds), count + 1
        losses = tuple(tuple(n + 2000 for n in line) for line in cell.hundredths)  # as if it had been better than it is
        made = cell.model_copy(update={"seed": first, "origin": origin, "hundredths": losses})
        assert not compare_again(bundle, made).holds
    assert count == 100
    assert refused <= 4
