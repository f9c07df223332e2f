"""What a cache keeps beside keys and values: keys at their positions, and functions of the distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from compiled import needs_kernels
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, LENGTH, draw, make, model, perturbed, rounding, tokens

from poscli.encodings import names
from poscli.encodings.rope import RoPE
from poscli.model.cache import Cache, LayerCache

OPTIONS = [
    "rope-linear(factor=4)", "rope-ntk(factor=4)", "yarn(factor=4)", "llama3(factor=4)", "rope+grape",
    "tupe(table=sinusoidal)", "rope(layout=interleaved, fraction=0.5)",
]  # fmt: skip
TURNING = [spec for spec in [*names(), *OPTIONS] if "key" in make(spec).blanks]
STEADY = [spec for spec in TURNING if make(spec).keys_are_steady and spec != "tupe"]  # its positions end


@pytest.mark.parametrize("spec", STEADY)
@torch.no_grad()
def test_steady_keys_do_not_depend_on_later_tokens(spec: str) -> None:
    encoding = make(spec, dtype=torch.float64)
    k, pos = draw(2, HEADS, 4 * LENGTH, HEAD_WIDTH, seed=1, dtype=torch.float64), torch.arange(4 * LENGTH)
    whole = encoding.key(k, pos)
    for first, stop in ((0, 1), (0, 5), (5, 6), (7, LENGTH), (LENGTH, 2 * LENGTH), (3 * LENGTH, 4 * LENGTH)):
        part = encoding.key(k[:, :, first:stop], pos[first:stop])
        # A unit of rounding of the largest of D products; angles are the same numbers.
        torch.testing.assert_close(part, whole[:, :, first:stop], rtol=0, atol=HEAD_WIDTH * 2.0**-50)


def test_a_subclass_does_not_inherit_steady_keys() -> None:
    class Other(RoPE):
        def theta(self, pos: Tensor) -> Tensor:
            return super().theta(pos) / (1 + pos[-1])

    assert not Other(make("rope").shape).keys_are_steady


def turned_tokens(spec: str, steps: list[int], monkeypatch: pytest.MonkeyPatch, keep: int | None = None) -> list[int]:
    """The numbers of keys that the first layer turns while a text is read in steps."""
    trained, cache = model(spec, layers=1), Cache()
    encoding, found = trained.encodings[0], []
    real = encoding.key

    def key(k_BHSD: Tensor, pos: Tensor) -> Tensor:
        found.append(k_BHSD.shape[2])
        return real(k_BHSD, pos)

    monkeypatch.setattr(encoding, "key", key)
    with torch.inference_mode():
        for part in tokens(1, sum(steps)).split(steps, dim=1):
            if keep is not None:
                cache.keep_last(keep) if cache.tokens else None
            trained(part, cache=cache)
    return found


def test_each_key_is_turned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turned_tokens("rope", [5, 1, 3, 1], monkeypatch) == [5, 1, 3, 1]
    assert turned_tokens("rope-dynamic", [5, 1, 3, 1], monkeypatch) == [5, 6, 9, 10]
    # Tokens that are left when others are forgotten have new positions.
    assert turned_tokens("rope", [5, 1, 1], monkeypatch, keep=4) == [5, 5, 5]


@needs_kernels  # torch's kernels are given a table per call
@pytest.mark.parametrize(("spec", "blank"), [("transformer-xl", "relative_keys"), ("kerple-log", "distance_bias")])
def test_each_distance_is_computed_once(spec: str, blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, cache, found = model(spec, layers=1), Cache(), []
    real = getattr(trained.encodings[0], blank)

    def counted(d: Tensor) -> Tensor:
        found.append(d.tolist())
        return real(d)

    monkeypatch.setattr(trained.encodings[0], blank, counted)
    with torch.inference_mode():
        for part in tokens(1, 7).split([4, 1, 2], dim=1):
            trained(part, cache=cache)
    assert found == [[0, 1, 2, 3], [4], [5, 6]]


@pytest.mark.parametrize("spec", ["rope", "path", "selective-rope+smear"])
def test_copies_of_a_cache_go_on_by_themselves(spec: str) -> None:
    trained, text = perturbed(model(spec)), tokens(1, 12)
    other = text.roll(3, dims=1)
    cache, limit = Cache(), rounding(trained, text)
    with torch.inference_mode():
        trained(text[:, :8], cache=cache)
        trained(text[:, 8:9], cache=cache)
        copied = replace(cache, layers=[replace(layer) for layer in cache.layers])
        found = []
        for n in range(9, 12):
            trained(other[:, n : n + 1], cache=copied)
            found.append(trained(text[:, n : n + 1], cache=cache))
        wanted = trained(text)
    torch.testing.assert_close(torch.cat(found, dim=1), wanted[:, 9:], rtol=0, atol=limit)


@pytest.mark.parametrize("spec", ["rope", "tupe(table=sinusoidal)"])
def test_tokens_read_with_a_gradient_are_not_lost_to_those_after(spec: str) -> None:
    trained, text, cache, found = perturbed(model(spec)), tokens(1, 12), Cache(), []
    for n, gradient in enumerate([False, False, True, False, True, True, False, False, True, False, False, False]):
        with torch.set_grad_enabled(gradient):
            found.append(trained(text[:, n : n + 1], cache=cache).detach())
    wanted = trained(text).detach()
    torch.testing.assert_close(torch.cat(found, dim=1), wanted, rtol=0, atol=rounding(trained, text))


@pytest.mark.parametrize("modes", [(torch.inference_mode,), (torch.no_grad,), (torch.inference_mode, torch.no_grad)])
def test_a_cache_grows_without_being_copied_each_time(modes: tuple[Callable, ...]) -> None:
    """Also where it was begun in inference mode, whose tensors nothing else may write to."""
    layer, places = LayerCache(), set()
    for n in range(40):
        with modes[min(n // 20, len(modes) - 1)]():
            k, v, _ = layer.extend(torch.full((1, 2, 1, 4), float(n)), torch.zeros(1, 2, 1, 4), None)
            places.add(k.data_ptr())
    assert k[0, 1, :, 0].tolist() == [float(n) for n in range(40)]
    assert v.shape == (1, 2, 40, 4)
    assert len(places) <= 5


@pytest.mark.parametrize("spec", ["rope", "alibi", "fox", "rope+shaw"])
@torch.no_grad()
def test_after_tokens_are_forgotten_the_rest_is_the_whole_text(spec: str) -> None:
    """In one layer, where no token has seen those that are forgotten."""
    trained, text = perturbed(model(spec, layers=1)), tokens(1, 12)
    cache = Cache()
    trained(text[:, :10], cache=cache)
    cache.keep_last(4)
    found = torch.cat([trained(text[:, n : n + 1], cache=cache) for n in (10, 11)], dim=1)
    assert float((found - trained(text[:, 6:])[:, -2:]).abs().max()) <= rounding(trained, text)
