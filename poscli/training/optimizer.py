"""The optimizer: Muon for the matrices of the layers, AdamW for the rest, one schedule for both."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from poscli.config.run import Recipe
from poscli.model.transformer import Model
from poscli.training.muon import Muon
from poscli.training.sharding import is_sharded, sharded_like, whole


class Optimizer:
    """Muon and AdamW under one schedule of the learning rate: linear rise, plateau, linear fall to zero."""

    def __init__(self, model: Model, recipe: Recipe, steps: int) -> None:
        self.recipe, self.steps = recipe, steps
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        matrices, adamw = _groups(model, recipe)
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "muon": Muon(matrices, lr=recipe.matrix_lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay),
            "adamw": torch.optim.AdamW(adamw, betas=(0.9, recipe.beta2), eps=1e-10, weight_decay=0.0),
        }
        self.peaks = {name: [group["lr"] for group in o.param_groups] for name, o in self.optimizers.items()}

    def scale(self, step: int) -> float:
        """The factor by which the schedule multiplies every peak learning rate, at a step counted from 0."""
        warmup, decay = (max(1, round(share * self.steps)) for share in (self.recipe.warmup, self.recipe.decay))
        return min((step + 1) / warmup, (self.steps - step) / decay, 1.0)

    def clip(self) -> Tensor:
        """Scale the gradients down to the largest norm allowed; returns their norm before that."""
        sharded = [p for p in self.parameters if is_sharded(p)]
        if not sharded:
            return nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        # The norm of whole gradients, one at a time: the norms of their shards, added up, differ from it by so much
        # (4e-6 of it) that the losses of a run would part from those of one process.
        grads = (p.grad for p in self.parameters if p.grad is not None)
        norm = torch.stack([torch.linalg.vector_norm(whole(grad)) for grad in grads]).norm()
        for kind in sharded, [p for p in self.parameters if not is_sharded(p)]:  # torch does not take both at once
            nn.utils.clip_grads_with_norm_(kind, self.recipe.clip, norm)
        return norm

    def step(self, step: int) -> None:
        """Apply the gradients of a step, counted from 0."""
        for name, optimizer in self.optimizers.items():
            for group, peak in zip(optimizer.param_groups, self.peaks[name], strict=True):
                group["lr"] = peak * self.scale(step)
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """The state as whole tensors named `optimizer/parameter/name`, for a checkpoint."""
        return {
            f"{name}/{index}/{key}": whole(value)
            for name, optimizer in self.optimizers.items()
            for index, state in optimizer.state_dict()["state"].items()
            for key, value in state.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `tensors` returned; tensors of other names are ignored."""
        for name, optimizer in self.optimizers.items():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            state: dict[int, dict[str, Tensor]] = {}
            for path, value in tensors.items():
                owner, _, rest = path.partition("/")
                if owner == name:
                    index, key = rest.split("/")
                    state.setdefault(int(index), {})[key] = sharded_like(value, parameters[int(index)])
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _groups(model: Model, recipe: Recipe) -> tuple[list[nn.Parameter], list[dict]]:
    """The parameters for Muon, and the parameter groups for AdamW."""
    encoding = [p for p in model.encoding_parameters() if p.requires_grad]
    of_encoding = {id(p) for p in encoding}
    matrices = [p for p in model.layers.parameters() if p.ndim == 2 and id(p) not in of_encoding]
    norms = [p for p in model.parameters() if p.ndim == 1 and id(p) not in of_encoding]
    adamw = [
        {"params": [model.embedding], "lr": recipe.embedding_lr},
        {"params": [model.head.weight, *norms], "lr": recipe.head_lr},
        {"params": encoding, "lr": recipe.encoding_lr},
    ]
    return matrices, [group for group in adamw if group["params"]]
