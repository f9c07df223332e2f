"""The optimizer: Muon for the matrices of the layers, AdamW for the rest, one schedule for both.

Muon (Jordan et al., 2024) is torch's update rule and state, with all matrices of one shape orthogonalised in one batch.
torch.optim.Muon takes one matrix at a time: for the preset `tiny` that is 27 ms of a step of 100 ms on two cores, and
11 ms in batches. Unlike torch's, the products are in float32 on CPUs that have no instructions for bfloat16.
"""

from __future__ import annotations

import inspect
from collections import defaultdict

import torch
from torch import Tensor, nn

from poscli.config.run import Recipe
from poscli.model.transformer import Model
from poscli.system.device import cpu_has_bfloat16

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic Newton-Schulz iteration
STEPS = 5


class Optimizer:
    """Muon and AdamW under one schedule of the learning rate: linear rise, plateau, linear fall to zero."""

    def __init__(self, model: Model, recipe: Recipe, steps: int) -> None:
        self.recipe, self.steps = recipe, steps
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        matrices, adamw = _groups(model, recipe)
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "muon": Muon(matrices, lr=recipe.matrix_lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay),
            "adamw": AdamW(adamw, betas=(0.9, recipe.beta2), eps=1e-10, weight_decay=0.0),
        }
        self.peaks = {name: [group["lr"] for group in o.param_groups] for name, o in self.optimizers.items()}

    def scale(self, step: int) -> float:
        """The factor by which the schedule multiplies every peak learning rate, at a step counted from 0."""
        warmup, decay = (max(1, round(share * self.steps)) for share in (self.recipe.warmup, self.recipe.decay))
        return min((step + 1) / warmup, (self.steps - step) / decay, 1.0)

    def clip(self) -> Tensor:
        """Scale the gradients down to the largest norm allowed; returns their norm before that."""
        return nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)

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
        """The state as tensors named `optimizer/parameter/name`, for a checkpoint."""
        return {
            f"{name}/{index}/{key}": value
            for name, optimizer in self.optimizers.items()
            for index, state in optimizer.state_dict()["state"].items()
            for key, value in state.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `tensors` returned; tensors of other names are ignored."""
        for name, optimizer in self.optimizers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for path, value in tensors.items():
                owner, _, rest = path.partition("/")
                if owner == name:
                    index, key = rest.split("/")
                    state.setdefault(int(index), {})[key] = value
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


class Undecorated(torch.optim.Optimizer):
    """The methods of torch's optimizers without the decorators that import its compiler, which takes a second."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(Undecorated, torch.optim.AdamW):
    """torch.optim.AdamW."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class Muon(Undecorated, torch.optim.Muon):
    """torch.optim.Muon with `adjust_lr_fn="match_rms_adamw"` and Nesterov momentum, faster for many small matrices."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply the gradients. A parameter without one stays as it is, as that of q where scores do without q."""
        for group in self.param_groups:
            batches: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                wide = parameter.shape[0] <= parameter.shape[1]
                batches[parameter.shape if wide else parameter.shape[::-1]].append(parameter)
            for whole in batches.values():
                if not (batch := [p for p in whole if p.grad is not None]):  # scores may do without q and k
                    continue
                averaged = [self._momentum(p, group["momentum"]) for p in batch]
                updates = torch.stack([x if x.shape[0] <= x.shape[1] else x.mT for x in averaged])
                for parameter, update in zip(batch, orthogonal(updates), strict=True):
                    rows, columns = parameter.shape
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    size = 0.2 * max(rows, columns) ** 0.5  # the root mean square of an AdamW update
                    parameter.add_(update if rows <= columns else update.mT, alpha=-group["lr"] * size)

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        """The gradient with Nesterov momentum: interpolated towards its running mean, which is updated first."""
        assert parameter.grad is not None
        state = self.state[parameter]
        buffer = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
        buffer.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum)


def orthogonal(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Semi-orthogonal matrices near `[n, rows, columns]`, rows <= columns: their singular values are roughly 1.

    The products are in `dtype`. By default that is bfloat16, as in torch, but float32 on a CPU without instructions for
    bfloat16, where float32 is three times as fast. The iteration corrects its own rounding, so that either will do.
    """
    a, b, c = COEFFICIENTS
    slow = x.device.type == "cpu" and not cpu_has_bfloat16()
    y = x.to(dtype or (torch.float32 if slow else torch.bfloat16))
    y = y / y.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y.to(x.dtype)
