"""A checkpoint as a run: its configuration, its folder like that of a training, and the model that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from poscli.checkpoints import CORPUS, gguf
from poscli.checkpoints.architecture import Architecture, architecture, quantization_of
from poscli.checkpoints.checkpoint_model import load_checked
from poscli.checkpoints.source import FETCH, CheckpointSource, config_in, find
from poscli.checkpoints.values import whole
from poscli.checkpoints.wanted import has_one_rope
from poscli.config.run import SCHEMA, CheckpointConfig, ModelConfig, RunConfig, mlp_width
from poscli.config.validate import LONGEST_WINDOW, validated
from poscli.data.corpus import SHORTEST_WINDOW
from poscli.drawing.text import listed
from poscli.model.held import once
from poscli.model.language_model import LanguageModel
from poscli.runs.run import Run, open_run, run_exists
from poscli.specs import parse
from poscli.system.device import places_of_layers
from poscli.system.errors import CorruptError, DataError, UsageError, near
from poscli.system.memory import unaffordable
from poscli.system.provenance import describe
from poscli.system.text import printable
from poscli.tasks import TASKS, Task, open_task

NAMED = 1  # tokens without a row that a tokenizer may have: that of Gemma 3 names an image, which no text holds
ASKED = ("needle", "facts", "repeat")  # tasks, in poscli/checkpoints/tasks.py
OWN_TEXTS = ("text", "jsonl", "parquet")  # corpora that are a person's files, which nobody publishes on

# Number formats by their names in safetensors, and the one to compute in; half precision is slow on CPUs.
FORMATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class ReadCheckpoint:
    """A checkpoint of which all has been read but the weights."""

    source: CheckpointSource
    config: dict[str, Any]  # the content of its config.json
    architecture: Architecture  # what that says
    run: RunConfig  # of its evaluation

    @property
    def name(self) -> str:
        """Its name in tables."""
        assert self.run.checkpoint is not None
        return self.run.checkpoint.name


def checkpoint_at(
    model: str,
    device: torch.device,
    *,
    corpus: str = CORPUS,
    length: int | None = None,
    precision: str = "auto",
    task: str = "language",
) -> ReadCheckpoint:
    """Read a checkpoint, a folder, a file of GGUF or hf:ORG/NAME@REVISION, that is to be evaluated on a corpus.

    Of the weights only the headers and 1 KiB of each tensor are read. `length` is the trained length in tokens, given
    where config.json states it wrongly. `precision` "auto" is the format of most weights, but float32 in place of
    float16 on a CPU, and for formats not in FORMATS. UsageError, DataError or CorruptError for what is not a
    checkpoint that poscli can evaluate.
    """
    if not TASKS.get(task).reads_text:
        raise UsageError(
            f"--task {task} makes its own tokens, which a checkpoint does not know; {listed(ASKED)} ask in words"
        )
    source = find(model)
    config = config_in(source.folder)
    known = architecture(config, length)
    refuse_quantised(config, source.spec)
    if not SHORTEST_WINDOW <= known.length <= LONGEST_WINDOW:
        allowed = f"poscli evaluates models of {SHORTEST_WINDOW} to {LONGEST_WINDOW}"
        if length is not None:
            raise UsageError(f"the trained length {length} was given for {source.spec}, and {allowed}; correct it")
        raise UsageError(
            f"config.json of {source.spec} says a length of {known.length} tokens, and {allowed}; "
            "`poscli extrapolate` takes the trained length as --length"
        )
    parameters, kind = _numbers(source)
    if precision not in ("auto", *FORMATS.values()):
        raise UsageError(f"--precision {precision!r}: {near(precision, ['auto', *FORMATS.values()])}")
    if precision == "auto":
        precision = "float32" if kind == "float16" and device.type == "cpu" else kind
    if why := unaffordable(parameters * getattr(torch, precision).itemsize, *places_of_layers(device)):
        raise UsageError(f"{source.spec} with {parameters:,} parameters in {precision} {why}; use a larger machine")
    width = known.shape.width
    sizes = {"layers": len(known.layers), "width": width, "heads": known.heads}
    sizes["mlp"] = whole(config, ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"), mlp_width(width))
    name = Path(source.spec).name.removesuffix(gguf.SUFFIX)  # short, for tables
    if source.revision:
        name = source.spec.removeprefix("hf:").partition("@")[0].split("/")[-1]
    values: dict[str, Any] = {
        "encoding": str(parse(known.spec)),
        "task": task,
        "corpus": f"whole:{corpus}" if corpus.partition(":")[0] in OWN_TEXTS else corpus,
        "tokenizer": source.tokenizer,
        "length": known.length,
        "batch": 1,
        "tokens": known.length,
        "precision": precision,
        "model": validated(ModelConfig, sizes, "--model"),
        "checkpoint": CheckpointConfig(
            name=name,
            source=source.spec,
            digest=source.digest,
            parameters=parameters,
            one_rope=has_one_rope(known),
        ),
    }
    return ReadCheckpoint(source, config, known, validated(RunConfig, values, "--model"))


def refuse_quantised(config: Mapping[str, Any], spec: str) -> None:
    """UsageError if a checkpoint, which people name by `spec`, has quantised weights."""
    if how := quantization_of(config):
        raise UsageError(
            f"the weights of {spec} are quantised ({how}), which poscli does not run; take the model that was "
            "quantised, or save it dequantised. `poscli card` without --probe reads its positions"
        )


def checkpoint_run(read: ReadCheckpoint, runs: Path, device: torch.device) -> tuple[Run, Task]:
    """The run of a checkpoint, and the task with its text. Nothing is written but the cache of the text.

    DataError if its tokenizer has more tokens than the model knows.
    """
    config, rows = read.run, read.architecture.vocab
    task = open_task(config.task, config.corpus, config.tokenizer)
    config = config.model_copy(update={"corpus": task.corpus})
    assert config.checkpoint is not None
    if task.vocab > rows + NAMED:
        raise DataError(
            f"the tokenizer of {config.checkpoint.source} has {task.vocab} tokens, and the model knows {rows}: they do "
            "not belong together; copy the model's own tokenizer into its folder"
        )
    folder = runs / config.run_id(task.fingerprint)
    if run_exists(folder):
        return open_run(folder), task
    made_of = {"parameters": config.checkpoint.parameters, "engine": "", "transformers": version("transformers")}
    return Run(folder, config, {"schema": SCHEMA, "corpus": task.describe(), **describe(device), **made_of}), task


def load_checkpoint(config: RunConfig, device: torch.device) -> LanguageModel:
    """The model of a checkpoint's run; CorruptError if the checkpoint has changed."""
    assert config.checkpoint is not None
    source = find(config.checkpoint.source)
    if source.digest != config.checkpoint.digest:
        raise CorruptError(
            f"{source.spec} has changed since it was evaluated: its files have another digest; restore it, or evaluate "
            "it under another name"
        )
    known = architecture(config_in(source.folder), config.length)
    identity = (source.folder, source.digest, known, device, config.precision)
    return once(identity, lambda: load_checked(source.folder, known, device, getattr(torch, config.precision)))


def _numbers(source: CheckpointSource) -> tuple[int, str]:
    """The number of parameters in the weight files, and the number format that most of them have.

    CorruptError if the header of a file contradicts itself.
    """
    from safetensors import SafetensorError, safe_open

    counts: dict[str, int] = {}
    for name in source.weights:
        try:
            with safe_open(source.folder / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - no mapping
                    tensor = file.get_slice(key)
                    size = torch.Size(tensor.get_shape()).numel()
                    counts[tensor.get_dtype()] = counts.get(tensor.get_dtype(), 0) + size
        except SafetensorError as error:
            raise CorruptError(f"{printable(source.folder / name)} cannot be read ({error}); {FETCH}") from error
    most = max(counts, key=lambda kind: counts[kind], default="F32")
    return max(1, sum(counts.values())), FORMATS.get(most, "float32")
