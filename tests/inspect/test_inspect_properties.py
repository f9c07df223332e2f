"""The property sheet: known truths, numbers worked out by other means, and a sheet for every encoding."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from toys import EVERYWHERE, wide

from poscli.attention import attend
from poscli.bench.timing import Pace, Timing
from poscli.config.run import ModelConfig
from poscli.encodings import Encoding, get
from poscli.equation import Positions
from poscli.inspect.properties import Properties, Property, cost, drift, measure_properties, safe_length, unmasked
from poscli.inspect.properties.order import equivariance, order_in_one_layer, order_with_mask, order_without_mask
from poscli.inspect.properties.parameters import parameters
from poscli.inspect.properties.safe_length import safe_lengths
from poscli.inspect.properties.shift import shift_invariance
from poscli.inspect.properties.tested_model import TestedModel
from poscli.system.errors import UsageError
from poscli.verify import probe

LENGTH = 64
CONFIG = ModelConfig(layers=3, width=32, heads=4, mlp=48)
ROPE = get("rope")


class Doubling(Encoding):
    """Doubles the output from position L on: a shift by L changes attention by 100 percent."""

    relative = False

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        return o_BHTD * (1 + (pos >= LENGTH))[:, None].to(o_BHTD.dtype)


class Undeclared(Doubling):
    relative = True


class Overdeclared(get("alibi")):
    relative = False


class Counting(Encoding):
    """The output is the position itself, rounded to the dtype."""

    relative = False

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        return 0 * o_BHTD + pos[:, None].to(o_BHTD.dtype)


class NarrowAngles(ROPE):
    """Rope whose angles are computed in the dtype of the queries, as in careless code."""

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self.rotate(q_BHTD, (pos[:, None].to(q_BHTD.dtype) * self.theta(pos).to(q_BHTD.dtype)))

    key = query


class Coarse(Encoding):
    """Rounds the output to eighths in every dtype but float64, wherever the token is."""

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        return o_BHTD if o_BHTD.dtype == torch.float64 else (8 * o_BHTD).round() / 8


class Float32Angles(ROPE):
    """Rope whose angles are computed in float32, as most code has them."""

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self.rotate(2 * q_BHTD, (pos[:, None].float() * self.theta(pos).float()).double())

    key = query


class LoudInFloat16(Encoding):
    """Overflows float16 from token 100 on, and no other dtype."""

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        return o_BHTD * torch.where(pos < 100, 1.0, 1e6)[:, None].to(o_BHTD.dtype)


class Boasting(Encoding):
    """Overflows float16 after 1,000 tokens, and declares a million."""

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD * torch.where(pos < 1000, 1.0, math.inf)[:, None].to(q_BHTD.dtype)

    def longest(self, dtype: torch.dtype) -> int:
        return 10**6


class Sideways(Encoding):
    """The output depends on the column, and not on the row."""

    axes, relative = 2, False

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        return o_BHTD * (1 + pos[:, 1:]).to(o_BHTD.dtype)


def here(name: type) -> str:
    return f"{__name__}:{name.__name__}"


def untrained(spec: str, layers: int = 3) -> TestedModel:
    config = CONFIG.model_copy(update={"layers": layers})
    return TestedModel.of(spec, config, LENGTH, 0, None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn of each timing, and a short search."""
    monkeypatch.setattr(cost, "PACE", Pace(repeats=1, seconds=0.0, sample=0.0))
    monkeypatch.setattr(probe, "SECONDS_OF_SEARCH", 0.02)


@pytest.mark.parametrize("spec", ["none", "alibi", "rope", "t5", "window(9)", "fox", "rope|none", "randomized+none"])
def test_these_are_shift_invariant(spec: str) -> None:
    row = shift_invariance(untrained(spec))
    assert row.value.startswith("yes")
    assert row.numbers["agrees"]


@pytest.mark.parametrize("spec", ["sinusoidal", "complex", "fire(threshold=1)", "rope-dynamic", "sinusoidal+alibi"])
def test_these_are_not(spec: str) -> None:
    row = shift_invariance(untrained(spec))
    assert row.value.startswith("no: ")
    assert row.numbers["agrees"]


def test_a_change_by_a_shift_is_relative_to_the_output() -> None:
    row = shift_invariance(untrained(here(Doubling)))
    assert row.numbers["change"] == pytest.approx({"1 token": 0, "L": 1, "4 L": 1, "16 L": 1}, abs=1e-12)
    assert row.value == "no: 100% at a shift of 16 L"


def test_one_layer_that_is_not_invariant_makes_the_model_so() -> None:
    for spec in (f"{here(Doubling)}|none", f"none|{here(Doubling)}"):
        row = shift_invariance(untrained(spec))
        assert row.value == "no: 100% at a shift of 16 L"
        assert (row.numbers["declared"], row.numbers["agrees"]) == (False, True)


def test_rounding_of_angles_grows_with_the_position_and_is_no_change() -> None:
    row = shift_invariance(untrained(here(Float32Angles)))
    assert row.value == "yes"
    assert row.numbers["change"]["16 L"] > 1e-7  # far more than the rounding of float64


def test_learned_positions_end_where_training_did() -> None:
    model = untrained("learned")
    assert shift_invariance(model).value.endswith("refuses a shift of L")
    lengths = safe_lengths(model)
    assert lengths.value == f"{LENGTH} tokens"
    assert f"learned has {LENGTH} positions" in lengths.detail
    assert drift.drift(model).value == "no drift up to L"


@pytest.mark.parametrize(("cls", "declared"), [(Undeclared, "is invariant"), (Overdeclared, "is not invariant")])
def test_a_wrong_declaration_is_said(cls: type[Encoding], declared: str) -> None:
    row = shift_invariance(untrained(here(cls)))
    assert row.numbers["agrees"] is False
    assert f"contradicts the class, which declares that it {declared}" in row.detail


def test_on_a_grid_rows_and_columns_are_shifted() -> None:
    assert shift_invariance(untrained("rope-2d")).value == "yes"
    row = shift_invariance(untrained(here(Sideways)))
    changed = {label for label, change in row.numbers["change"].items() if change > 1e-9}
    assert changed == {"1 column", "8 columns", "16 columns", "32 columns"}  # 64 cells are a grid of 8 x 8
    assert row.value.endswith("at a shift of 32 columns")


# ---- order


@pytest.mark.parametrize(
    ("spec", "one_layer", "mask", "without"),
    [
        ("none", False, True, False),
        ("ssmax", False, True, False),
        ("sinusoidal", True, True, True),
        ("rope", True, True, True),
        ("rope-2d", True, True, True),
        ("alibi", True, True, None),
        ("cope", True, True, None),
    ],
)
def test_who_sees_the_order_of_the_tokens(spec: str, one_layer: bool, mask: bool, without: bool | None) -> None:
    model = untrained(spec)
    assert order_in_one_layer(model).numbers["sensitive"] == one_layer
    assert order_with_mask(model).numbers["sensitive"] == mask
    assert order_without_mask(model).numbers["sensitive"] == without
    assert equivariance(model).numbers["equivariant"] == (None if without is None else not without)


def test_a_single_causal_layer_without_positions_is_blind_to_the_order() -> None:
    assert order_with_mask(untrained("none", layers=1)).value == "no"
    assert order_with_mask(untrained("alibi", layers=1)).value.startswith("yes: ")


def test_layers_that_differ_are_told_apart() -> None:
    row = order_in_one_layer(untrained("none|alibi|none"))
    assert [change > 1e-9 for change in row.numbers["change"]] == [False, True, False]
    assert row.value.startswith("no | yes: ")


def test_the_order_of_one_layer_by_hand() -> None:
    """ALiBi in numpy: the last token's attention before and after the same permutation of earlier tokens."""
    model = untrained("alibi")
    count = 2 * LENGTH
    ids = model.tokens(count).numpy()
    order = np.append(torch.randperm(count - 1, generator=torch.Generator().manual_seed(0)).numpy(), count - 1)
    before, after = (_alibi_of_last_token(model, text) for text in (ids, ids[:, order]))
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert order_in_one_layer(model).numbers["change"][0] == pytest.approx(expected, rel=1e-9)


def _alibi_of_last_token(model: TestedModel, ids: Any) -> Any:
    attention = model.model.attention[0]
    x = model.model.embedding.double().numpy()[ids]
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    q, k, v = (
        (x @ part.weight.double().numpy().T).reshape(*x.shape[:2], CONFIG.heads, -1)
        for part in (attention.q, attention.k, attention.v)
    )
    out = []
    for head in range(CONFIG.heads):
        slope = 2.0 ** (-8 * (head + 1) / CONFIG.heads)
        s = np.einsum("bd,bkd->bk", q[:, -1, head], k[:, :, head]) / math.sqrt(q.shape[-1])
        s = s - slope * np.arange(x.shape[1])[::-1]
        p = np.exp(s - s.max(-1, keepdims=True))
        out.append(np.einsum("bk,bkd->bd", p / p.sum(-1, keepdims=True), v[:, :, head]))
    return np.stack(out, 1)


def test_without_the_mask_every_query_sees_every_key() -> None:
    encoding = untrained("ssmax").exact[0]
    q, k, v = (
        torch.randn(2, 4, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in range(3)
    )
    found = attend(unmasked.UNMASKED, encoding, q, k, v, Positions(pos=torch.arange(7)))
    sharper = q * (encoding.s.double()[:, None, None] * math.log(7))  # 7 keys for every query
    torch.testing.assert_close(found, F.scaled_dot_product_attention(sharper, k, v))


# ---- parameters


@pytest.mark.parametrize(
    "spec", ["none", "t5", "shaw", "learned", "transformer-xl", "deberta", "cope|fire", "fire+shaw", "rope|t5"]
)
def test_every_learned_tensor_counts_once(spec: str) -> None:
    model = untrained(spec)
    distinct = {p.data_ptr(): p.numel() for n, p in model.model.named_parameters() if ".encoding." in n}
    row = parameters(model)
    assert row.numbers["total"] == sum(distinct.values())
    assert row.numbers["share_of_model"] == sum(distinct.values()) / model.model.size


def test_what_layers_share_is_said() -> None:
    assert parameters(untrained("none")).value == "none"
    assert parameters(untrained("t5")).value == "128 numbers, shared by all layers"  # 32 buckets, 4 heads
    assert parameters(untrained("kerple-log")).value == "24 numbers, none of them shared by layers"
    assert parameters(untrained("kerple-log", layers=1)).value == "8 numbers, in the only layer"
    assert parameters(untrained("t5|none|t5")).value == "128 numbers, shared by several layers"
    assert parameters(untrained("t5|none|t5")).numbers["by_layer"] == [128, 0, 128]


# ---- lengths and rounding


def test_without_a_known_limit_the_length_is_one_that_every_dtype_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = {torch.float16: (500, True), torch.bfloat16: (4096, False), torch.float32: (2048, False)}
    monkeypatch.setattr(safe_length, "longest_finite", lambda encoding, dtype, seed: reached[dtype])
    assert safe_lengths(untrained("none")).value == "float16 500; bfloat16 and float32 at least 2,048 tokens"


def test_the_largest_input_of_xpos() -> None:
    """Zeta = 0.4/1.4 to the power of half the positions over 512 must not overflow, nor its inverse underflow."""
    row = safe_lengths(untrained("xpos"))
    bits = {"float16": 14, "bfloat16": 126, "float32": 126}  # the smallest normal number is 2^-bits
    expected = {name: 1 + int(2 * 512 * n * math.log(2) / math.log(1.4 / 0.4)) for name, n in bits.items()}
    assert {name: entry["tokens"] for name, entry in row.numbers.items()} == expected
    assert expected["float16"] == 7933
    assert row.value == "float16 7,933; bfloat16 and float32 71,389 tokens"
    assert row.numbers["float16"]["agrees"]


def test_a_promise_that_does_not_hold_is_said() -> None:
    row = safe_lengths(untrained(here(Boasting)))
    assert row.numbers["float32"]["tokens"] == 1000
    assert row.numbers["float32"]["agrees"] is False
    assert "attention in float16 is not finite" in row.detail
    assert "contradicts the class" in row.detail


def test_the_error_of_a_rounded_position_by_hand() -> None:
    """bfloat16 has 8 significant bits: it rounds 1023 to 1024 and 255 not at all; float16, with 11, rounds neither."""
    found = drift.drift(untrained(here(Counting))).numbers
    assert found["tokens"] == [32, 64, 256, 1024]
    assert [entry["error"] for entry in found["bfloat16"]] == pytest.approx([0, 0, 0, 1 / 1023])
    assert [entry["error"] for entry in found["float16"]] == [0, 0, 0, 0]


@pytest.mark.parametrize("spec", ["rope", "alibi", "none", "rope-2d"])
def test_these_do_not_drift(spec: str) -> None:
    """Rope rounds cos and sin, q and k, and products of them: a few units of rounding, at any position."""
    row = drift.drift(untrained(spec))
    assert row.value == "no drift up to 16 L"
    for dtype in (torch.float16, torch.bfloat16):
        errors = [entry["error"] for entry in row.numbers[str(dtype).removeprefix("torch.")]]
        assert max(errors) < 4 * torch.finfo(dtype).eps
        assert max(errors) < 3 * min(errors)


def test_angles_in_a_narrow_dtype_drift() -> None:
    row = drift.drift(untrained(here(NarrowAngles)))
    assert row.value.startswith("bfloat16: ")
    assert row.value.endswith("at 16 L")
    ratios = [entry["ratio"] for entry in row.numbers["bfloat16"]]
    assert ratios[-1] > 20  # position 1023 is off by 1 radian in the fastest pair
    assert ratios == sorted(ratios)


def test_an_error_that_does_not_grow_is_told_from_one_that_does() -> None:
    row = drift.drift(untrained(here(Coarse)))
    assert row.value.startswith("float16: ")  # whose usual error is the smaller one
    assert row.value.endswith("times the usual error at every length")


def test_a_length_that_the_encoding_refuses_has_no_error() -> None:
    entries = drift.drift(untrained("learned")).numbers["float16"]
    assert [entry["error"] is None for entry in entries] == [False, False, True, True]
    assert "learned has 64 positions" in entries[-1]["refused"]


class Void(Encoding):
    """Scores that are not numbers."""

    def distance_bias(self, d: Tensor) -> Tensor:
        return torch.full((self.shape.heads, *d.shape), torch.nan, dtype=torch.float64)


def test_attention_that_is_not_a_number_has_no_error() -> None:
    entries = drift.drift(untrained(here(Void))).numbers["bfloat16"]
    assert {(entry["error"], entry["refused"]) for entry in entries} == {(None, "attention is not finite")}


def test_the_worst_layer_says_how_far_a_model_drifts() -> None:
    for spec in (f"none|{here(NarrowAngles)}", f"{here(NarrowAngles)}|none"):
        assert drift.drift(untrained(spec)).numbers["bfloat16"][-1]["ratio"] > 20


def test_no_drift_is_said_up_to_the_length_that_both_dtypes_reach() -> None:
    row = drift.drift(untrained(here(LoudInFloat16)))
    assert [entry["error"] is None for entry in row.numbers["float16"]] == [False, False, True, True]
    assert [entry["error"] is None for entry in row.numbers["bfloat16"]] == [False] * 4
    assert row.value == "no drift up to L"


def test_the_shortest_limit_of_all_layers_counts() -> None:
    for spec in (f"xpos|{here(Boasting)}", f"{here(Boasting)}|xpos"):
        found = safe_lengths(untrained(spec)).numbers["float16"]
        assert (found["tokens"], found["declared"], found["agrees"]) == (1000, 7933, False)


# ---- cost


@pytest.mark.usefixtures("quick")
def test_cost_names_the_engine_of_the_model_and_the_lengths() -> None:
    time, memory = cost.cost(untrained("rope"))
    assert time.numbers["engine"] == untrained("rope").model.engine
    assert list(time.numbers["lengths"]) == list(memory.numbers["lengths"]) == ["64", "256", "1024"]
    assert all(entry["seconds"] > 0 for entry in time.numbers["lengths"].values())


@pytest.mark.usefixtures("quick")
def test_a_length_that_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "LONGEST", 0.0)
    time, _ = cost.cost(untrained("rope"))
    assert list(time.numbers["lengths"]) == ["64"]
    assert "4 L would take about" in time.detail


def test_time_is_foreseen_to_grow_with_the_squared_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both together take 0.14 s at L: 4 L would take 16 times as long, which is more than two seconds."""
    monkeypatch.setattr(cost, "in_turns", lambda works, *_: [Timing((0.07,), 1.0, "process")] * len(works))
    time, _ = cost.cost(untrained("rope"))
    assert list(time.numbers["lengths"]) == ["64"]
    assert time.detail.endswith("4 L would take about 2 s a run.")


def test_time_is_that_with_the_encoding_over_that_without() -> None:
    def pair(seconds: float) -> tuple[Timing, Timing]:
        return Timing((3 * seconds, seconds, 2 * seconds), 1.0, "case"), Timing((1.0, 1.0, 0.5), 1.0, "case")

    where = {"engine": "native", "engine_without": "sdpa", "threads": 1}
    row = cost.time_row(untrained("rope"), {64: pair(1.0), 1024: pair(2.0)}, "", where)
    assert row.value == "2.00 times at L, 4.00 times at 16 L"
    near = row.numbers["lengths"]["64"]
    assert (near["seconds"], near["seconds_without"], near["turns"]) == (2.0, 1.0, 3)
    assert (near["ratio"], near["ratio_low"], near["ratio_high"]) == (2.0, 1.0, 4.0)
    assert row.detail.startswith("One attention layer, forward, 1 thread: 2000 ms at L, 4000 ms at 16 L on the engine")
    assert row.detail.endswith("; without encoding 1000 ms, 1000 ms on sdpa.")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(10.0, 40.0, "at most in proportion to L"), (10.0, 160.0, "as L^2"), (10.0, 80.0, "faster than L")],
)
def test_how_memory_grows(before: float, after: float, words: str) -> None:
    sizes = {256: before, 1024: after}
    found = {n: (Timing((1.0,), mb, "case"), Timing((1.0,), 8.0, "case")) for n, mb in sizes.items()}
    row = cost.memory_row(untrained("rope"), found)
    assert row.value == f"{after - 8:.0f} MiB more at 16 L, grows {words}"
    assert row.numbers["growth"] == after / before


def test_memory_that_the_system_does_not_report() -> None:
    found = {64: (Timing((1.0,), 900.0, "process"), Timing((1.0,), 900.0, "process"))}
    assert cost.memory_row(untrained("rope"), found).value == "not measured"


# ---- the whole sheet


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("spec", wide(EVERYWHERE))
def test_every_encoding_has_a_sheet(spec: str) -> None:
    sheet = measure_properties(spec, ModelConfig(layers=4, width=32, heads=4, mlp=16), 16)
    record = json.loads(json.dumps(sheet.record(), allow_nan=False))
    assert [row["name"] for row in record["properties"]] == [row.name for row in sheet.rows]
    assert len({row.name for row in sheet.rows}) == 10
    for row in sheet.rows:
        assert row.value
        assert row.detail.endswith(".")
        assert row.numbers.get("agrees") is not False, row.detail


@pytest.mark.usefixtures("quick")
def test_a_trained_model_is_measured_and_left_as_it_is() -> None:
    trained = untrained("alibi(trainable=true)").model.requires_grad_(True)
    with torch.no_grad():
        trained.encodings[0].slope.mul_(0)  # ALiBi without slopes is no encoding
    before = copy.deepcopy(trained.state_dict())
    sheet = measure_properties("alibi(trainable=true)", CONFIG, LENGTH, model=trained)
    assert sheet.trained
    assert _row(sheet, "order seen by one layer").value == "no"
    assert all(torch.equal(before[name], value) for name, value in trained.state_dict().items())
    assert all(p.requires_grad for p in trained.parameters())
    assert all(attention.wanted is None for attention in trained.attention)


def test_the_number_of_threads_is_that_of_the_caller_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    with pytest.raises(UsageError):
        measure_properties("alibbi", CONFIG, LENGTH)
    assert set_to == [1, 7]


def test_a_spec_that_cannot_be_trained_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean alibi"):
        measure_properties("alibbi", CONFIG, LENGTH)


def _row(sheet: Properties, name: str) -> Property:
    return next(row for row in sheet.rows if row.name == name)
