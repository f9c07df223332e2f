"""Stock models of transformers: loading one from the folder of a checkpoint, or refusing it in one line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poscli.system.console import warn_once
from poscli.system.errors import DataError

MOST_SAID = 300  # characters of what transformers says of a checkpoint that it cannot load


def stock_model(folder: Path, dtype: torch.dtype | None, device: torch.device) -> Any:
    """The model as transformers loads it: safetensors only, no code from the checkpoint, nothing from the network.

    `dtype` None keeps the number format of its weights. DataError if transformers cannot load it, or if the weight
    files lack a tensor of the model, which transformers would fill with random numbers.
    """
    import transformers

    try:
        with quiet():
            found: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype="auto" if dtype is None else dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
            model, report = found
            model = model.to(device).eval().requires_grad_(False)
    except Exception as error:  # transformers checks little, and what a damaged file makes it raise can be anything
        raise _refusal(folder, error) from error
    _compare_names(folder, report["missing_keys"], report["unexpected_keys"])
    return model


def stock_logits(stock: Any, tokens_BT: Tensor, folder: Path) -> Tensor:
    """The logits of a stock model as it was loaded; DataError if it cannot run, or if they are no finite numbers."""
    try:
        with torch.inference_mode(), quiet():
            logits_BTV = stock(input_ids=tokens_BT, use_cache=False).logits.double()
    except Exception as error:  # of numbers in config.json that fit no model
        raise _refusal(folder, error) from error
    if not logits_BTV.isfinite().all():
        kind = str(next(stock.parameters()).dtype).removeprefix("torch.")
        cause = "its weights are damaged; fetch them again"
        if kind != "float32":
            cause = f"its weights are damaged, or too large for {kind}; try --precision float32"
        raise DataError(f"{folder} has logits that are no finite numbers: {cause}")
    return logits_BTV


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and progress bars of transformers: poscli has its own words for what they say."""
    from transformers.utils import logging as theirs

    logger, bars = logging.getLogger("transformers"), theirs.is_progress_bar_enabled()
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
        if bars:
            theirs.enable_progress_bar()


def _refusal(folder: Path, error: Exception) -> DataError:
    """The error for a checkpoint with which transformers fails."""
    import transformers

    said = " ".join(str(error).split())[:MOST_SAID] or "it gives no reason"
    return DataError(f"transformers {transformers.__version__} cannot use {folder}: {type(error).__name__}: {said}")


def _compare_names(folder: Path, missing: Collection[str], unused: Collection[str]) -> None:
    """Refuse weight files that lack a tensor of the model, and warn of those that hold others besides."""
    if missing:
        raise DataError(
            f"the weight files of {folder} lack {len(missing)} of the tensors of the model that config.json describes, "
            f"such as {min(missing)}: they do not belong together, or a file is missing; fetch the checkpoint again"
        )
    if unused:
        warn_once(
            f"the model that config.json of {folder} describes has no use for {len(unused)} of the tensors in the "
            f"weight files, such as {min(unused)}"
        )
