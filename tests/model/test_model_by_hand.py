"""The model around an encoding in plain float64 arithmetic: logits, loss, gradients, operations and precisions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, model, perturbed, rounding, tokens

from poscli.model.transformer import Linear, Model, Precision, precision_of


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def attention(x: Tensor, w: dict[str, Tensor], at: str) -> Tensor:
    """softmax(q_i . k_j / sqrt(D)) v_j over j <= i, head by head."""
    q, k, v = (x @ w[f"{at}.{part}.weight"].T for part in "qkv")
    heads = []
    for h in range(HEADS):
        own = slice(h * HEAD_WIDTH, (h + 1) * HEAD_WIDTH)
        s = q[:, own] @ k[:, own].T / math.sqrt(HEAD_WIDTH)
        heads.append(s.masked_fill(~torch.ones_like(s).tril().bool(), -math.inf).softmax(-1) @ v[:, own])
    return torch.cat(heads, dim=-1) @ w[f"{at}.o.weight"].T


def logits_by_hand(of: Model, ids: Tensor) -> Tensor:
    """Logits `[T, V]` of one text: pre-norm layers, SwiGLU silu(x G) (x U) D, a norm and the head."""
    w = {name: p.detach().double() for name, p in of.named_parameters()}
    x = w["embedding"][ids]
    for n in range(len(of.layers)):
        at = f"layers.{n}"
        x = x + attention(rms_norm(x, w[f"{at}.norm_attention.weight"]), w, f"{at}.attention")
        y = rms_norm(x, w[f"{at}.norm_mlp.weight"])
        gate, up = y @ w[f"{at}.gate.weight"].T, y @ w[f"{at}.up.weight"].T
        x = x + (gate / (1 + (-gate).exp()) * up) @ w[f"{at}.down.weight"].T
    return rms_norm(x, w["norm.weight"]) @ w["head.weight"].T


@torch.no_grad()
def test_the_logits_of_a_model_without_positions() -> None:
    trained, text = perturbed(model("none")), tokens(2, 12)
    for row, found in zip(text, trained(text), strict=True):
        expected = logits_by_hand(trained, row)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=rounding(trained, text))


@torch.no_grad()
def test_tiny_activations_are_normed_with_an_epsilon_of_one_millionth() -> None:
    trained, text = perturbed(model("none", layers=1)), tokens(1, 6)
    trained.embedding *= 1e-3
    for part in (trained.layers[0].attention.o.weight, trained.layers[0].down.weight):
        part.zero_()
    expected = logits_by_hand(trained, text[0])
    torch.testing.assert_close(trained(text)[0].double(), expected, rtol=0, atol=rounding(trained, text))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_which_arithmetic_a_precision_rounds(name: str) -> None:
    dtype = getattr(torch, name)
    assert precision_of(name, torch.device("cpu")) == Precision(linear=dtype, attention=torch.float32)
    assert precision_of(name, torch.device("cuda")) == Precision(linear=dtype, attention=dtype)
    for device in ("cpu", "cuda"):
        assert precision_of("float32", torch.device(device)) == Precision(torch.float32, torch.float32)


def test_a_matrix_product_is_rounded_and_its_weights_are_not() -> None:
    """Inputs and weights are rounded to bfloat16 first, and so is the result, which float32 then holds."""
    layer = Linear(5, 3, Precision(linear=torch.bfloat16))
    draw = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(layer.weight, generator=draw)
    x = torch.randn(4, 5, generator=draw)
    weight = layer.weight.detach()
    exact = x.bfloat16().double() @ weight.bfloat16().double().T
    found = layer(x)
    assert found.dtype == layer.weight.dtype == torch.float32
    assert torch.equal(found, found.bfloat16().float())
    torch.testing.assert_close(found.detach().double(), exact, rtol=2**-8, atol=2**-8)
    assert not torch.equal(found, x @ weight.T)
    assert layer(x, torch.bfloat16).dtype == torch.bfloat16
