"""Properties of position embeddings and wrappers beside their formulas: random draws, initial values, equalities."""

from __future__ import annotations

import pytest
import torch
from toys import LENGTH, WIDTH, make, model, shape

from poscli.encodings import Shape, get
from poscli.encodings.learned import noise
from poscli.equation import Unsupported
from poscli.specs import check
from poscli.system.errors import UsageError

FAR = 16 * LENGTH


def added(spec: str, pos: torch.Tensor) -> torch.Tensor:
    """The term `[T, W]` that an encoding adds to the embeddings."""
    return make(spec).embed(torch.zeros(1, len(pos), WIDTH), pos, torch.zeros(1, len(pos), dtype=torch.long))[0]


# learned, hierarchical


@pytest.mark.parametrize("spec", ["hierarchical", "learned(beyond=hierarchical)", "learned(beyond=random)", "learned"])
def test_positions_seen_in_training_have_the_learned_rows(spec: str) -> None:
    """Exactly, as the formula adds only zeros to the row there."""
    assert torch.equal(added(spec, torch.arange(LENGTH)), make("learned").table)


@pytest.mark.parametrize("spec", ["hierarchical", "learned(beyond=interpolate)", "learned(beyond=random)"])
def test_every_position_has_a_row_of_its_own(spec: str) -> None:
    rows = added(spec, torch.arange(FAR))
    apart = torch.cdist(rows, rows) + 100 * torch.eye(FAR)
    assert apart.min() > 1e-2


def test_positions_beyond_a_hierarchy_are_refused() -> None:
    with pytest.raises(Unsupported, match=f"{LENGTH} rows reach {FAR} positions, not position {FAR}"):
        added("hierarchical", torch.arange(FAR + 1))
    for alpha in (0, 0.5, 1, -0.2, 1.4):
        with pytest.raises(UsageError, match=rf"alpha must lie between 0 and 1 and not be 0.5, got {alpha}"):
            check(f"hierarchical(alpha={alpha})", shape())


@pytest.mark.parametrize("beyond", ["refuse", "interpolate", "random", "hierarchical"])
def test_rows_are_interpolated_between_whole_positions(beyond: str) -> None:
    low, quarter, high = added(f"learned(beyond={beyond})", torch.tensor([3, 3.25, 4], dtype=torch.float64))
    torch.testing.assert_close(quarter, 0.75 * low + 0.25 * high)


def test_random_rows_depend_on_their_positions_only() -> None:
    many = noise(torch.arange(3000), 64)
    alone = torch.cat([noise(torch.tensor([k]), 64) for k in (0, 255, 256, 2999)])
    assert torch.equal(many[[0, 255, 256, 2999]], alone)
    errors = 5 / many.numel() ** 0.5  # five standard errors
    assert abs(float(many.mean())) < errors
    assert abs(float(many.std()) - 1) < errors


# floater, complex


def test_a_position_of_floater_does_not_depend_on_the_others() -> None:
    whole = added("floater(step=3)", torch.arange(40))
    for pos in (torch.tensor([39]), torch.arange(20), torch.arange(38, 40), torch.tensor([0])):
        torch.testing.assert_close(added("floater(step=3)", pos), whole[pos], rtol=0, atol=8 * 2**-23)


def test_floater_evaluates_its_net_four_times_a_step() -> None:
    """Runge-Kutta 4 needs that; a solver that chooses its steps may need a hundred times as many."""
    encoding = get("floater")(Shape(width=128, heads=4, layers=4, length=512), step=8)
    evaluated: list[int] = []
    encoding.h.register_forward_hook(lambda *_: evaluated.append(1))
    with torch.inference_mode():
        assert encoding.path(torch.arange(8192)).isfinite().all()
    assert len(evaluated) <= 4 * (8192 // 8) + 1  # and one for the slopes between steps


# randomized, interpolated


def test_positions_are_drawn_once_per_step_for_all_layers() -> None:
    trained, stream = model("rope+randomized(40)"), torch.Generator().manual_seed(7)
    index, seen = torch.arange(LENGTH), []
    for _ in range(3):
        trained.begin_step(0.5, stream)
        drawn = [encoding.positions(index) for encoding in trained.encodings]
        assert all(torch.equal(pos, drawn[0]) for pos in drawn)
        assert (drawn[0].diff() > 0).all()
        assert int(drawn[0][-1]) < 40
        seen.append(drawn[0])
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    again = model("rope+randomized(40)")
    again.begin_step(0.5, torch.Generator().manual_seed(7))
    assert torch.equal(again.encodings[0].positions(index), seen[0])


def test_evaluation_draws_from_a_fixed_seed() -> None:
    trained, index = model("randomized(40)"), torch.arange(LENGTH)
    fixed = model("randomized(40)", seed=3).encodings[0].positions(index)  # no step has begun
    trained.begin_step(0.5, torch.Generator().manual_seed(7))
    encoding = trained.encodings[0]
    assert not torch.equal(encoding.positions(index), fixed)
    assert len(encoding.positions(torch.arange(9))) == 9  # a length other than that of the step
    trained.eval()
    assert torch.equal(encoding.positions(index), fixed)
    with pytest.raises(Unsupported, match="41 tokens need as many positions, and randomized has 40"):
        encoding.positions(torch.arange(41))


def test_every_position_is_drawn() -> None:
    encoding, stream = make("randomized"), torch.Generator().manual_seed(7)
    drawn = torch.cat([encoding.subset(LENGTH, stream) for _ in range(200)])
    counts = torch.bincount(drawn, minlength=FAR)
    assert len(counts) == FAR
    assert counts.min() > 0
    assert counts.max() < 40  # 12.5 on average


def test_interpolated_positions_stay_within_the_training_length() -> None:
    encoding = make("interpolated")
    for count in (1, LENGTH, LENGTH + 1, FAR):
        pos = encoding.positions(torch.arange(count))
        assert float(pos[-1]) < LENGTH
        assert torch.equal(pos, torch.arange(count)) == (count <= LENGTH)
