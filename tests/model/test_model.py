"""The model around an encoding: cached decoding, equal weights, windows, sizes, precisions, checkpoints."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from torch import Tensor
from toys import (
    ALTERNATING,
    COMPOSITES,
    EVERYWHERE,
    HEADS,
    LENGTH,
    VOCAB,
    WIDTH,
    make,
    model,
    perturbed,
    rounding,
    tokens,
    wide,
)

from poscli.config.run import ModelConfig
from poscli.encodings import names
from poscli.equation.operands import columns_of
from poscli.evaluation.posthoc import with_joined
from poscli.model.cache import Cache
from poscli.model.initialise import build_model, load_weights, weights_of
from poscli.model.transformer import Precision
from poscli.system.errors import CorruptError


def assert_rounded(found: Tensor, expected: Tensor, limit: float) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=limit)


WINDOWED = (
    "rope+window(5)",
    "smear+window(4)",
    "fox+window(6)|rope",
    "sinusoidal+window(7)",
    "window(3)+sink(2)",
    "window(1)",
)


@pytest.mark.parametrize("spec", wide((*EVERYWHERE, *WINDOWED)))
@torch.no_grad()
def test_the_logits_of_the_last_tokens_are_those_of_all(spec: str) -> None:
    trained = perturbed(model(spec, length=24))
    text = tokens(2, 24)
    limit, full = rounding(trained, text), trained(text)
    for last in (1, 2, 9, 24):
        parts = list(trained.logits_in_slices(text, last))
        assert [(at.start, at.stop) for at, _ in parts] == [(0, last)]
        assert_rounded(parts[0][1], full[:, -last:], limit)


@torch.no_grad()
def test_the_last_logits_under_a_window_are_those_of_all_whatever_an_encoding_looks_at() -> None:
    """`selective` knows the first token of a text, and `selective-rope` turns a token by all before it."""
    text = tokens(2, 24)
    for spec in (f"{name}+window(5)" for name in names()):
        trained = perturbed(model(spec, length=24))
        ((_, found),) = trained.logits_in_slices(text, 4)
        error = float((found - trained(text)[:, -4:]).abs().max())
        assert error <= rounding(trained, text), spec


@torch.no_grad()
def test_layers_with_a_window_read_what_the_last_tokens_depend_on_and_no_more() -> None:
    """Two layers that see 5 tokens each: the last 3 logits depend on the last 11 tokens, and the rest is not read."""
    trained = perturbed(model("rope+window(5)", length=24))
    text = tokens(1, 24)
    read: list[int] = []
    for layer in trained.attention:
        layer.k.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape[1]))
    ((_, logits),) = trained.logits_in_slices(text, 3)
    assert read == [11, 7]
    other = text.clone()
    other[:, :13] = (other[:, :13] + 1) % VOCAB
    ((_, same),) = trained.logits_in_slices(other, 3)
    torch.testing.assert_close(logits, same, rtol=0, atol=0)
    other[:, 13] = (other[:, 13] + 1) % VOCAB
    ((_, changed),) = trained.logits_in_slices(other, 3)
    assert not torch.equal(logits, changed)


@pytest.mark.parametrize("spec", wide(EVERYWHERE))
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward(spec: str) -> None:
    trained = perturbed(model(spec, length=24))
    text = tokens(2, 24)
    if any(encoding.rescales for encoding in trained.encodings):
        pytest.skip("keys of deeper layers were made when the text was shorter, by definition")
    limit = rounding(trained, text)
    full = trained(text)
    for steps in ([1] * 24, [5] + [1] * 19, [11, 1, 1, 7, 1, 3], [23, 1]):
        cache = Cache(columns=columns_of(24))
        parts = [trained(part, cache=cache) for part in text.split(steps, dim=1)]
        assert cache.tokens == 24
        assert_rounded(torch.cat(parts, dim=1), full, limit)


@pytest.mark.parametrize("spec", [s for s in [*names(), *COMPOSITES] if make(s).rescales])
@torch.no_grad()
def test_one_layer_that_rescales_decodes_like_a_forward_pass_over_the_text_so_far(spec: str) -> None:
    if "embed" in make(spec).blanks:
        pytest.skip("what is embedded depends on the total length, by definition")
    config = ModelConfig(layers=1, width=WIDTH, heads=HEADS, mlp=32)
    trained = perturbed(build_model(config, spec, vocab=VOCAB, length=LENGTH, seed=0))
    text, cache = tokens(2, 2 * LENGTH), Cache()
    limit = rounding(trained, text)
    for t in range(text.shape[1]):
        step = trained(text[:, t : t + 1], cache=cache)
        assert_rounded(step[:, -1], trained(text[:, : t + 1])[:, -1], limit)


@pytest.mark.parametrize("spec", [*names(), *ALTERNATING])
def test_weights_outside_the_encoding_do_not_depend_on_it(spec: str) -> None:
    plain, other = model("none", seed=3), model(spec, seed=3)
    own = {id(p) for p in other.encoding_parameters()}
    rest = {name: p for name, p in other.named_parameters() if id(p) not in own}
    expected = dict(plain.named_parameters())
    assert rest.keys() == expected.keys()
    assert all(torch.equal(rest[name], expected[name]) for name in expected)


def test_weights_are_drawn_from_the_seed() -> None:
    first, again, other = (weights_of(model("learned", seed=seed)) for seed in (3, 3, 4))
    drawn = [name for name, p in first.items() if p.std() > 0 and p.ndim > 1]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in drawn)
    assert any("encoding" in name for name in drawn)
    assert len({float(first[name].flatten()[0]) for name in drawn}) == len(drawn)  # each from a stream of its own


def test_a_fresh_model_predicts_nothing() -> None:
    """The head and what writes into the stream start at zero; other matrices keep the scale of their input."""
    fresh = model("rope").requires_grad_(False)
    assert torch.equal(fresh(tokens(2, 9)), torch.zeros(2, 9, VOCAB))
    weights = dict(fresh.named_parameters())
    zero = {name for name, p in weights.items() if not p.any()}
    written = [f"layers.{n}.{part}.weight" for n in range(2) for part in ("attention.o", "down")]
    assert zero == {"head.weight", *written}
    for name, p in weights.items():
        if p.ndim == 2 and name not in zero:
            scale = 1 if name == "embedding" else p.shape[1] ** -0.5
            assert abs(float(p.std()) / scale - 1) < 5 / (2 * p.numel()) ** 0.5, name  # five standard errors


@pytest.mark.parametrize("width", [1, 5, 9])
@pytest.mark.parametrize("spec", wide([*names(), "rope+shaw", "cope|shaw|fire", "toys:Forgetting", "toys:Carried"]))
@torch.no_grad()
def test_a_window_is_the_masked_model(spec: str, width: int) -> None:
    trained = perturbed(model(spec))
    cut = with_joined(trained, f"window({width})")
    built = model("|".join(f"{layer}+window({width})" for layer in spec.split("|")))
    for theirs, ours in zip(built.parameters(), trained.parameters(), strict=True):
        theirs.copy_(ours)
    text = tokens(2, LENGTH)
    full, limit = trained(text), rounding(trained, text)
    assert_rounded(cut(text), built(text), rounding(built, text))
    assert_rounded(cut(text)[:, :width], full[:, :width], limit)
    assert float((cut(text) - full)[:, width:].abs().max()) > 1e-3
    assert torch.equal(trained(text), full)  # the model itself is not changed


def test_a_window_shares_the_weights() -> None:
    trained = perturbed(model("rope+t5"))
    cut = with_joined(trained, "window(4)")
    assert {id(p) for p in cut.parameters()} == {id(p) for p in trained.parameters()}
    assert cut.size == trained.size
    with torch.no_grad():
        before = cut(tokens(1, 9))
        perturbed(trained, seed=5)
        assert not torch.equal(cut(tokens(1, 9)), before)


def test_the_size_counts_each_number_once() -> None:
    plain = model("none").size
    assert model("t5").size == plain + 3 * 32  # one table for both layers
    assert model("shaw(clip=4)").size == plain + 2 * 2 * 5 * 8  # two layers, keys and values
    assert model("t5|none").size == plain + 3 * 32


@pytest.mark.parametrize("attention", [torch.float32, torch.bfloat16])  # on CPU; on CUDA
@pytest.mark.parametrize("spec", wide(EVERYWHERE))
def test_bfloat16_stays_close(spec: str, attention: torch.dtype) -> None:
    exact, text = perturbed(model(spec)), tokens(2, LENGTH)
    rounded = perturbed(model(spec, precision=Precision(linear=torch.bfloat16, attention=attention)))
    logits, found = exact(text), rounded(text)
    assert found.dtype == torch.float32
    assert not torch.equal(found, logits)
    assert_rounded(found, logits, rounding(exact, text, 2**-8))
    found.sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in rounded.parameters())


@pytest.mark.parametrize("spec", wide(EVERYWHERE))
@torch.no_grad()
def test_saved_weights_give_back_the_model(spec: str) -> None:
    trained, other = perturbed(model(spec)), model(spec, seed=1)
    weights = weights_of(trained)
    assert sum(weight.numel() for weight in weights.values()) == trained.size  # what layers share appears once
    load_weights(other, safetensors.torch.load(safetensors.torch.save(weights)))
    text = tokens(2, LENGTH)
    assert trained(text).any()
    assert torch.equal(other(text), trained(text))


def test_weights_of_another_model_are_refused() -> None:
    for theirs in (weights_of(model("none")), weights_of(model("t5(buckets=6)"))):
        with pytest.raises(CorruptError, match="another model"):
            load_weights(model("t5"), theirs)


@pytest.mark.parametrize("spec", wide(EVERYWHERE))
@torch.no_grad()
def test_a_row_does_not_depend_on_its_batch(spec: str) -> None:
    trained, text = perturbed(model(spec)), tokens(4, LENGTH)
    whole, limit = trained(text), rounding(trained, text)
    assert_rounded(torch.cat([trained(row[None]) for row in text]), whole, limit)
    assert_rounded(trained(text.flip(0)), whole.flip(0), limit)
