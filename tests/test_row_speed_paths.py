"""Encodings that leave out work, or do it piece by piece, against the plain formula, gradients included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import HEAD_WIDTH, HEADS, LENGTH, WIDTH, draw, make, shape
from torch import Tensor
from torch.nn.functional import leaky_relu

from poscli.attention import ENGINES, Positions, attend, biases
from poscli.attention.operands import Operands
from poscli.encodings import Encoding, cope, dape, fire, path, stick_breaking

QUERIES, KEYS = 9, 41
# sums of up to 64 terms of order 10, some of them twice: their count times the unit of rounding of float64
CLOSE = 64 * 10 * 2**-52


def assert_equal_with_gradients(
    found: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor, encoding: Encoding | None = None
) -> None:
    """Both functions of the inputs, and every gradient of a random loss."""
    learned = [*inputs, *(encoding.parameters() if encoding else [])]
    results = []
    for function in (found, plain):
        for x in learned:
            x.requires_grad_().grad = None
        out = function(*inputs)
        (out * draw(*out.shape, seed=9, dtype=torch.float64)).sum().backward()
        results.append([out.detach(), *(torch.zeros(()) if x.grad is None else x.grad for x in learned)])
    for one, other in zip(*results, strict=True):
        assert float((one - other).abs().max()) <= CLOSE * max(1, float(other.abs().max()))


def operands(encoding: Encoding, q: Tensor, k: Tensor, pos: Tensor, features: Tensor | None = None) -> Operands:
    return Operands(
        encoding=encoding, q_BHTD=q, k_BHSD=k, v_BHSE=k, raw_q_BHTD=q, raw_k_BHSD=k, pos_S=pos, step=None,
        features_BHSF=features,
    )  # fmt: skip


def content(wider: int = 1) -> tuple[Tensor, Tensor]:
    q, k = (draw(2, HEADS, t, wider * HEAD_WIDTH, seed=t, dtype=torch.float64) for t in (QUERIES, KEYS))
    return q, k


def hidden() -> Tensor:
    return torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(KEYS - QUERIES + 1)


@pytest.mark.parametrize("size", [1, 300])  # at 300 the first key takes all that is left
@pytest.mark.parametrize("current", ["true", "false"])
def test_sticks_that_are_used_up(size: float, current: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stick_breaking, "KEYS", 4)
    encoding = make(f"stick-breaking(current={current})", dtype=torch.float64)
    scores = size * draw(2, HEADS, QUERIES, KEYS, dtype=torch.float64)
    own = hidden() if current == "true" else torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(KEYS - QUERIES)

    def plain(s: Tensor) -> Tensor:
        parts, left = [], torch.ones(2, HEADS, QUERIES, dtype=torch.float64)
        for j in reversed(range(KEYS)):
            share = torch.sigmoid(s[..., j]).masked_fill(own[:, j], 0)
            parts.append(left * share)
            left = left * torch.sigmoid(-s[..., j]).masked_fill(own[:, j], 1)
        return torch.stack(parts[::-1], dim=-1)

    assert_equal_with_gradients(lambda s: encoding.weights(s.masked_fill(hidden(), -torch.inf)), plain, scores)


def test_no_work_for_keys_whose_stick_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stick_breaking, "KEYS", 4)
    seen = []
    monkeypatch.setattr(stick_breaking, "softplus", lambda s, **how: seen.append(s) or torch.nn.functional.softplus(s))
    weights = make("stick-breaking").weights(torch.full((1, 1, 1, KEYS), 60.0))
    assert [len(s.flatten()) for s in seen] == [1, 4]
    assert weights.count_nonzero() == 2  # all there is, and e^-60 of it


@pytest.mark.parametrize("max_pos", [3, 64])
def test_cope_stops_at_its_last_position(max_pos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cope, "KEYS", 1)
    encoding = make(f"cope(max_pos={max_pos})", dtype=torch.float64)
    q, k = content()
    scores = draw(2, HEADS, QUERIES, KEYS, dtype=torch.float64)

    def found(s: Tensor, q: Tensor) -> Tensor:
        masked = s.masked_fill(hidden(), -torch.inf)
        return encoding.scores(masked, operands(encoding, q, k, torch.arange(KEYS))).masked_fill(hidden(), 0)

    def plain(s: Tensor, q: Tensor) -> Tensor:
        gates = torch.sigmoid(s).masked_fill(hidden(), 0)
        p = torch.stack([gates[..., j:].sum(-1) for j in range(KEYS)], dim=-1).clamp(max=max_pos - 1)
        z = q @ encoding.e.T
        low = z.gather(-1, p.detach().floor().long())
        high = z.gather(-1, p.detach().ceil().long())
        return (s + (1 - p.frac()) * low + p.frac() * high).masked_fill(hidden(), 0)

    assert_equal_with_gradients(found, plain, scores, q, encoding=encoding)


@pytest.mark.parametrize("pos", [torch.arange(KEYS), torch.arange(KEYS) / 4, torch.arange(KEYS) ** 2])
@pytest.mark.parametrize("spec", ["rerope(window=5)", "rerope(window=60)", "self-extend(window=5, group=3)"])
def test_one_product_is_enough_on_either_side_of_a_window(spec: str, pos: Tensor) -> None:
    encoding = make(spec, dtype=torch.float64)
    q, k = content(wider=3)  # the last third is beside the channels of the head
    near, far = (slice(n * HEAD_WIDTH, (n + 1) * HEAD_WIDTH) for n in range(2))
    visible = ~hidden()

    def found(q: Tensor, k: Tensor) -> Tensor:
        return encoding.similarity(operands(encoding, q, k, pos)) * visible

    def plain(q: Tensor, k: Tensor) -> Tensor:
        within = pos[KEYS - QUERIES :, None] - pos < encoding.window
        rest = q[..., 2 * HEAD_WIDTH :] @ k[..., 2 * HEAD_WIDTH :].mT
        return (torch.where(within, q[..., near] @ k[..., near].mT, q[..., far] @ k[..., far].mT) + rest) * visible

    assert_equal_with_gradients(found, plain, q, k)


@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("engine", ["blocks", "reference"])
def test_path_through_chunks_and_blocks(engine: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 queries or fewer hand on what their keys look like; every reflection by itself in `plain`."""
    monkeypatch.setattr(path, "CHUNK", chunk)
    monkeypatch.setattr(biases, "ENTRIES", 1)
    encoding = make("path", dtype=torch.float64)
    queries = 30
    q, k, v = (
        draw(2, HEADS, t, HEAD_WIDTH, seed=t + n, dtype=torch.float64) for n, t in enumerate((queries, KEYS, KEYS))
    )
    x = draw(2, KEYS, WIDTH, seed=3, dtype=torch.float64)
    future = torch.ones(queries, KEYS, dtype=torch.bool).triu(KEYS - queries + 1)

    def found(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return attend(ENGINES[engine], encoding, q, k, v, Positions(pos=torch.arange(KEYS)), encoding.features(x))

    def plain(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        f = encoding.features(x)
        w, beta, columns = f[..., :-1], f[..., -1:], []
        turned = [q[:, :, t] for t in range(queries)]
        for j in reversed(range(KEYS)):  # each query meets key j before it is reflected by it
            columns.append(torch.stack([(turned[t] * k[:, :, j]).sum(-1) for t in range(queries)], dim=-1))
            for t in range(queries):
                if KEYS - queries + t >= j:
                    along = (turned[t] * w[:, :, j]).sum(-1, keepdim=True)
                    turned[t] = turned[t] - beta[:, :, j] * along * w[:, :, j]
        s = torch.stack(columns[::-1], dim=-1) * encoding.scale
        return torch.softmax(s.masked_fill(future, -torch.inf), dim=-1) @ v

    assert_equal_with_gradients(found, plain, q, k, v, x, encoding=encoding)


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_of_the_network_of_dape(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of 5 keys at a time; one bias for both texts, or one for each."""
    monkeypatch.setattr(dape, "PAIRS", 10)
    s, b = (draw(n, HEADS, 3, 5, seed=n, dtype=torch.float64) for n in (2, 1 if shared else 2))
    u, v = draw(7, 2 * HEADS + 1, seed=5, dtype=torch.float64), draw(HEADS, 7, seed=6, dtype=torch.float64)

    def plain(s: Tensor, b: Tensor, u: Tensor, v: Tensor) -> Tensor:
        both = b.expand_as(s)
        pairs = torch.cat([s - both, both, torch.ones_like(s[:, :1])], dim=1).movedim(1, -1)
        return s + (leaky_relu(pairs @ u.T) @ v.T).movedim(-1, 1)

    assert_equal_with_gradients(dape._Bent.apply, plain, s, b, u, v)


@pytest.mark.parametrize("rows", [1, 100])
def test_fire_by_the_pieces_of_its_network(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units that bend inside the unit interval, outside it on either side, or not at all, rising and falling."""
    encoding = make("fire(hidden=9)", dtype=torch.float64)
    first = encoding.f[0]
    with torch.no_grad():
        first.weight[:, 0] = torch.tensor([2, -2, 1, -1, 1, -1, 0, 0, 3.0])
        first.bias[:] = torch.tensor([-1, 1, 2, -2, -2, 2, 1, -1, -0.5])
    assert sorted(encoding.pieces()[2].flatten().tolist()) == pytest.approx([0, 1 / 6, 0.5, 0.5])
    monkeypatch.setattr(fire, "HIDDEN", rows * KEYS * 4)
    i, j = torch.arange(KEYS - QUERIES, KEYS), torch.arange(KEYS)

    def plain() -> Tensor:
        c, least = torch.nn.functional.softplus(encoding.c), (encoding.threshold * LENGTH / 4).abs()
        d = (i[:, None] - j).clamp(min=0)
        share = torch.log1p(c * d) / torch.log1p(c * torch.maximum(i, least))[:, None]
        return encoding.f(share[..., None]).movedim(-1, 0)

    assert_equal_with_gradients(lambda: encoding.bias(i, j, None, None), plain, encoding=encoding)


def test_urpe_shares_its_last_entry() -> None:
    encoding = make("urpe(base=none)", shape(8), dtype=torch.float64)
    p = draw(2, HEADS, QUERIES, KEYS, dtype=torch.float64)
    d = (torch.arange(KEYS - QUERIES, KEYS)[:, None] - torch.arange(KEYS)).clamp(min=0)
    (c,) = encoding.parameters()

    def plain(p: Tensor) -> Tensor:
        return p * torch.stack([c[:, min(int(n), 7)] for n in d.flatten()], dim=1).unflatten(1, d.shape)

    assert_equal_with_gradients(lambda p: encoding.mix(p, d), plain, p, encoding=encoding)
