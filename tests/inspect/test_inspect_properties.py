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
from poscli.config.run import ModelConfig
from poscli.encodings import Encoding, get
from poscli.equation import Positions
from poscli.inspect.properties import (
    UNMASKED,
    MeasuredModel,
    Properties,
    Property,
    drift,
    learned_parameters,
    measure_properties,
    order_in_one_layer,
    order_with_mask,
    order_without_mask,
)

LENGTH = 64
CONFIG = ModelConfig(layers=3, width=32, heads=4, mlp=48)
ROPE = get("rope")


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


class LoudInFloat16(Encoding):
    """Overflows float16 from token 100 on, and no other dtype."""

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        return o_BHTD * torch.where(pos < 100, 1.0, 1e6)[:, None].to(o_BHTD.dtype)


def here(name: type) -> str:
    return f"{__name__}:{name.__name__}"


def untrained(spec: str, layers: int = 3) -> MeasuredModel:
    config = CONFIG.model_copy(update={"layers": layers})
    return MeasuredModel.of(spec, config, LENGTH, 0, None)


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


def test_a_single_causal_layer_without_positions_is_blind_to_the_order() -> None:
    assert order_with_mask(untrained("none", layers=1)).value == "no"
    assert order_with_mask(untrained("alibi", layers=1)).value.startswith("yes: ")


def test_the_order_of_one_layer_by_hand() -> None:
    """ALiBi in numpy: the last token's attention before and after the same permutation of earlier tokens."""
    model = untrained("alibi")
    count = 2 * LENGTH
    ids = model.tokens(count).numpy()
    order = np.append(torch.randperm(count - 1, generator=torch.Generator().manual_seed(0)).numpy(), count - 1)
    before, after = (_alibi_of_last_token(model, text) for text in (ids, ids[:, order]))
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert order_in_one_layer(model).numbers["change"][0] == pytest.approx(expected, rel=1e-9)


def _alibi_of_last_token(model: MeasuredModel, ids: Any) -> Any:
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
    found = attend(UNMASKED, encoding, q, k, v, Positions(pos=torch.arange(7)))
    sharper = q * (encoding.s.double()[:, None, None] * math.log(7))  # 7 keys for every query
    torch.testing.assert_close(found, F.scaled_dot_product_attention(sharper, k, v))


# ---- parameters


@pytest.mark.parametrize(
    "spec", ["none", "t5", "shaw", "learned", "transformer-xl", "deberta", "cope|fire", "fire+shaw", "rope|t5"]
)
def test_every_learned_tensor_counts_once(spec: str) -> None:
    model = untrained(spec)
    distinct = {p.data_ptr(): p.numel() for n, p in model.model.named_parameters() if ".encoding." in n}
    row = learned_parameters(model)
    assert row.numbers["total"] == sum(distinct.values())
    assert row.numbers["share_of_model"] == sum(distinct.values()) / model.model.size


def test_what_layers_share_is_said() -> None:
    assert learned_parameters(untrained("none")).value == "none"
    assert learned_parameters(untrained("t5")).value == "128 numbers, shared by all layers"  # 32 buckets, 4 heads
    assert learned_parameters(untrained("kerple-log")).value == "24 numbers, none of them shared by layers"
    assert learned_parameters(untrained("kerple-log", layers=1)).value == "8 numbers, in the only layer"
    assert learned_parameters(untrained("t5|none|t5")).value == "128 numbers, shared by several layers"
    assert learned_parameters(untrained("t5|none|t5")).numbers["by_layer"] == [128, 0, 128]


# ---- rounding


def test_the_error_of_a_rounded_position_by_hand() -> None:
    """bfloat16 has 8 significant bits: it rounds 1023 to 1024 and 255 not at all; float16, with 11, rounds neither."""
    found = drift(untrained(here(Counting))).numbers
    assert found["tokens"] == [32, 64, 256, 1024]
    assert [entry["error"] for entry in found["bfloat16"]] == pytest.approx([0, 0, 0, 1 / 1023])
    assert [entry["error"] for entry in found["float16"]] == [0, 0, 0, 0]


def test_angles_in_a_narrow_dtype_drift() -> None:
    row = drift(untrained(here(NarrowAngles)))
    assert row.value.startswith("bfloat16: ")
    assert row.value.endswith("at 16 L")
    ratios = [entry["ratio"] for entry in row.numbers["bfloat16"]]
    assert ratios[-1] > 20  # position 1023 is off by 1 radian in the fastest pair
    assert ratios == sorted(ratios)


def test_an_error_that_does_not_grow_is_told_from_one_that_does() -> None:
    row = drift(untrained(here(Coarse)))
    assert row.value.startswith("float16: ")  # whose usual error is the smaller one
    assert row.value.endswith("times the usual error at every length")


class Void(Encoding):
    """Scores that are not numbers."""

    def distance_bias(self, d: Tensor) -> Tensor:
        return torch.full((self.shape.heads, *d.shape), torch.nan, dtype=torch.float64)


def test_attention_that_is_not_a_number_has_no_error() -> None:
    entries = drift(untrained(here(Void))).numbers["bfloat16"]
    assert {(entry["error"], entry["refused"]) for entry in entries} == {(None, "attention is not finite")}


def test_the_worst_layer_says_how_far_a_model_drifts() -> None:
    for spec in (f"none|{here(NarrowAngles)}", f"{here(NarrowAngles)}|none"):
        assert drift(untrained(spec)).numbers["bfloat16"][-1]["ratio"] > 20


def test_no_drift_is_said_up_to_the_length_that_both_dtypes_reach() -> None:
    row = drift(untrained(here(LoudInFloat16)))
    assert [entry["error"] is None for entry in row.numbers["float16"]] == [False, False, True, True]
    assert [entry["error"] is None for entry in row.numbers["bfloat16"]] == [False] * 4
    assert row.value == "no drift up to L"


# ---- the whole sheet


@pytest.mark.parametrize("spec", wide(EVERYWHERE))
def test_every_encoding_has_a_sheet(spec: str) -> None:
    sheet = measure_properties(spec, ModelConfig(layers=2, width=32, heads=4, mlp=16), 16)
    record = json.loads(json.dumps(sheet.record(), allow_nan=False))
    assert [row["name"] for row in record["properties"]] == [row.name for row in sheet.rows]
    assert len({row.name for row in sheet.rows}) == 5
    for row in sheet.rows:
        assert row.value
        assert row.detail.endswith(".")


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


def _row(sheet: Properties, name: str) -> Property:
    return next(row for row in sheet.rows if row.name == name)
