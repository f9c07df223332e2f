"""The encoding under test, in a small model and by itself."""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor

from poscli.attention import BlockSizes, Engine, attend
from poscli.config.run import ModelConfig
from poscli.equation import Encoding, Unsupported
from poscli.model.initialise import build_model
from poscli.model.transformer import Model
from poscli.specs import build, parse
from poscli.verify.noise import FLOAT32, draw, draw_inputs, draw_tokens, perturbed, rounding

LENGTH, HEADS, WIDTH, VOCAB, BATCH = 16, 4, 32, 11, 2
CONFIG = ModelConfig(layers=2, width=WIDTH, heads=HEADS, mlp=48)
SHAPE = CONFIG.shape(LENGTH, VOCAB)
# Block sizes so small that a short input has several blocks of every kind.
SMALL = BlockSizes(
    block_queries=5, backward_queries=5, backward_entries=1,
    tile_queries=5, tile_keys=4, skip_multiple=2, weighted_queries=3, native_queries=1,
)  # fmt: skip


class Subject:
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
        given = {name: x.requires_grad_() for name, x in self.inputs(queries, keys, dtype, noise).items()}
        features = encoding.features(given["x"])
        positions = encoding.locate(keys, torch.device("cpu"))
        differentiate = engine.gradient and torch.is_grad_enabled()
        with torch.set_grad_enabled(differentiate):
            out = attend(engine, encoding, given["q"], given["k"], given["v"], positions, features, SMALL)
        if not differentiate:
            return {"output": out.double()}
        (out * draw(*out.shape, seed=self.seed + 9, dtype=dtype)).sum().backward()
        learned = given | {f"encoding.{name}": p for name, p in encoding.named_parameters()}
        grads = {f"d{name}": torch.zeros(()) if p.grad is None else p.grad for name, p in learned.items()}
        return {name: value.detach().double() for name, value in ({"output": out} | grads).items()}


def rounded(x: Tensor, seed: int) -> Tensor:
    """Change every number by one unit of rounding of float32, up or down at random."""
    return x * (1 + FLOAT32 * draw(*x.shape, seed=seed, dtype=x.dtype).sign())
