"""An encoding under test: in a small model, and by itself at chosen positions of a text of any length.

What is computed by itself is computed by the reference. Tokens at chosen positions stand for a text of any length, so
the last tokens of a million cost no more than those of a hundred.
"""

from __future__ import annotations

import copy
import time
from functools import cached_property

import torch
from torch import Tensor

from poscli.attention import ENGINES, BlockSizes, Engine, attend
from poscli.config.run import ModelConfig
from poscli.equation import Encoding, Positions, Unsupported
from poscli.equation.operands import columns_of, raster
from poscli.model.initialise import build_model
from poscli.model.transformer import Model
from poscli.specs import build, parse
from poscli.verify.noise import FLOAT32, draw, draw_inputs, draw_tokens, perturbed, rounding

REFERENCE = ENGINES["reference"]
SHORTEST_TRIED, LONGEST_TRIED = 16, 2**20  # tokens
SECONDS_OF_SEARCH = 0.5  # after which the search tries no longer input
LENGTH, HEADS, WIDTH, VOCAB, BATCH = 16, 4, 32, 11, 2
CONFIG = ModelConfig(layers=2, width=WIDTH, heads=HEADS, mlp=48)
SHAPE = CONFIG.shape(LENGTH, VOCAB)
# Block sizes so small that a short input has several blocks of every kind.
SMALL = BlockSizes(
    block_queries=5, backward_queries=5, backward_entries=1,
    tile_queries=5, tile_keys=4, skip_multiple=2, weighted_queries=3, native_queries=1,
)  # fmt: skip
FAR = 16 * LENGTH  # tokens, or rows and columns
# Shifts of positions, of a number of tokens for one axis, of rows and of columns for two.
SHIFTS = {
    1: (torch.tensor(LENGTH // 2), torch.tensor(1), torch.tensor(FAR)),
    2: tuple(torch.tensor(shift) for shift in ((1, 0), (0, 1), (FAR, 0), (0, FAR))),
}


class SpecUnderTest:
    """A spec, with models and input drawn from a seed."""

    def __init__(self, spec: str, seed: int) -> None:
        self.spec, self.seed = spec, seed

    @cached_property
    def encodings(self) -> list[Encoding]:
        """The different encodings of the layers, their weights moved away from the initial values."""
        layers = build(parse(self.spec), SHAPE, self.seed)
        return [
            perturbed(e, self.seed).requires_grad_(False) for e in dict.fromkeys(layers[: len(parse(self.spec).layers)])
        ]

    @cached_property
    def model(self) -> Model:
        """A small model for evaluation, without gradients."""
        return self.fresh().eval().requires_grad_(False)

    def fresh(self, moved: int = 0, seed: int | None = None, layers: int = CONFIG.layers) -> Model:
        """A new model whose weights are drawn and then moved away from their initial values."""
        config = CONFIG.model_copy(update={"layers": layers})
        drawn = build_model(config, self.spec, vocab=VOCAB, length=LENGTH, seed=self.seed if seed is None else seed)
        return perturbed(drawn, self.seed + moved)

    def text(self, count: int, batch: int = BATCH) -> Tensor:
        """Random tokens."""
        return draw_tokens(VOCAB, batch, count, self.seed)

    @property
    def rescales(self) -> bool:
        """Whether the output depends on the total length."""
        return any(encoding.rescales for encoding in self.encodings)

    @property
    def axes(self) -> int:
        """The axes of positions, the most of any layer."""
        return max(encoding.axes for encoding in self.encodings)

    @property
    def composed(self) -> bool:
        """Whether the spec composes several encodings; no class declares properties of the composition."""
        return any(len(leaves) > 1 for leaves in parse(self.spec).layers)

    def takes(self, count: int) -> bool:
        """Whether the encoding has positions for `count` tokens."""
        try:
            with torch.no_grad():
                self.model(self.text(count, 1))
        except Unsupported:
            return False
        return True

    def tolerance(self, text: Tensor, model: Model | None = None) -> float:
        """The largest difference to allow between two correct computations of the logits."""
        return rounding(model or self.model, text)

    def inputs(self, queries: int, keys: int, dtype: torch.dtype, noise: int | None = None) -> dict[str, Tensor]:
        """q, k, v and the layer's input x; with a seed `noise`, each number is changed by one unit of rounding."""
        drawn = draw_inputs(SHAPE, queries, keys, dtype, seed=self.seed, batch=BATCH)
        return drawn if noise is None else {name: rounded(x, noise + n) for n, (name, x) in enumerate(drawn.items())}

    def attention(
        self, encoding: Encoding, engine: Engine, dtype: torch.dtype, queries: int, keys: int, noise: int | None = None
    ) -> dict[str, Tensor]:
        """The output and, where gradients are enabled and the engine has any, those of a random loss, as float64.

        With a seed `noise`, inputs and weights are changed by one unit of rounding.
        """
        encoding = copy.deepcopy(encoding).to(dtype).requires_grad_(True)
        if noise is not None:
            with torch.no_grad():
                for n, parameter in enumerate(encoding.parameters()):
                    parameter.copy_(rounded(parameter, noise + 10 + n))
        inputs = {name: x.requires_grad_() for name, x in self.inputs(queries, keys, dtype, noise).items()}
        features = encoding.features(inputs["x"])
        positions = encoding.locate(keys, torch.device("cpu"))
        differentiate = engine.gradient and torch.is_grad_enabled()
        with torch.set_grad_enabled(differentiate):
            out = attend(engine, encoding, inputs["q"], inputs["k"], inputs["v"], positions, features, SMALL)
        if not differentiate:
            return {"output": out.double()}
        (out * draw(*out.shape, seed=self.seed + 9, dtype=dtype)).sum().backward()
        learned = inputs | {f"encoding.{name}": p for name, p in encoding.named_parameters()}
        grads = {f"d{name}": torch.zeros(()) if p.grad is None else p.grad for name, p in learned.items()}
        return {name: value.detach().double() for name, value in ({"output": out} | grads).items()}


def rounded(x: Tensor, seed: int) -> Tensor:
    """Change every number by one unit of rounding of float32, up or down at random."""
    return x * (1 + FLOAT32 * draw(*x.shape, seed=seed, dtype=x.dtype).sign())


@torch.no_grad()
def attend_at(encoding: Encoding, inputs: dict[str, Tensor], pos: Tensor) -> Tensor:
    """Attention output `[B, H, T, D]` for q, k, v and x at positions `[S]` of any spacing."""
    at, features = Positions(pos=pos, step=None), encoding.features(inputs["x"])
    return attend(REFERENCE, encoding, inputs["q"], inputs["k"], inputs["v"], at, features)


@torch.no_grad()
def embedded(encoding: Encoding, inputs: dict[str, Tensor], pos: Tensor, ids_BT: Tensor) -> dict[str, Tensor]:
    """The inputs, with q, k and v replaced by the embedded x if the encoding acts on the embedding."""
    if "embed" not in encoding.blanks:
        return inputs
    heads = encoding.embed(inputs["x"], pos, ids_BT).unflatten(2, (encoding.shape.heads, -1)).transpose(1, 2)
    return inputs | {"q": heads, "k": heads, "v": heads}


def longest_finite(encoding: Encoding, dtype: torch.dtype, seed: int = 0) -> tuple[int, bool]:
    """The longest input in tokens whose attention is finite in a dtype, and whether a longer one is known to fail.

    Found by doubling and bisection. The search ends early, without a known failure, at 2**20 tokens or when its time is
    over. An input that the encoding refuses counts as a failure.
    """
    good, bad, start = SHORTEST_TRIED, 2 * SHORTEST_TRIED, time.monotonic()
    while bad <= LONGEST_TRIED and finite_at(encoding, dtype, bad, seed):
        good, bad = bad, 2 * bad
        if time.monotonic() - start > SECONDS_OF_SEARCH:
            return good, False
    if bad > LONGEST_TRIED:
        return good, False
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if finite_at(encoding, dtype, middle, seed) else (good, middle)
    return good, True


@torch.no_grad()
def finite_at(encoding: Encoding, dtype: torch.dtype, tokens: int, seed: int = 0) -> bool:
    """Whether tokens at the start, middle and end of a text of `tokens` tokens get finite attention in a dtype."""
    index = torch.tensor([0, 1, tokens // 2, tokens - 2, tokens - 1])
    inputs = draw_inputs(encoding.shape, len(index), len(index), dtype, seed=seed)
    ids_BT = draw_tokens(encoding.shape.vocab, 2, len(index), seed)
    try:
        pos = encoding.locate(tokens, torch.device("cpu")).pos[index]
        results = [encoding.embed(inputs["x"], pos, ids_BT), attend_at(encoding, inputs, pos)]
        if "temperature" in encoding.blanks:
            results.append(encoding.temperature(torch.tensor([tokens])))
    except Unsupported:
        return False
    return all(bool(x.isfinite().all()) for x in results)


def shift_in_words(shift: Tensor) -> str:
    """A shift in words."""
    if shift.ndim == 0:
        return f"{int(shift)} token{'s' * (int(shift) > 1)}"
    rows, columns = shift.tolist()
    return f"{rows} rows" if rows else f"{columns} columns"


def shifted(encoding: Encoding, tested: SpecUnderTest, shift: Tensor) -> Tensor:
    """Attention of a few tokens that begin `shift` tokens, or rows and columns, after the first position.

    An embedding is used as q, k and v. On a line the tokens are spread, as `shifted_positions` says.
    """
    count = LENGTH // 2
    pos = shifted_positions(encoding, count, shift, apart=2 if encoding.axes == 1 else 1)
    inputs = embedded(encoding, tested.inputs(count, count, torch.float32), pos, tested.text(count))
    return attend_at(encoding, inputs, pos)


def shifted_positions(encoding: Encoding, count: int, shift: Tensor, apart: int = 1) -> Tensor:
    """The positions of `count` tokens that begin `shift` tokens, or rows and columns `[2]`, after the first position.

    On a line each is one of the last `count * apart` tokens of a text, every `apart`-th, so that a border within a
    training window lies between some of them; on a grid they are a grid of their own.
    """
    if encoding.axes == 2:
        return encoding.positions(raster(torch.arange(count), columns_of(count)) + shift)
    return encoding.locate(int(shift) + count * apart, shift.device).pos[int(shift) :: apart]
