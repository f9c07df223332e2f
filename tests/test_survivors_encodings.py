"""Numbers of encodings by hand, where options leave their defaults or positions the training length."""

from __future__ import annotations

import pytest
import torch
from toys import HEAD_WIDTH, make, shape

from poscli.encodings.hierarchical import decompose
from poscli.report.catalogue import describe_encodings
from poscli.specs import check
from poscli.system.errors import UsageError


def test_a_position_beyond_a_hierarchys_rows_is_two_of_them() -> None:
    """p_j + a / (1 - a) (p_i - p_0) with a = 0.4: a factor of 2/3, for position 5 = 1 * 3 + 2."""
    table = torch.tensor([[1.0], [4.0], [10.0]], dtype=torch.float64)
    assert decompose(table, torch.tensor([5, 7]), 0.4)[:, 0].tolist() == pytest.approx([10 + 3 * 2 / 3, 4 + 9 * 2 / 3])


def test_phases_of_pope_have_its_base() -> None:
    phases = make("pope(base=50)").phases(torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert phases[0].tolist() == [0.0] * HEAD_WIDTH
    assert phases[1].tolist() == pytest.approx([2 * 50 ** (-c / HEAD_WIDTH) for c in range(HEAD_WIDTH)])


def test_ntk_slows_the_slowest_pair_by_its_factor_and_the_fastest_not_at_all() -> None:
    pos = torch.arange(3, dtype=torch.float64)
    rope, ntk = (make(spec).theta(pos) for spec in ("rope(base=50)", "rope-ntk(factor=4, base=50)"))
    assert (rope / ntk)[[0, -1]].tolist() == pytest.approx([1.0, 4.0])
    assert (rope / ntk).tolist() == pytest.approx([4 ** (m / 3) for m in range(4)])


@pytest.mark.parametrize(("buckets", "smallest"), [(4, 4), (8, 6), (9, 6), (16, 10)])
def test_buckets_of_deberta_need_distances_beyond_their_middle(buckets: int, smallest: int) -> None:
    """Half of the buckets are single distances; the logarithm of the others needs `span` - 1 above their middle."""
    check(f"deberta(span={smallest}, buckets={buckets})", shape())
    with pytest.raises(UsageError, match=f"span > buckets / 2 [+] 1, got buckets={buckets}, span={smallest - 1}"):
        check(f"deberta(span={smallest - 1}, buckets={buckets})", shape())


def test_encodings_of_which_all_layers_use_one_instance() -> None:
    """As their papers say, or because they learn nothing and are applied outside attention."""
    assert {row["name"] for row in describe_encodings() if row["shared"]} == {
        "alibi", "complex", "floater", "hierarchical", "interpolated", "learned", "logn", "longrope", "randomized",
        "sandwich", "sink", "sinusoidal", "t5", "tupe", "window",
    }  # fmt: skip
