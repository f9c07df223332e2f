"""A model's weights: drawn from the run's seed for a fresh model, and as named tensors for a checkpoint.

Every matrix outside the encoding is drawn from the seed and the weight's name, so that it is the same for every
encoding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from poscli.config.run import ModelConfig, RunConfig
from poscli.model.transformer import Model, Precision, precision_of
from poscli.specs import build, parse
from poscli.system.errors import CorruptError
from poscli.system.seeds import derive, generator


def fresh_model(config: RunConfig, vocab: int, device: torch.device) -> Model:
    """The untrained model of a run, on a device."""
    sizes = {"vocab": vocab, "length": config.length}
    precision = precision_of(config.precision, device)
    return build_model(config.model, config.encoding, **sizes, seed=config.seed, precision=precision).to(device)


def build_model(
    config: ModelConfig, encoding: str, *, vocab: int, length: int, seed: int, precision: Precision | None = None
) -> Model:
    """A model with this shape and the encodings of a spec, with weights drawn from a seed.

    `length` is L, the tokens in a training window; `precision` is float32 unless given.
    """
    encodings = build(parse(encoding), config.shape(length, vocab), derive(seed, "encoding"))
    model = Model(config, encodings, vocab=vocab, length=length, precision=precision or Precision())
    return draw_weights(model, seed)


def draw_weights(model: Model, seed: int) -> Model:
    """Draw every matrix outside the encoding, in place; the weights of norms stay 1. Returns the model.

    A matrix keeps the scale of its input. Matrices that add to the residual stream, and the output head, start at zero.
    """
    of_encoding = {id(p) for p in model.encoding_parameters()}
    for name, weight in model.named_parameters():
        if id(weight) in of_encoding or weight.ndim < 2:
            continue
        if name.endswith(("attention.o.weight", "down.weight", "head.weight")):
            nn.init.zeros_(weight)
            continue
        scale = 1.0 if name == "embedding" else weight.shape[1] ** -0.5
        with torch.no_grad():
            weight.copy_(scale * torch.randn(weight.shape, generator=generator(seed, "weights", name)))
    return model


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by name; a tensor that several layers share appears once."""
    distinct: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        distinct.setdefault(id(tensor), name)
    return {name: state[name].detach().contiguous() for name in distinct.values()}


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give a model the weights that `weights_of` returned; CorruptError if their names or shapes differ."""
    expected = {name: weight.shape for name, weight in weights_of(model).items()}
    if {name: weight.shape for name, weight in weights.items()} != expected:
        raise CorruptError("the checkpoint is of another model than its configuration says; train it again")
    model.load_state_dict(weights, strict=False)
