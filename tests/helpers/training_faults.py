"""Trainings whose losses something changes, as a broken encoding or a lack of memory would."""

from __future__ import annotations

from collections.abc import Callable

import torch

from poscli.training.trainer import Trainer

Loss = Callable[[], torch.Tensor]


def change_losses(change: Callable[[Trainer, Loss], torch.Tensor], patch: Callable[..., None] = setattr) -> None:
    """From now on the loss of a part of a batch is `change(trainer, loss)`; `loss` computes what it would have been.

    `patch` is pytest's `monkeypatch.setattr` in a test that must put it back.
    """
    gradient = Trainer.gradient

    def changed(trainer: Trainer) -> tuple[float, float]:
        loss = type(trainer.model).loss
        vars(trainer.model)["loss"] = lambda *part: change(trainer, lambda: loss(trainer.model, *part))
        return gradient(trainer)

    patch(Trainer, "gradient", changed)
