"""After how many steps a task is learned: from the logs of trainings, by seed, with what was never reached."""

from __future__ import annotations

import pandas as pd

from poscli.config.run import RunConfig
from poscli.report.accuracy import learned_after
from poscli.report.collect import Trained
from poscli.report.data import Analysis

EVERY, TOKENS = 100, 1000  # steps between two questions, and tokens of a step


def analysis(shares: dict[tuple[str, int], list[float]], **changes: object) -> Analysis | None:
    """The analysis of runs by (encoding, seed), whose shares of right answers are asked every hundred steps."""
    ids = {key: f"{key[0]}-{key[1]}" for key in shares}
    rows = pd.DataFrame([{"run_id": ids[key], "encoding": key[0], "seed": key[1]} for key in shares])
    runs = {
        ids[key]: Trained(
            RunConfig(encoding=key[0]),
            {},
            **{
                "tokens": EVERY * TOKENS * len(each),
                "learned": tuple((n * EVERY, n * EVERY * TOKENS, share) for n, share in enumerate(each, 1)),
            }
            | changes,
        )
        for key, each in shares.items()
    }
    return learned_after(rows, runs, pd.DataFrame({"encoding": list(dict.fromkeys(rows["encoding"]))}))


def cells(made: Analysis | None) -> dict[str, tuple[str, ...]]:
    assert made is not None
    return {column.name: column.cells for column in made.columns}


def test_the_step_is_the_first_from_which_on_ninety_percent_are_right_to_the_end() -> None:
    """What is reached and lost again does not count; exactly 90 % does."""
    made = analysis(
        {
            ("fox", 0): [0.1, 0.9, 0.95, 1.0],
            ("fox", 1): [0.1, 0.95, 0.89, 0.9],
            ("fox", 2): [0.9, 0.9, 0.9, 0.9],
            ("rope", 0): [0.1, 0.2, 0.3, 1.0],
            ("rope", 1): [0.1, 0.2, 0.9, 1.0],
            ("rope", 2): [0.1, 0.95, 0.638, 0.639],
            ("none", 0): [0.1, 0.2, 0.3, 0.4],
            ("none", 1): [0.1, 0.2, 0.899, 0.4],
            ("none", 2): [0.1, 0.2, 0.9, 0.9],
        }
    )
    assert cells(made) == {
        "encoding": ("fox", "rope", "none"),
        "seed 0": ("200", "400", "never (best 40 %)"),
        "seed 1": ("400", "300", "never (best 89 %)"),
        "seed 2": ("100", "never (best 95 %)", "300"),
        "median": ("200", "400", "never"),
        "range": ("100 to 400", "300 to never", "300 to never"),
        "tokens": ("200,000", "400,000", "never"),
    }
    assert made
    assert made.answer == 'Soonest: fox after 200 steps; latest: rope after 400 steps; never: "none".'
    assert "to the end of training (400), at least 90 %" in made.legend[0]
    assert "asked every 100 steps" in made.legend[0]


def test_one_seed_has_no_median_and_nobody_may_learn_it() -> None:
    assert list(cells(analysis({("rope", 3): [0.1, 1.0]}))) == ["encoding", "seed 3", "tokens"]
    made = analysis({("rope", 0): [0.1, 0.1], ("fox", 1): [0.2, 0.7]})
    assert made is not None
    assert made.answer == "No encoding learns to give 90 % of the answers."
    assert cells(made)["seed 0"] == ("never (best 10 %)", "-")
    assert cells(made)["range"] == ("never", "never")


def test_logs_without_answers_and_models_under_another_encoding_say_nothing() -> None:
    assert analysis({("rope", 0): []}) is None
    assert analysis({("rope as yarn", 0): [1.0]}, trained_as="rope") is None
