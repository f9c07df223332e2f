"""Parts of formulas over their whole range, which the oracles sample only: buckets, thresholds, large positions."""

from __future__ import annotations

import pytest
import torch
from oracles import libraries as lib
from torch import Tensor
from toys import HEAD_WIDTH, draw, make, shape

from poscli.encodings import get
from poscli.encodings.t5 import bucket

TOKENS = 23
FAR = 16 * 512  # sixteen times a usual training length

# t5


@pytest.mark.parametrize(
    ("buckets", "far"), [(32, 128), (32, 1024), (16, 64), (8, 20), (2, 2), (3, 9), (7, 100), (64, 33)]
)
def test_t5_buckets(buckets: int, far: int) -> None:
    d = torch.arange(100_001)
    found = bucket(d, buckets, far)
    theirs = lib.t5.T5Attention._relative_position_bucket(
        -d, bidirectional=False, num_buckets=buckets, max_distance=far
    )
    assert torch.equal(found, theirs)
    assert found.max() == buckets - 1


# fire


def test_fire_with_a_far_threshold_is_a_function_of_the_distance() -> None:
    encoding, length = get("fire")(shape(), threshold=2), shape().length
    first = torch.arange(length)
    assert torch.equal(encoding.ratio(first, first), encoding.ratio(first + length, first + length))
    beyond = first + length + 2  # the last two queries are at 2 L and after it
    assert not torch.equal(encoding.ratio(first, first), encoding.ratio(beyond, beyond))
    assert float(encoding.ratio(torch.tensor([2 * length]), torch.tensor([0])).detach()) == pytest.approx(1)
    assert [name for name, part in encoding.named_parameters() if not part.requires_grad] == ["threshold"]


def test_a_threshold_of_fire_counts_by_its_size() -> None:
    encoding, pos = make("fire"), torch.arange(TOKENS)
    ratios = []
    for threshold in (1.7, -1.7):
        with torch.no_grad():
            encoding.threshold.fill_(threshold)
        ratios.append(encoding.ratio(pos, pos))
    assert torch.equal(*ratios)


# rope


def rotated(spec: str, x: Tensor, pos: Tensor, heads: int = 2) -> Tensor:
    encoding = make(spec, shape(heads=heads, width=heads * x.shape[-1]))
    assert torch.equal(encoding.query(x, pos), encoding.key(x, pos))
    return encoding.query(x, pos)


POSITIONS = torch.tensor([0, 1, 2, 100, 511, 512, 5000, FAR - 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rope_is_accurate_at_large_positions_in_any_dtype(dtype: torch.dtype) -> None:
    """bfloat16 holds no odd numbers past 256: angles computed in it would be off by radians."""
    x = draw(1, 2, len(POSITIONS), 32, dtype=dtype)
    exact, found = rotated("rope", x.double(), POSITIONS), rotated("rope", x, POSITIONS)
    assert found.dtype == dtype
    assert float((found - exact).abs().max()) < 4 * torch.finfo(dtype).eps * float(x.abs().max())


# options of encodings that the oracles leave at their defaults


def test_phases_of_pope_have_its_base() -> None:
    phases = make("pope(base=50)").phases(torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert phases[0].tolist() == [0.0] * HEAD_WIDTH
    assert phases[1].tolist() == pytest.approx([2 * 50 ** (-c / HEAD_WIDTH) for c in range(HEAD_WIDTH)])


def test_a_unit_of_time_of_floater_is_dt_positions() -> None:
    pos = torch.arange(40)
    fine, coarse = (make(f"floater({options})", dtype=torch.float64) for options in ("step=30", "step=3, dt=0.1"))
    torch.testing.assert_close(coarse.path(pos), fine.path(10 * pos), rtol=0, atol=1e-12)
