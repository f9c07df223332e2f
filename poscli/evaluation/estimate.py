"""How long an evaluation takes, and whether it fits the memory, before it starts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache

import torch

from poscli.config.run import RunConfig
from poscli.config.size import evaluation_bytes
from poscli.equation import Unsupported
from poscli.evaluation.measure import PASS_TOKENS
from poscli.evaluation.plan import Measurement, Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.model.flops import evaluation_flops, rough_seconds
from poscli.model.initialise import fresh_model
from poscli.model.transformer import Model
from poscli.runs.schema import FULL
from poscli.system.errors import UsageError
from poscli.system.memory import unaffordable
from poscli.tasks import Task

MEASURED_FROM = 60.0  # seconds by the count of operations from which a forward pass is timed
SHORT = 512  # tokens of the shorter timed window, at least: attention to fewer takes too little time to show
LOSS_BYTES = 4  # of a token's loss, and of each further measurement of the task
WHY_SHARE = 0.5  # what --why takes, in times of an evaluation; measured 0.4 to 0.7 on CPUs, by encoding and length
CERTAIN = 3  # an estimate of memory of so many times what is free cannot be wrong

Windows = Mapping[Measurement, int]  # the number of windows of each measurement


def refuse_unaffordable(config: RunConfig, settings: EvaluationSettings, device: torch.device) -> None:
    """UsageError if windows of the longest length certainly do not fit the memory."""
    longest = settings.lengths[-1]
    if why := unaffordable_window(config, longest, device, batch=max(1, PASS_TOKENS // longest)):
        option = "--lengths" if settings.ratios else "--max-len"
        raise UsageError(f"evaluating {config.encoding} on {longest} tokens {why}; lower {option}")


def unaffordable_window(config: RunConfig, length: int, device: torch.device, batch: int = 1) -> str:
    """Why windows of `length` tokens certainly do not fit the memory; empty if they may."""
    size = evaluation_bytes(config, device, batch=batch, length=length)
    return unaffordable(size, device) if unaffordable(size / CERTAIN, device) else ""


@lru_cache(maxsize=4)
def windows_of(task: Task, settings: EvaluationSettings) -> dict[Measurement, int]:
    """The measurements of an evaluation with their numbers of windows; UsageError or DataError if there are none."""
    return {each: len(spans) for each, spans in Plan(task, settings).measurements().items()}


def refuse_unaffordable_losses(task: Task, windows: Windows) -> None:
    """UsageError if the losses of all tokens of all windows, which an evaluation holds, do not fit the memory."""
    count, tokens = sum(windows.values()), sum(n * each.window for each, n in windows.items())
    if why := unaffordable(LOSS_BYTES * tokens * (1 + len(task.columns)), torch.device("cpu")):
        fix = "lower --tokens or --max-len, or raise --stride"
        raise UsageError(f"keeping the losses of {count:,} windows {why}; {fix}")


def evaluation_seconds(config: RunConfig, task: Task, windows: Windows, device: torch.device) -> float:
    """The time to evaluate a trained run: by the count of operations, or, if that is long, by timed forward passes.

    A checkpoint is not loaded to be timed.
    """
    total = rough_evaluation(config, task, windows, device)
    if total <= MEASURED_FROM or config.checkpoint is not None:
        return total
    return evaluation_at(measured_pass(config, task, device), windows)


def rough_evaluation(config: RunConfig, task: Task, windows: Windows, device: torch.device) -> float:
    """The time to evaluate a run by the count of operations, right within a factor of ten."""
    return sum(_rough(config, task, each, count, device) for each, count in windows.items())


def measured_pass(config: RunConfig, task: Task, device: torch.device) -> tuple[float, float]:
    """Seconds per token of windows of any length, and what every further token of the window adds to them."""
    return _timed(fresh_model(config, task.vocab, device).eval().requires_grad_(False), device)


def evaluation_at(measured: tuple[float, float], windows: Windows) -> float:
    """The time to evaluate a run at the pace of `measured_pass`."""
    base, slope = measured
    return sum(
        count * each.window * (base + slope * (each.window if each.model == FULL else 0))
        for each, count in windows.items()
    )


def _rough(config: RunConfig, task: Task, measurement: Measurement, count: int, device: torch.device) -> float:
    tokens = count * measurement.window
    passes = tokens / max(PASS_TOKENS, measurement.window)
    flops = evaluation_flops(config.model, task.vocab, measurement.window)
    if config.checkpoint is not None:  # its matrices are not those of poscli's model of this shape
        of_scores = 2 * config.model.layers * config.model.width * measurement.window
        flops = 2 * config.checkpoint.parameters + of_scores
    return rough_seconds(tokens * flops, 0, device) + passes * rough_seconds(0, config.model.layers, device)


def _timed(model: Model, device: torch.device) -> tuple[float, float]:
    """Seconds per token at any length, and what every further token of the window adds to them."""
    length = max(model.length, SHORT)
    try:
        short, long = _pass(model, length, device), _pass(model, 4 * length, device)
    except Unsupported:  # the encoding ends here, and longer lengths will be skipped for the same reason
        return _pass(model, model.length, device), 0.0
    slope = max(0.0, (long - short) / (3 * length))
    return max(0.0, short - slope * length), slope


@torch.inference_mode()
def _pass(model: Model, length: int, device: torch.device) -> float:
    """Seconds per token of a forward pass over windows of a length; the second of two passes if the first is short."""
    tokens = torch.zeros(max(1, PASS_TOKENS // length), length, dtype=torch.long, device=device)
    seconds = 0.0
    for _ in range(2):
        start = time.monotonic()
        model(tokens).sum().item()  # waits for the device
        seconds = time.monotonic() - start
        if seconds > 1:
            break
    return seconds / tokens.numel()
