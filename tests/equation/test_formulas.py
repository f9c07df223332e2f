"""Parts of formulas over their whole range, which the oracles sample only: slopes, buckets, thresholds, starts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import libraries as lib
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, LENGTH, VOCAB, WIDTH, draw, make, model, perturbed, rounding, shape, tokens

from poscli.attention import ENGINES, Place, attend, engines_for
from poscli.encodings import Encoding, get
from poscli.encodings.t5 import bucket
from poscli.equation import Positions
from poscli.model.initialise import weights_of

TOKENS = 23
FAR = 16 * 512  # sixteen times a usual training length

Pairs = np.ndarray  # [H, T, S] in float64


def content() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values `[H, T, D]` in float64."""
    return tuple(draw(HEADS, TOKENS, HEAD_WIDTH, seed=n, dtype=torch.float64).numpy() for n in range(3))


def attention(encoding: Encoding, engine: str) -> np.ndarray:
    q, k, v = (torch.from_numpy(x)[None] for x in content())
    with torch.no_grad():
        return attend(ENGINES[engine], encoding, q, k, v, Positions(pos=torch.arange(TOKENS)))[0].numpy()


def softmax_of(scores: Pairs) -> Pairs:
    """Causal attention weights."""
    visible = np.tril(np.ones((TOKENS, TOKENS), bool))
    e = np.where(visible, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
    return e / e.sum(axis=-1, keepdims=True)


def plain_scores() -> Pairs:
    q, k, _ = content()
    return np.einsum("hid,hjd->hij", q, k) / math.sqrt(HEAD_WIDTH)


def assert_attention(encoding: Encoding, scores: Pairs, angle: float = 0) -> None:
    """Compare attention with these scores on every engine; `angle` is the error to allow in a rotation."""
    expected = softmax_of(scores) @ content()[2]
    # Sums have D and T terms of order 1; weights change by at most half as much as scores, scores by |q||k|/sqrt(D).
    limit = 4 * (HEAD_WIDTH + TOKENS) * 2**-52 + angle * HEAD_WIDTH**0.5 * 10
    for engine in engines_for(encoding, Place(dtype=torch.float64, gradient=False)):
        name = engine.name
        np.testing.assert_allclose(attention(encoding, name), expected, rtol=0, atol=limit, err_msg=name)


def biased(term: object) -> Pairs:
    """The scores plus term(h, i, j) for every visible pair."""
    s = plain_scores()
    for h in range(HEADS):
        for i in range(TOKENS):
            for j in range(i + 1):
                s[h, i, j] += term(h, i, j)
    return s


def numbers(parameter: Tensor) -> np.ndarray:
    return parameter.detach().double().numpy()


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log(1 + np.exp(x))


# alibi


def get_slopes(n: int) -> list[float]:
    """The authors' recursion: geometric for powers of two, else filled up with slopes of the next power of two."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return get_slopes(closest) + get_slopes(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("heads", range(1, 33))
def test_alibi_slopes(heads: int) -> None:
    d = torch.tensor([0, 1, 7, FAR])
    bias = numbers(get("alibi")(shape(heads=heads, width=heads)).distance_bias(d))
    expected = -np.outer(get_slopes(heads), d)
    np.testing.assert_allclose(bias, expected, rtol=2 * 2**-23)  # a slope and a product in float32
    everywhere = lib.bloom.build_alibi_tensor(torch.ones(1, 9, dtype=torch.long), heads, torch.float32)
    bloom = everywhere[:, 0, 1]  # m_h at key 1
    np.testing.assert_allclose(bias[:, 1], -numbers(bloom), rtol=16 * 2**-23)  # up to 32 powers of a rounded base


def make_exact(spec: str) -> Encoding:
    return make(spec, dtype=torch.float64)


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


# kerple, window, fire


def test_kerple_starts_in_the_ranges_of_its_authors() -> None:
    fresh = get("kerple-log")(shape(heads=4, width=8))
    np.testing.assert_allclose(softplus(numbers(fresh.r1)), [0.25, 0.75, 1.25, 1.75], rtol=1e-6)
    np.testing.assert_allclose(sorted(softplus(numbers(fresh.r2))), [0.125, 0.375, 0.625, 0.875], rtol=1e-6)


@pytest.mark.parametrize("engine", ["sdpa", "blocks", "reference"])
@pytest.mark.parametrize("width", [1, 2, 9, None])
def test_a_window_sees_its_last_tokens_and_no_other(width: int | None, engine: str) -> None:
    """With unit vectors as values, the output is the weights."""
    encoding = get("window")(shape(), width=width)
    q, k = (draw(1, HEADS, TOKENS, HEAD_WIDTH, seed=n) for n in range(2))
    eye = torch.eye(TOKENS).expand(1, HEADS, -1, -1)
    weights = attend(ENGINES[engine], encoding, q, k, eye, Positions(pos=torch.arange(TOKENS)))
    i, j = np.indices((TOKENS, TOKENS))
    expected = (j <= i) & (i - j < (width or LENGTH))
    assert np.array_equal((weights > 0).numpy(), np.broadcast_to(expected, weights.shape))


@pytest.mark.parametrize("threshold", [0.0, 1.0, -3.0, 8.0])
def test_fire_attention(threshold: float) -> None:
    encoding = make_exact("fire(hidden=5)")
    with torch.no_grad():
        encoding.threshold.fill_(threshold + 0.1)
    c, limit = float(softplus(numbers(encoding.c))), abs(threshold + 0.1) * LENGTH / 4
    first, last = encoding.f[0], encoding.f[2]

    def term(h: int, i: int, j: int) -> float:
        share = math.log(1 + c * (i - j)) / math.log(1 + c * max(i, limit))
        hidden = np.maximum(numbers(first.weight)[:, 0] * share + numbers(first.bias), 0)
        return float(numbers(last.weight)[h] @ hidden + numbers(last.bias)[h])

    assert_attention(encoding, biased(term))


def test_fire_with_a_far_threshold_is_a_function_of_the_distance() -> None:
    encoding, length = get("fire")(shape(), threshold=2), shape().length
    first = torch.arange(length)
    assert torch.equal(encoding.ratio(first, first), encoding.ratio(first + length, first + length))
    beyond = first + length + 2  # the last two queries are at 2 L and after it
    assert not torch.equal(encoding.ratio(first, first), encoding.ratio(beyond, beyond))
    assert float(encoding.ratio(torch.tensor([2 * length]), torch.tensor([0])).detach()) == pytest.approx(1)
    assert [name for name, part in encoding.named_parameters() if not part.requires_grad] == ["threshold"]


def test_fire_starts_where_its_authors_start() -> None:
    fresh = get("fire")(shape())
    assert float(softplus(numbers(fresh.c))) == pytest.approx(0.1, rel=0.01)
    assert fresh.threshold.item() == 1
    assert [part.weight.shape for part in (fresh.f[0], fresh.f[2])] == [(32, 1), (HEADS, 32)]


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


# absolute


def test_sinusoids_have_the_same_power_as_the_embedding_they_join() -> None:
    """The paper multiplies embeddings by sqrt(W); here they are drawn with variance 1 instead."""
    assert float(model("sinusoidal").embedding.detach().std()) == pytest.approx(1, abs=0.15)


# the model around them


@pytest.mark.parametrize("spec", ["none", "alibi"])
def test_the_model_written_again_in_numpy(spec: str) -> None:
    """Pre-norm, RMSNorm, a gated MLP (SwiGLU), no biases."""
    trained = perturbed(model(spec))
    w = {name: numbers(weight) for name, weight in weights_of(trained).items()}
    slopes = get_slopes(HEADS) if spec == "alibi" else [0] * HEADS
    text, mask = tokens(1, TOKENS), np.tril(np.ones((TOKENS, TOKENS)))

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[name]

    x = w["embedding"][text[0].numpy()]
    for n in range(2):
        at = f"layers.{n}."
        y = norm(x, f"{at}norm_attention.weight")
        q, k, v = ((y @ w[f"{at}attention.{p}.weight"].T).reshape(TOKENS, HEADS, HEAD_WIDTH) for p in "qkv")
        s = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(HEAD_WIDTH)
        s -= np.multiply.outer(slopes, np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS)))
        p = np.exp(s) * mask
        o = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(TOKENS, WIDTH)
        x = x + o @ w[f"{at}attention.o.weight"].T
        y = norm(x, f"{at}norm_mlp.weight")
        gate = y @ w[f"{at}gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[f"{at}up.weight"].T)) @ w[f"{at}down.weight"].T
    expected = norm(x, "norm.weight") @ w["head.weight"].T
    found = numbers(trained(text))[0]
    assert found.shape == (TOKENS, VOCAB)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding(trained, text))
