"""Properties of the scaled rotary encodings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, LENGTH, draw, make, model, perturbed, rounding, tokens

from poscli.encodings import Encoding, get, names
from poscli.encodings.rope import RoPE
from poscli.encodings.rope_linear import RoPELinear

# Float64 angles up to 4 LENGTH are rounded by some units, and a rotated number of order 1 changes by as much.
ANGLES = 4 * 4 * LENGTH * 2**-52
SCALED = [name for name in names() if issubclass(get(name), RoPELinear)]


def logits(spec: str, count: int) -> Tensor:
    return perturbed(model(spec)).requires_grad_(False)(tokens(2, count))


def query(encoding: Encoding, pos: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    return encoding.query(draw(1, HEADS, len(pos), HEAD_WIDTH, dtype=dtype), pos)


@pytest.mark.parametrize("name", SCALED)
def test_up_to_the_training_length_it_is_rope(name: str) -> None:
    for count in (LENGTH // 2, LENGTH):
        limit = rounding(perturbed(model("rope")), tokens(2, count))
        torch.testing.assert_close(logits(name, count), logits("rope", count), rtol=0, atol=limit)
    assert not torch.allclose(logits(name, LENGTH + 1), logits("rope", LENGTH + 1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", SCALED)
def test_without_a_factor_it_follows_the_current_length(name: str) -> None:
    encoding = make(name)
    assert encoding.rescales
    pos = torch.arange(4 * LENGTH)
    if name != "rope-dynamic":  # whose factor multiplies s
        fixed = make(f"{name}(factor=4)")
        assert not fixed.rescales
        torch.testing.assert_close(query(fixed, pos), query(encoding, pos), rtol=0, atol=ANGLES)
        torch.testing.assert_close(fixed.angles(pos[:5]), fixed.angles(pos)[:5], rtol=1e-14, atol=0)
    assert not torch.allclose(encoding.angles(pos[:-LENGTH])[1], encoding.angles(pos)[1], rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", [*SCALED, "p-rope"])
def test_no_number_is_copied_from_the_device(name: str) -> None:
    """Tensors on the device `meta` hold no numbers: copying one raises an error."""
    there = query(make(name), torch.arange(3 * LENGTH, device="cpu"), torch.float32)
    pos = torch.arange(3 * LENGTH, device="meta")
    assert make(name).query(torch.empty(there.shape, device="meta"), pos).shape == there.shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [*SCALED, "p-rope"])
def test_queries_in_any_dtype_are_near_those_in_float64(name: str, dtype: torch.dtype) -> None:
    pos = torch.arange(3 * LENGTH)
    found = query(make(name), pos, dtype)
    assert found.dtype == dtype
    exact = query(make(name), pos)
    assert float((found.double() - exact).abs().max()) < 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("longrope(start=yarn)", "yarn"),
        ("longrope(start=ntk)", "rope-ntk"),
        ("longrope(start=pi)", "rope-linear"),
        ("llama3(low=0.1, high=2)", "yarn(beta_slow=0.1, beta_fast=2, ramp=turns)"),
    ],
)
def test_equal_angles_with_another_temperature(one: str, other: str) -> None:
    a, b = make(one), make(other)
    assert isinstance(a, RoPE)
    assert isinstance(b, RoPE)
    pos = torch.arange(5 * LENGTH)
    torch.testing.assert_close(a.angles(pos), b.angles(pos), rtol=1e-14, atol=0)
    assert not torch.allclose(query(a, pos), query(b, pos), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", ["", ", fraction=0.5"])
def test_the_layouts_differ_by_a_permutation_of_channels(options: str) -> None:
    half, interleaved = make(f"rope(layout=half{options})"), make(f"rope(layout=interleaved{options})")
    assert isinstance(half, RoPE)
    pairs = half.width // 2
    order = torch.arange(HEAD_WIDTH)
    order[: 2 * pairs] = torch.stack([torch.arange(pairs), torch.arange(pairs) + pairs], dim=-1).flatten()
    q, pos = draw(1, HEADS, LENGTH, HEAD_WIDTH, dtype=torch.float64), torch.arange(LENGTH)
    permuted = half.query(q, pos)[..., order]
    torch.testing.assert_close(interleaved.query(q[..., order], pos), permuted, rtol=0, atol=ANGLES)
    assert not torch.allclose(interleaved.query(q, pos), half.query(q, pos))


def test_yarns_temperature_is_on_queries_and_keys() -> None:
    """Scores of rotated channels grow by the square of the factor."""
    q = draw(1, HEADS, 1, HEAD_WIDTH, dtype=torch.float64)
    yarn, at = make("yarn(factor=16, fraction=0.5)"), torch.tensor([5])
    turned = yarn.query(q, at)
    t = (0.1 * torch.tensor(16.0, dtype=torch.float64).log() + 1) ** -2
    torch.testing.assert_close(turned[..., :4].square().sum(), q[..., :4].square().sum() / t)
    assert torch.equal(turned[..., 4:], q[..., 4:])
