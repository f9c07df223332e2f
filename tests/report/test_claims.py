"""Published claims: which verdict numbers give, and where a report says what it could not measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from fake_pages import task_tables
from fake_results import LN2, Shape, results, units_of

from poscli.config.claim import Claim, Condition
from poscli.report import About, build_report

LENGTHS = (64, 256, 1024)
# gains in bits per byte at 16x: alibi none, fox +0.2, rope -0.4, and none at all for learned
SHAPES: dict[str, Shape] = {
    "alibi": (1.4, lambda octaves: 0.0),
    "fox": (1.4, lambda octaves: 0.05 * octaves * LN2),
    "rope": (1.4, lambda octaves: -0.1 * octaves * LN2),
    "learned": (1.4, None),
    "rope as yarn(factor=4.0)": (1.4, lambda octaves: 0.0),
}


def said(
    tmp_path: Path, *claims: Claim, seeds: Sequence[int] = (0, 1, 2), lost: Sequence[tuple[str, int]] = ()
) -> tuple[str, ...]:
    """What a report on the shapes says of claims; the runs of `lost`, by encoding and seed, have no numbers."""
    rows, positions = results(SHAPES, seeds=seeds, train_length=64, lengths=LENGTHS)
    failed = pd.Series(list(zip(rows["encoding"], rows["seed"], strict=True)), rows.index).isin(lost)
    numbers = ["nll", "bpb", "ppl", "gain", "gain_low", "gain_high"]
    rows = rows.assign(status=rows["status"].mask(failed, "oom"), **{name: rows[name].mask(failed) for name in numbers})
    about = About(claims=claims)
    (section,) = build_report(rows, positions, tmp_path, details={"units": units_of(rows)}, about=about).sections
    named = [each for each in section.analyses if each.title.startswith("Which published claims")]
    return named[0].points if named else ()


def claim(*conditions: Condition) -> Claim:
    return Claim(says="It holds.", source="arXiv:0000.00000", when=list(conditions))


def when(of: str, at: float = 16, **bounds: float | bool | str) -> Condition:
    return Condition.model_validate({"of": of, "at": at} | bounds)


VERDICTS: list[tuple[list[Condition], str]] = [
    # context gains: +0.2 for fox, -0.4 for rope
    ([when("fox", more=0.1)], "replicated"),
    ([when("rope", less=-0.1)], "replicated"),
    ([when("rope", more=-0.1)], "not replicated"),
    ([when("fox", less=0.1)], "not replicated"),
    ([when("fox", more=0.199, less=0.201)], "cannot be seen at this size"),
    ([when("alibi", more=-0.05, less=0.05)], "replicated"),
    # losses, over those of another
    ([when("rope", over="fox", more=0.5)], "replicated"),
    ([when("fox", over="rope", more=0.5)], "not replicated"),
    ([when("rope", at=1, over="fox", more=-0.01, less=0.01)], "replicated"),
    # one that fails decides, whatever the others; one that is undecided leaves it open
    ([when("fox", more=0.1), when("rope", more=-0.1)], "not replicated"),
    ([when("fox", more=0.199, less=0.201), when("rope", more=-0.1)], "not replicated"),
    ([when("fox", more=0.199, less=0.201), when("rope", less=-0.1)], "cannot be seen at this size"),
    # models evaluated under another encoding, in any spelling
    ([when("rope as yarn(factor=4)", over="rope", less=-0.3)], "replicated"),
    ([when("rope(base=10000) as yarn(factor=4)", more=-0.01)], "replicated"),
    # what is taken for granted
    ([when("rope", less=-0.1, given=True), when("fox", more=0.1)], "replicated"),
    ([when("rope", more=-0.1, given=True), when("fox", more=0.1)], "cannot be seen at this size"),
    ([when("rope", more=-0.1, given=True), when("fox", less=0.1)], "cannot be seen at this size"),
    # no number
    ([when("learned", more=0.1)], "not measured"),
    ([when("fox", over="learned", more=0.1)], "not measured"),
    ([when("rope", at=2, less=-0.1)], "not measured"),
    ([when("t5", more=0.1)], "not measured"),
    ([when("fox", over="t5", more=0.1)], "not measured"),
]


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """What one report says of a claim of each of VERDICTS: claims do not see each other."""
    return said(tmp_path_factory.mktemp("claims"), *(claim(*conditions) for conditions, _ in VERDICTS))


@pytest.mark.parametrize("n", range(len(VERDICTS)))
def test_the_verdict_on_a_claim(cards: tuple[str, ...], n: int) -> None:
    assert cards[n].startswith(f"{VERDICTS[n][1]}: It holds. (arXiv:0000.00000). ")


def test_two_seeds_replicate_nothing(tmp_path: Path) -> None:
    (text,) = said(tmp_path, claim(when("fox", more=0.1)), seeds=(0, 1))
    assert text.startswith("cannot be seen at this size")
    assert text.endswith("2 seeds (at least 3 are needed)")


def test_seeds_that_are_not_behind_a_number_do_not_count(tmp_path: Path) -> None:
    """Of three seeds each, two runs failed, of different seeds: two gains are known, and one difference."""
    claims = claim(when("fox", more=0.1)), claim(when("rope", over="fox", more=0.5))
    for text, seeds in zip(said(tmp_path, *claims, lost=[("fox", 0), ("rope", 1)]), ("2 seeds", "1 seed"), strict=True):
        assert text.startswith("cannot be seen at this size")
        assert text.endswith(f". {seeds} (at least 3 are needed)")


def test_a_card_has_the_number_its_interval_the_bound_and_the_seeds(tmp_path: Path) -> None:
    (text,) = said(tmp_path, claim(when("rope(base=10000)", over="fox", more=0.5)))
    found = "loss of rope(base=10000) minus that of fox at 16x: +0.600 [+0.5"
    assert found in text
    assert text.endswith("bits per byte; claimed is above +0.5, which holds. 3 seeds")


def test_a_report_without_claims_has_no_cards(tmp_path: Path) -> None:
    assert said(tmp_path) == ()


def test_claims_of_a_task_are_about_right_answers(tmp_path: Path) -> None:
    """Alibi always finds what it is asked for, rope less at each length."""
    rows, positions, details = task_tables()
    claims = (
        claim(when("alibi", more=0.9)),
        claim(when("rope", more=0.9)),
        claim(when("alibi", over="rope", more=0.1)),
        claim(when("fox", more=0.9)),
    )
    report = build_report(rows, positions, tmp_path, details=details, about=About(claims=claims))
    points = next(each.points for each in report.sections[0].analyses if each.title.startswith("Which published"))
    assert [point.split(":")[0] for point in points] == ["replicated", "not replicated", "replicated", "not measured"]
    assert "accuracy of alibi minus that of rope at 16x" in points[2]


def test_each_section_has_the_claims_about_its_encodings(tmp_path: Path) -> None:
    """Two training lengths with other encodings: a claim about none of them stands in the first section."""
    one = results({name: SHAPES[name] for name in ("alibi", "fox")}, seeds=range(3), train_length=64, lengths=LENGTHS)
    two = results({name: SHAPES[name] for name in ("rope",)}, seeds=range(3), train_length=128, lengths=(128, 512))
    rows, positions = (pd.concat(pair, ignore_index=True) for pair in zip(one, two, strict=True))
    claims = (claim(when("fox", more=0.1)), claim(when("rope", at=4, less=-0.1)), claim(when("t5", more=0.1)))
    report = build_report(rows, positions, tmp_path, details={"units": units_of(rows)}, about=About(claims=claims))
    found = {}
    for section in report.sections:
        for each in section.analyses:
            if each.title.startswith("Which published"):
                found[section.train_length] = [point.split(":")[0] for point in each.points]
    assert found == {64: ["replicated", "not measured"], 128: ["replicated"]}
