"""The model whose encoding is measured: a trained one, or a new one whose weights have left their initial values."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from poscli.config.run import ModelConfig
from poscli.equation import Encoding, Shape
from poscli.model.initialise import build_model
from poscli.model.transformer import Model
from poscli.specs import check, parse
from poscli.specs.grammar import Spec
from poscli.verify.noise import draw, draw_tokens, perturbed

VOCAB = 257  # of a new model: 256 bytes and the end of a document
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class TestedModel:
    """A model in evaluation mode on the CPU, its spec, and the seed of the random input that it is given."""

    __test__ = False  # pytest would take the class for a test

    spec: Spec
    model: Model
    seed: int
    trained: bool

    @classmethod
    def of(cls, spec: str, config: ModelConfig, length: int, seed: int, model: Model | None) -> TestedModel:
        """A copy of the trained model, or a new one of this shape for windows of `length` tokens.

        Raises UsageError or PluginError for a spec that cannot be trained at this shape.
        """
        if model is not None:
            assert (model.config, model.length) == (config, length), "the shape is not that of the trained model"
            return cls(parse(spec), _frozen(copy.deepcopy(model).to(CPU)), seed, trained=True)
        parsed = check(spec, config.shape(length, VOCAB))
        drawn = build_model(config, str(parsed), vocab=VOCAB, length=length, seed=seed)
        return cls(parsed, _frozen(_moved(drawn, seed)), seed, trained=False)

    @property
    def shape(self) -> Shape:
        """The sizes that the encoding was built for."""
        return self.model.encodings[0].shape

    @property
    def length(self) -> int:
        """The training length L in tokens."""
        return self.model.length

    @property
    def kinds(self) -> list[int]:
        """The first layer of each different encoding: [0, 1] for a spec of two that alternate."""
        encodings = self.model.encodings[: len(self.spec.layers)]
        return [encodings.index(encoding) for encoding in dict.fromkeys(encodings)]

    @property
    def encodings(self) -> list[Encoding]:
        """The different encodings, in float32 as the model uses them."""
        return [self.model.encodings[layer] for layer in self.kinds]

    @cached_property
    def exact(self) -> list[Encoding]:
        """Copies of the different encodings in float64, in which rounding is far smaller than any property."""
        return [copy.deepcopy(encoding).double() for encoding in self.encodings]

    @property
    def composed(self) -> bool:
        """Whether several encodings act together on a layer; no class declares properties of such a composition."""
        return any(len(leaves) > 1 for leaves in self.spec.layers)

    def tokens(self, count: int, batch: int = 2) -> Tensor:
        """Random token ids `[batch, count]`."""
        return draw_tokens(self.model.vocab, batch, count, self.seed)


def _frozen(model: Model) -> Model:
    return model.eval().requires_grad_(False)


def _moved(model: Model, seed: int) -> Model:
    """The model with noise on the encodings and with random numbers in every matrix that starts at zero.

    The output matrices of attention, of the MLP and of the model start at zero, which would hide all that happens
    before them.
    """
    perturbed(nn.ModuleList(dict.fromkeys(model.encodings)), seed)
    with torch.no_grad():
        for n, weight in enumerate(model.parameters()):
            if weight.ndim == 2 and not weight.any():
                weight.copy_(draw(*weight.shape, seed=1000 * seed + n) * weight.shape[1] ** -0.5)
    return model
