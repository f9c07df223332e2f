"""Training steps of a peer's model.

Both models train with poscli's optimizer, Muon for the matrices of the layers and AdamW for the rest, so that their
steps differ only by the forward and backward passes of the two implementations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.bench.synthetic import synthetic_tokens
from poscli.bench.timing import Work
from poscli.config.run import Recipe, RunConfig
from poscli.training.optimizer import Muon


def forward_backward(model: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], tokens: Tensor) -> Work:
    """Loss and gradients of a batch `[B, T + 1]`, for poscli's model or a peer's."""

    def work() -> None:
        for parameter in parameters:
            parameter.grad = None
        logits = model(tokens[:, :-1]).float()
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()

    return work


def batch_of(config: RunConfig, device: torch.device) -> Tensor:
    """A training batch of a run, `[B, T + 1]`."""
    return synthetic_tokens(config.batch, config.length + 1).to(device)


class PeerStep:
    """Calling it takes the next training step of a peer's model.

    The order is that of poscli's trainer: gradients, clipping, optimizer.
    """

    def __init__(self, model: nn.Module, config: RunConfig, device: torch.device) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.tokens, self.clip = batch_of(config, device), config.recipe.clip
        self.gradients = forward_backward(model, self.parameters, self.tokens)
        self.optimizers = _optimizers(model, config.recipe)

    def __call__(self) -> None:
        self.gradients()
        nn.utils.clip_grad_norm_(self.parameters, self.clip).item()
        for optimizer in self.optimizers:
            optimizer.step()


def _optimizers(model: nn.Module, recipe: Recipe) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the layers, AdamW for everything else, as in poscli's own optimizer."""
    used = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = {name for name, p in used if p.ndim == 2 and ".layers." in name and name.endswith(".weight")}
    muon = Muon([p for name, p in used if name in matrices], lr=recipe.matrix_lr, momentum=recipe.momentum)
    rest = [p for name, p in used if name not in matrices]
    return muon, torch.optim.AdamW(rest, lr=recipe.head_lr, betas=(0.9, recipe.beta2), weight_decay=0.0)
