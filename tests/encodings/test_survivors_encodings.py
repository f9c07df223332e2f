"""Numbers of encodings by hand, where options leave their defaults or positions the training length."""

from __future__ import annotations

import pytest
import torch
from toys import HEAD_WIDTH, make, shape

from poscli.encodings import missing, names
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
        "alibi", "alibi-2d", "complex", "floater", "hierarchical", "interpolated", "learned", "learned-2d", "logn",
        "longrope", "randomized", "sandwich", "sink", "sinusoidal", "sinusoidal-2d", "t5", "t5-2d", "temper",
        "tupe", "window",
    }  # fmt: skip


BOUNDS = {  # of options: values that are allowed, and the nearest that are not, at a training length of 24
    "alibi": (["most=0.1, scale=0.1"], ["most=0", "scale=0"]),
    "clipped": (["clip=1"], ["clip=0"]),
    "convolution": (["width=1"], ["width=0"]),
    "cope": (["max_pos=2"], ["max_pos=1"]),
    "cpb": (["hidden=1"], ["hidden=0"]),
    "dape": (["hidden=1"], ["hidden=0", "base=rope", "base=path"]),
    "deberta": (["span=2", "span=4, buckets=4"], ["span=1", "span=3, buckets=4", "span=9, buckets=3"]),
    "fire": (["hidden=1", "threshold=0.1"], ["hidden=0", "threshold=0", "threshold=-1"]),
    "floater": (["hidden=0", "step=1", "dt=0.1"], ["hidden=-1", "step=0", "dt=0"]),
    "dual-chunk": (
        ["chunk=1", "chunk=24", "chunk=20, local=0", "chunk=20, local=4"],
        ["chunk=0", "chunk=25", "chunk=20, local=-1", "chunk=20, local=5"],
    ),
    "fope": (["sigma=0"], ["sigma=-0.1"]),
    "fourier": (["terms=1"], ["terms=0"]),
    "gaussian": (["terms=1"], ["terms=0"]),
    "grape-additive": (["probe=2"], ["probe=0", "probe=3"]),
    "hierarchical": (["alpha=0.6"], ["alpha=0", "alpha=1", "alpha=0.5"]),
    "interpolated": (["factor=1"], ["factor=0.9"]),
    "llama3": (["low=1, high=2", "original=2"], ["low=0, high=2", "low=2, high=2", "original=1"]),
    "logn": (["length=2"], ["length=1"]),
    "longrope": (
        ["keep_first=0", "search=0", "attention=0.1"],
        ["keep_first=-1", "search=-1", "attention=0", "original=1"],
    ),
    "p-rope": (["p=0", "p=1", "factor=1"], ["p=-0.1", "p=1.1", "factor=0.9"]),
    "path": (["rank=1"], ["rank=0"]),
    "polynomial": (["degree=1"], ["degree=0"]),
    "pope": (["base=1.1"], ["base=1"]),
    "randomized": (["max=24"], ["max=23"]),
    "rerope": (["window=1"], ["window=0"]),
    "rope": (
        ["base=1.1", "fraction=0.25", "fraction=1"],
        ["base=1", "fraction=0", "fraction=1.1", "fraction=0.125", "fraction=0.1"],
    ),
    "rope-clip": (["clip=0", "clip=4"], ["clip=-1", "clip=5"]),
    "rope-dropped": (["recalibrate=0", "recalibrate=1"], ["recalibrate=-0.1", "recalibrate=1.1"]),
    "rope-dynamic": (["factor=1", "original=2"], ["factor=0.9", "original=1"]),
    "rope-linear": (["factor=1", "original=2"], ["factor=0.9", "original=1"]),
    "sandwich": (["width=2", "base=1.1"], ["width=0", "width=3", "base=1"]),
    "self-extend": (
        ["window=8, group=1", "window=23", "window=24, group=2"],
        ["window=8, group=0", "window=24"],
    ),
    "shaw": (["clip=1"], ["clip=0"]),
    "sink": (["count=1"], ["count=0"]),
    "string": (["shift=1", "shift=3, local=3", "local=0"], ["shift=0", "shift=3, local=4", "local=-1"]),
    "t5": (["buckets=2, far=2"], ["buckets=1", "buckets=4, far=2"]),
    "temper": (["c=0", "length=1", "search=0", "search=2"], ["c=-0.1", "length=0", "search=-1", "search=1"]),
    "window": (["width=1"], ["width=0"]),
    "yarn": (
        ["beta_slow=1, beta_fast=2", "attention=0.1", "original=2"],
        ["beta_slow=0, beta_fast=2", "beta_slow=2, beta_fast=2", "attention=0", "original=1"],
    ),
}
WITHIN = [f"{name}({options})" for name, (allowed, _) in BOUNDS.items() for options in allowed]
BEYOND = [f"{name}({options})" for name, (_, refused) in BOUNDS.items() for options in refused]


def joined(spec: str) -> str:
    """The spec joined to what it needs beside it."""
    return spec + {"sink": "+window", "randomized": "+rope", "logn": "+rope", "temper": "+rope"}.get(
        spec.partition("(")[0], ""
    )


@pytest.mark.parametrize("spec", WITHIN)
def test_options_reach_to_their_bounds(spec: str) -> None:
    check(joined(spec), shape(24))


@pytest.mark.parametrize("spec", BEYOND)
def test_options_are_refused_beyond_their_bounds(spec: str) -> None:
    with pytest.raises(UsageError, match=r"must be|must lie|needs |need an even|cannot be"):
        check(joined(spec), shape(24))


USABLE = {name for name in names() if not missing(name)}
ABSOLUTE = {"complex", "fire", "floater", "grape-additive", "hierarchical", "learned", "sinusoidal", "tupe"}
# Sums of waves, and groups that are counted from the start of the text, depend on more than the distance, too.
ABSOLUTE |= {"dual-chunk", "fope", "self-extend", "learned-2d", "sinusoidal-2d"}
# Without a factor, these are scaled by the length of the text that is read.
SCALED = {"interpolated", "llama3", "longrope", "rope-dynamic", "rope-linear", "rope-ntk", "self-extend", "yarn"}


def test_all_encodings_but_thirteen_see_distances_only() -> None:
    assert {name for name in USABLE if not make(name).relative} == ABSOLUTE & USABLE


def test_only_scaled_and_randomized_positions_depend_on_the_length_of_the_text() -> None:
    assert {name for name in USABLE if make(name).rescales} == SCALED | {"randomized"}


def test_buckets_of_deberta_are_logarithmic_between_their_middle_and_the_span() -> None:
    """Distance 7 of a span of 9 and 12 buckets: 6 + ceil(log(7/6) / log(8/6) * 5) = 6 + ceil(2.68)."""
    encoding = make("deberta(span=9, buckets=12)")
    assert encoding.bucket(torch.arange(12)).tolist() == [0, 1, 2, 3, 4, 5, 6, 9, 11, 11, 11, 11]
