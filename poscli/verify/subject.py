"""The encoding under test, in a small model and by itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from poscli.attention import ENGINES, Engine, Positions, attend, biases, tiles
from poscli.config import ModelConfig
from poscli.encodings import Encoding, Shape, Unsupported
from poscli.model import Model
from poscli.spec import build, parse
from poscli.verify.noise import FLOAT32, draw, perturbed, rounding

LENGTH, HEADS, WIDTH, VOCAB, BATCH = 16, 4, 32, 11, 2
CONFIG = ModelConfig(layers=2, width=WIDTH, heads=HEADS, mlp=48)


class Subject:
    """A spec, and models and input drawn from a seed."""

    def __init__(self, spec: str, seed: int) -> None:
        self.spec, self.seed = spec, seed

    @staticmethod
    def shape() -> Shape:
        """Of the small model."""
        return CONFIG.shape(LENGTH, VOCAB)

    @cached_property
    def encodings(self) -> list[Encoding]:
        """Each different encoding of the layers, its weights moved off their start."""
        layers = build(parse(self.spec), self.shape(), self.seed)
        return [
            perturbed(e, self.seed).requires_grad_(False) for e in dict.fromkeys(layers[: len(parse(self.spec).layers)])
        ]

    @cached_property
    def model(self) -> Model:
        """For evaluation, without gradients."""
        return self.fresh().eval().requires_grad_(False)

    def fresh(self, moved: int = 0, seed: int | None = None, layers: int = CONFIG.layers) -> Model:
        """A model as it is drawn, its weights then moved off their start."""
        config = CONFIG.model_copy(update={"layers": layers})
        drawn = Model(config, encoding=self.spec, vocab=VOCAB, length=LENGTH, seed=self.seed if seed is None else seed)
        return perturbed(drawn, self.seed + moved)

    def text(self, count: int, batch: int = BATCH) -> Tensor:
        """Random tokens."""
        generator = torch.Generator().manual_seed(self.seed + 17)
        return torch.randint(VOCAB, (batch, count), generator=generator)

    @property
    def rescales(self) -> bool:
        """Does the output depend on the total length?"""
        return any(encoding.rescales for encoding in self.encodings)

    @property
    def joined(self) -> bool:
        """Is it several encodings, of which no class says how they act together?"""
        return any(len(leaves) > 1 for leaves in parse(self.spec).layers)

    def takes(self, count: int) -> bool:
        """Has it got that many positions?"""
        try:
            with torch.no_grad():
                self.model(self.text(count, 1))
        except Unsupported:
            return False
        return True

    def tolerance(self, text: Tensor, model: Model | None = None) -> float:
        """How far two right ways to compute the logits may be apart."""
        return rounding(model or self.model, text)

    def inputs(self, queries: int, keys: int, dtype: torch.dtype, off: int | None = None) -> dict[str, Tensor]:
        """q, k, v and the layer's input; `off`: the seed by which each is moved by a unit of rounding of float32."""
        sizes = {n: (BATCH, HEADS, t, WIDTH // HEADS) for n, t in (("q", queries), ("k", keys), ("v", keys))}
        sizes["x"] = (BATCH, keys, WIDTH)  # type: ignore[assignment]
        drawn = {name: draw(*size, seed=self.seed + n, dtype=dtype) for n, (name, size) in enumerate(sizes.items())}
        drawn["x"] = drawn["x"].to(torch.promote_types(dtype, torch.float32))  # norms hand out float32 at least
        return drawn if off is None else {name: jolted(x, off + n) for n, (name, x) in enumerate(drawn.items())}

    def attention(
        self, encoding: Encoding, engine: Engine, dtype: torch.dtype, queries: int, keys: int, off: int | None = None
    ) -> dict[str, Tensor]:
        """Output and, from engines that have them, gradients of everything under a random loss, as float64."""
        encoding = copy.deepcopy(encoding).to(dtype).requires_grad_(True)
        if off is not None:
            with torch.no_grad():
                for n, parameter in enumerate(encoding.parameters()):
                    parameter.copy_(jolted(parameter, off + 10 + n))
        given = {name: x.requires_grad_() for name, x in self.inputs(queries, keys, dtype, off).items()}
        features = encoding.features(given["x"]) if "features" in encoding.blanks else None
        positions = Positions.of(encoding, keys, torch.device("cpu"))
        with blocks_of(5), torch.set_grad_enabled(engine.gradient):
            out = attend(engine, encoding, given["q"], given["k"], given["v"], positions, features)
        if not engine.gradient:
            return {"output": out.double()}
        (out * draw(*out.shape, seed=self.seed + 9, dtype=dtype)).sum().backward()
        learned = given | dict(encoding.named_parameters())
        grads = {f"d{name}": torch.zeros(()) if p.grad is None else p.grad for name, p in learned.items()}
        return {name: value.detach().double() for name, value in ({"output": out} | grads).items()}


@contextmanager
def blocks_of(rows: int) -> Iterator[None]:
    """Engines work through so few queries at a time: a small input then meets every seam between blocks."""
    sizes = [
        (biases, "BLOCK", rows),
        (tiles, "ROWS", rows),
        (tiles, "KEYS", rows - 1),
        (tiles, "STEP", 2),
        (tiles, "FEW", 3),
    ]
    kept = [(module, name, getattr(module, name)) for module, name, _ in sizes]
    try:
        for module, name, size in sizes:
            setattr(module, name, size)
        yield
    finally:
        for module, name, size in kept:
            setattr(module, name, size)


def jolted(x: Tensor, seed: int) -> Tensor:
    """Every number moved by one unit of rounding of float32, up or down."""
    return x * (1 + FLOAT32 * draw(*x.shape, seed=seed, dtype=x.dtype).sign())


REFERENCE = ENGINES["reference"]
