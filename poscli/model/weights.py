"""A model's weights as named tensors, for a checkpoint."""

from __future__ import annotations

from torch import Tensor, nn

from poscli.system.errors import CorruptError


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by name; a tensor that several layers share appears once."""
    distinct: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        distinct.setdefault(id(tensor), name)
    return {name: state[name].detach().contiguous() for name in distinct.values()}


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give a model the weights that `weights_of` returned; CorruptError if their names or shapes differ."""
    own = weights_of(model)
    if {n: w.shape for n, w in own.items()} != {n: w.shape for n, w in weights.items()}:
        raise CorruptError("the checkpoint is of another model than its configuration says; train it again")
    model.load_state_dict(weights, strict=False)
