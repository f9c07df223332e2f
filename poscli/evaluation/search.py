"""Search for constants of an encoding on a trained model, such as LongRoPE's factors, by the loss on training text."""

from __future__ import annotations

import torch
from torch import Tensor

from poscli.equation import Encoding
from poscli.evaluation.losses import NLL
from poscli.evaluation.measure import score
from poscli.model.language_model import LanguageModel
from poscli.system.console import note
from poscli.system.progress import Meter
from poscli.system.seeds import generator
from poscli.tasks import Task

WINDOWS = 4  # of training text; each candidate is judged by its loss on them


def search_constants(model: LanguageModel, task: Task, length: int) -> None:
    """Run the search of every encoding of a model that has one, on windows of `length` tokens of training text."""
    parts = dict.fromkeys(module for encoding in model.encodings for module in encoding.modules())
    searching = [part for part in parts if isinstance(part, Encoding) and part.evaluations]
    if not searching or length <= model.shape.length:
        return
    task.check(length)
    inputs, targets = task.batch(size=WINDOWS, length=length, seed=0, step=0).tensors(model.device)
    for encoding in searching:
        with Meter(f"search for {encoding.name}", encoding.evaluations) as progress:

            def loss() -> float:
                found = _loss(model, task, inputs, targets)
                progress.advance(1, f"{found:.3f} nats")
                return found

            least = encoding.search(loss, encoding.evaluations, generator(0, "search"), length / model.shape.length)
        note(f"{encoding.name} was fitted to {WINDOWS} training windows of {length} tokens: {least:.3f} nats per token")


@torch.inference_mode()
def _loss(model: LanguageModel, task: Task, inputs: Tensor, targets: Tensor) -> float:
    """Mean nats per target that counts; the windows go through the model one at a time, because they are long."""
    counted, total = targets >= 0, 0.0
    for window, wanted, counts in zip(inputs, targets, counted, strict=True):
        nll = score(model, task, window[None], wanted[None])[NLL][0]
        total += float(nll[counts].double().sum())
    return total / int(counted.sum())
