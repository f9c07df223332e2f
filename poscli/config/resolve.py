"""Turn a request into the full configuration of one training run."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from poscli import specs
from poscli.config.plugins import source_hashes
from poscli.config.request import TrainRequest
from poscli.config.run import PRESETS, ModelConfig, Recipe, RunConfig, mlp_width
from poscli.config.size import refuse_unaffordable_training
from poscli.config.validate import validated
from poscli.data.tokenizers import TOKENIZERS
from poscli.system.device import precision_name
from poscli.system.errors import UsageError, near
from poscli.system.ranks import ranks
from poscli.system.text import counted
from poscli.tasks import TASKS

BATCH_TOKENS = 2048  # tokens of a training step unless --batch is given


def resolve(
    request: TrainRequest, encoding: str, seed: int, device: torch.device, axes: int | None = None
) -> RunConfig:
    """The configuration of a run. UsageError for an encoding, shape, recipe or budget that cannot be trained.

    `axes` are those of the tokens' positions, by default the task's.
    """
    model = model_config(request.preset, request.model)
    task, tokenizer = TASKS.full_name(request.task), TOKENIZERS.full_name(request.tokenizer)
    length = TASKS.get(task).length if request.length is None else request.length
    if model.memory and TASKS.get(task).axes > 1:
        raise UsageError(
            f"--memory {model.memory}: the task {task} reads whole grids, and none continues another; leave it out"
        )
    _refuse_unread(task, request)
    values = {
        "encoding": str(specs.parse(encoding)),
        "task": task,
        "corpus": request.corpus,
        "tokenizer": tokenizer,
        "seed": seed,
        "length": length,
        "batch": request.batch or max(1, BATCH_TOKENS // length),
        "accumulate": request.accumulate,
        "tokens": request.tokens,
        "precision": precision_name(request.precision, device, model.width),
        "model": model,
        "recipe": validated(Recipe, dict(request.recipe), "recipe"),
    }
    config = validated(RunConfig, values, "train")
    if config.tokens < (step := config.batch * config.length):
        raise UsageError(
            f"--tokens {config.tokens} is less than one step of {step} tokens ({counted(config.batch, 'window')} "
            f"of {config.length}); give at least {step}, or a smaller --batch or --length"
        )
    parts = ranks().count * config.accumulate
    if config.batch % parts:
        how = f"{counted(ranks().count, 'rank')} times --accumulate {config.accumulate}"
        raise UsageError(
            f"--batch {config.batch} cannot be divided into {parts} equal parts ({how}); give a multiple of {parts}"
        )
    refuse_unaffordable_training(config, device)  # first: the check builds the encodings
    specs.check(encoding, model.shape(length), memory=model.memory > 0, axes=axes or TASKS.get(task).axes)
    sources = source_hashes(config.encoding, task, tokenizer, model.shape(length))
    return config.model_copy(update={"plugins": sources})


def _refuse_unread(task: str, request: TrainRequest) -> None:
    """UsageError for a text or a tokenizer that is asked for although the task reads no text.

    Only the defaults are refused here: a task refuses all others itself.
    """
    if TASKS.get(task).reads_text:
        return
    for name in ("corpus", "tokenizer"):
        value = getattr(request, name)
        if name in request.model_fields_set and value == TrainRequest.model_fields[name].default:
            raise UsageError(f"--{name} {value}: the task {task} does not read text; leave it out")


def model_config(preset: str, fields: Mapping[str, int]) -> ModelConfig:
    """The preset's shape with the given fields instead; a width without `mlp` also sets the usual width of the MLP."""
    if preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}: {near(preset, PRESETS)}")
    usual = {"mlp": mlp_width(fields["width"])} if "width" in fields else {}
    return validated(ModelConfig, PRESETS[preset].model_dump() | usual | dict(fields), "model")
