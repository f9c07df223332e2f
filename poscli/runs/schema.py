"""The columns of the result files, and how these files are read and written.

`eval.csv` has one row per (run, length, protocol, variant), `units.csv` one per row of it and unit that its intervals
resample, `position.csv` one per (run, length, bin of the position in the windows that are measured whole), `train.csv`
one per logged step. A failed measurement is a row of eval.csv whose `status` says why; no row is missing. `units.csv`,
`recall.csv` and `answers.csv` are written by every evaluation, those in the folder `why` by `poscli extrapolate --why`.
"""

from __future__ import annotations

import io
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poscli.system.errors import CorruptError
from poscli.system.files import read_bytes, write_atomic

if TYPE_CHECKING:
    import pandas as pd

AGAIN = "delete it and run the command again"  # what to do about a table that can be made again

Columns = dict[str, tuple[str, str]]  # name of a column -> (pandas dtype, meaning)

FULL = "full"  # the value of the column `variant` for the model itself; every other variant is a baseline
CROP = "crop"  # the baseline whose loss minus the model's is the context gain

EVAL_COLUMNS: Columns = {
    "schema": ("int64", "version of this table"),
    "run_id": ("str", "folder under results/runs"),
    "encoding": ("str", "canonical spec of the encoding; also the trained encoding and the memory, where they differ"),
    "seed": ("int64", "seed of the weights and the data order; all seeds are evaluated on the same sample"),
    "corpus": ("str", "name of the corpus"),
    "fingerprint": ("str", "fingerprint of the corpus' content and split"),
    "train_length": ("int64", "tokens in a training window, L"),
    "length": ("int64", "tokens in an evaluation window, l"),
    "ratio": ("float64", "l / L"),
    "protocol": ("str", "which windows are read and which of their tokens are scored"),
    "variant": ("str", "full (the model itself), or the baseline that the model was restricted to"),
    "stride": ("int64", "tokens scored at the end of each window"),
    "status": ("str", "ok, unsupported, diverged, oom, nonfinite or failed"),
    "reason": ("str", "cause of a status that is not ok, in one line"),
    "tokens": ("int64", "tokens scored"),
    "bytes": ("int64", "bytes of the original text that these tokens encode"),
    "documents": ("int64", "documents that the scored tokens come from"),
    "nll": ("float64", "mean negative log-likelihood, nats per token"),
    "bpb": ("float64", "bits per byte"),
    "ppl": ("float64", "perplexity per token, exp(nll)"),
    "unigram": ("float64", "nats per token of guessing the same tokens by their frequency in the training text"),
    "chance": ("float64", "nats per token of guessing evenly among the whole vocabulary"),
    "optimum": (
        "float64",
        "smallest possible nll of any model that reads the same windows, on the same tokens; empty where unknown",
    ),
    "guess_gain_low": (
        "float64",
        "lower end of the 95 % interval of the better guess minus nll on identical tokens, paired bootstrap",
    ),
    "nll_low": ("float64", "lower end of the 95 % interval of nll, bootstrap over `resampled`"),
    "nll_high": ("float64", "upper end of that interval"),
    "gain": ("float64", "context gain, nats per token: nll of crop minus nll of this row, on identical tokens"),
    "gain_low": ("float64", "lower end of the 95 % interval of the gain, paired bootstrap over `resampled`"),
    "gain_high": ("float64", "upper end of that interval"),
    "resampled": ("str", "units of the bootstrap: documents, or spans of tokens where documents are too few"),
    "seconds": ("float64", "seconds of the measurement that this row shares with others"),
    "tokens_per_s": ("float64", "tokens read by the model per second"),
    "peak_mb": ("float64", "peak memory of the process (CPU) or of the device's allocator (CUDA), MiB"),
    "parameters": ("int64", "parameters of the model, encoding included"),
    "engine": ("str", "attention engine that ran"),
    "device": ("str", "cpu, cuda:NAME"),
    "dtype": ("str", "dtype of the weights in evaluation"),
    "poscli": ("str", "version of poscli"),
    "commit": ("str", "commit of the source tree, if known"),
    "trained_on": ("str", "name of the corpus that the model was trained on, if it was evaluated on another one"),
    "machine": ("str", "name of the machine on which the row was measured: POSCLI_MACHINE, or the host's name"),
    "cpu": ("str", "name of that machine's processor"),
    "torch": ("str", "version of torch"),
    "engine_reason": (
        "str",
        "why no faster attention engine ran, also a kernel that is wrong on this device; else empty",
    ),
    "trained_code": (
        "str",
        "hashes of the code that trained the model: of the encoding, and of what trains; empty for checkpoints",
    ),
    "measured_code": ("str", "hashes of the code that measured this row: of the encoding, and of what measures"),
    "tokenizer": ("str", "spec of the tokenizer, and in brackets its fingerprint, which `bytes` does not have"),
    "blind": (
        "float64",
        "smallest possible nll, or a bound below it, of a reader of the same windows that ignores the order of their "
        "tokens; empty where unknown",
    ),
}

# What identifies the run in the other tables of an evaluation, and the length of its windows.
RUN_COLUMNS: Columns = {
    "run_id": ("str", "folder under results/runs"),
    "encoding": ("str", "canonical spec of the encoding"),
    "seed": ("int64", "seed"),
    "fingerprint": ("str", "fingerprint of the corpus"),
    "train_length": ("int64", "L"),
}
LENGTH_COLUMN: Columns = {"length": ("int64", "l")}

POSITION_COLUMNS: Columns = (
    RUN_COLUMNS
    | LENGTH_COLUMN
    | {
        "from": ("int64", "first position of this bin; position 1 is the first target in the window"),
        "to": ("int64", "last position of this bin, inclusive"),
        "tokens": ("int64", "tokens in the bin"),
        "nll": ("float64", "mean nats per token"),
        "tail_slope": ("float64", "change of nll per doubling of the position over the last two octaves of the window"),
    }
)

TRAIN_COLUMNS: Columns = {
    "step": ("int64", "optimizer steps done"),
    "tokens": ("int64", "tokens seen"),
    "nll": ("float64", "mean nats per token since the last row"),
    "bpb": ("float64", "mean bits per byte since the last row"),
    "grad_norm": ("float64", "gradient norm of the last step, before clipping"),
    "lr_scale": ("float64", "factor of every peak learning rate in the next step, by the schedule; 0 at the end"),
    "tokens_per_s": ("float64", "tokens per second since the last row"),
    "seconds": ("float64", "training time so far, in seconds"),
    "status": ("str", "ok or diverged"),
}

# Which train.csv also has if the task has right answers.
LEARNED_COLUMNS: Columns = {
    "accuracy": (
        "float64",
        "share of right answers after this step, in 64 windows of L tokens that are neither trained on nor scored; "
        "empty in rows where it was not measured",
    ),
}


def perplexity(nll: float) -> float:
    """The column `ppl` of a loss in nats per token: exp(nll), or infinity where a float cannot hold it."""
    return math.exp(nll) if nll < 709 else (math.inf if nll == nll else math.nan)


def frame(rows: list[dict], columns: Columns) -> pd.DataFrame:
    """A table of rows with exactly these columns, in this order."""
    import pandas as pd

    unknown = {key for row in rows for key in row} - set(columns)
    assert not unknown, f"columns outside the schema: {sorted(unknown)}"
    kinds = _dtypes(columns)  # each column is made as what it is: to convert a table takes five times as long
    return pd.DataFrame(
        {name: pd.array([_cell(row, name, columns) for row in rows], dtype=kinds[name]) for name in columns}
    )


def _cell(row: dict, name: str, columns: Columns) -> Any:
    """A value as in a table that is read from its file, where a text that is not known is an empty one."""
    value = row.get(name)
    return "" if value is None and columns[name][0] == "str" else value


def table_text(table: pd.DataFrame) -> str:
    """A table as the text of a CSV file."""
    return table.to_csv(index=False, lineterminator="\n")


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table to a CSV file, whole or not at all."""
    write_atomic(path, table_text(table))


def read_table(path: Path, columns: Columns) -> pd.DataFrame:
    """Read a CSV file that `write_table` wrote; CorruptError if it is another file or lacks one of `columns`."""
    return parse_table(read_bytes(path, "run the command that writes it again"), path, columns)


def parse_table(
    content: bytes, path: Path, columns: Columns, optional: Columns | None = None, cure: str = AGAIN
) -> pd.DataFrame:
    """The table in the content of a CSV file, read from `path`; CorruptError if it lacks one of `columns`.

    Columns in `optional` are kept if the file has them; all others are dropped. `cure` ends the message of the error.
    """
    import pandas as pd

    wanted = columns | (optional or {})
    missing_if = {name: [""] for name, (kind, _) in wanted.items() if kind != "str"}  # an empty text is a text
    try:
        table = pd.read_csv(io.BytesIO(content), keep_default_na=False, na_values=missing_if, dtype=_dtypes(wanted))
    except (ValueError, OverflowError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptError(f"{path} is not a table of poscli ({cause}); {cure}") from error
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise CorruptError(f"{path} lacks the column {missing[0]!r}; {cure}")
    return table[[name for name in wanted if name in table.columns]]


def join_tables(tables: list[pd.DataFrame], columns: Columns) -> pd.DataFrame:
    """Several tables as one; without tables, an empty one with these columns."""
    import pandas as pd

    return pd.concat(tables, ignore_index=True) if tables else frame([], columns)


def _dtypes(columns: Columns) -> dict[str, Any]:
    return {name: _dtype(kind) for name, (kind, _) in columns.items()}


@cache  # to look a name up takes as long as to read a column
def _dtype(kind: str) -> Any:
    import pandas as pd

    with pd.option_context("mode.string_storage", "python"):  # as in build_report: fast to cut
        return pd.api.types.pandas_dtype(kind)


UNIT_COLUMNS: Columns = (
    RUN_COLUMNS
    | LENGTH_COLUMN
    | {
        "protocol": ("str", "as in eval.csv"),
        "variant": ("str", "as in eval.csv"),
        "unit": (
            "str",
            "number of the document; where documents are too few to resample, also the end of the window in it",
        ),
        "tokens": ("int64", "tokens scored in the unit"),
        "bytes": ("int64", "bytes of the original text that these tokens encode"),
        "nll": ("float64", "mean nats per token"),
    }
)

GAIN_COLUMNS: Columns = {
    "documents": ("int64", "documents that these tokens come from"),
    "nll": ("float64", "mean nats of these tokens with the longest window"),
    "nll_crop": ("float64", "mean nats of these tokens with the window cut to L"),
    "gain": ("float64", "nll_crop - nll: nats per token that the text beyond L is worth"),
    "gain_low": ("float64", "lower end of the 95 % interval of the gain over documents, if there are at least five"),
    "gain_high": ("float64", "upper end of that interval"),
}

RECALL_COLUMNS: Columns = {
    "ngram": ("int64", "n, the tokens before a scored token whose last earlier occurrence is looked up"),
    "kind": ("str", "hit: the same token followed there; miss: another one did; new: no earlier occurrence in sight"),
    "from": ("int64", "smallest distance of this bin: tokens from the earlier occurrence to this one; 0 for new"),
    "to": ("int64", "largest distance of this bin, inclusive; 0 for new"),
    "tokens": ("int64", "tokens of this kind at these distances"),
    **GAIN_COLUMNS,
}

ANSWER_COLUMNS: Columns = LENGTH_COLUMN | {
    "unit": ("str", "number of the episode, as in units.csv"),
    "by": ("str", "what from and to are: depth (percent of the window, from its start), or gap (tokens back)"),
    "from": ("int64", "smallest depth or gap of this bin: the place of the token that the answer repeats"),
    "to": ("int64", "largest depth or gap of this bin, inclusive"),
    "tokens": ("int64", "scored tokens of the episode in this bin"),
    "right": ("int64", "those of them that the model ranks first"),
    "chance": ("float64", "share that a guess gets right which knows the task and not the text"),
}

ATTRIBUTION_COLUMNS: Columns = {
    "change": (
        "str",
        "base (the last L tokens), full (the whole window), or the one change made: offset, gap, crowd, sinkless",
    ),
    "train_length": ("int64", "tokens in a training window, L"),
    "length": ("int64", "tokens in the long window, l"),
    "status": (
        "str",
        "ok; void: it cannot matter, or has no meaning, by definition; fault: it mattered all the same; unsupported; "
        "not measured",
    ),
    "reason": ("str", "cause of a status that is not ok, in one line"),
    "nll": ("float64", "mean negative log-likelihood of the scored tokens, nats per token"),
    "harm": ("float64", "nll minus that of the base, on identical tokens"),
    "harm_low": ("float64", "lower end of the 95 % interval of the harm over documents; empty where that is unknown"),
    "harm_high": ("float64", "upper end of that interval"),
    "share": ("float64", "harm divided by that of the full window; empty if that is below 0.01 nats"),
    "share_low": ("float64", "lower end of the 95 % interval of the share over documents; empty where that is unknown"),
    "share_high": ("float64", "upper end of that interval"),
}

SATURATION_COLUMNS: Columns = {
    "window": ("int64", "w, the most tokens that a scored token's prediction reads; the least is about half as many"),
    "tokens": ("int64", "tokens scored, the same at every window"),
    "documents": ("int64", "documents that these tokens come from"),
    "nll": ("float64", "mean nats per token"),
    "excess": ("float64", "nll minus that of the window with the lowest nll, nats per token"),
    "excess_low": (
        "float64",
        "lower end of the 95 % interval of the excess over documents, if there are at least five",
    ),
    "excess_high": ("float64", "upper end of that interval"),
    "saturates_at": (
        "int64",
        "the smallest window within 0.01 bits per token of the lowest nll; the same in every row",
    ),
}

RECEPTIVE_COLUMNS: Columns = {
    "method": ("str", "gradient or replace"),
    "from": ("int64", "smallest distance of these tokens from the prediction, for replace from the first one scored"),
    "to": ("int64", "largest distance, inclusive"),
    "windows": ("int64", "windows read"),
    "tokens": ("int64", "predictions: with gradient the last one of each window, with replace all that are scored"),
    "value": (
        "float64",
        "gradient: share of these inputs in the sum of all norms, mean over windows; replace: nats per token by which "
        "the loss rises if these tokens are another document's",
    ),
    "low": ("float64", "lower end of the 95 % interval of the value over documents, if there are at least five"),
    "high": ("float64", "upper end of that interval"),
    "beyond": ("float64", "gradient: share of all inputs at distances of L and more, the same in every row"),
    "reason": ("str", "why there are no numbers; empty if there are"),
}

DILUTION_COLUMNS: Columns = {
    "window": ("int64", "tokens that the model reads"),
    "layer": ("int64", "number of the layer, from 1"),
    "head": ("int64", "number of the head, from 1"),
    "entropy": ("float64", "entropy of the weights over log of the number of keys seen, mean over scored queries"),
    "far_mass": ("float64", "share of the weights on keys L or more tokens back, mean over scored queries"),
}

KEY_TOKEN_COLUMNS: Columns = {
    "kind": ("str", "key: tokens that a judge predicts only with a context of 8 L; other: all the others"),
    "tokens": ("int64", "tokens of this kind"),
    **GAIN_COLUMNS,
    "reason": ("str", "why there are no numbers; empty if there are"),
}

# The tables by the name of the file, without `.csv`; each begins with the columns that identify the run.
OF_EVALUATION: dict[str, Columns] = {
    "units": RUN_COLUMNS | UNIT_COLUMNS,
    "recall": RUN_COLUMNS | RECALL_COLUMNS,
    "answers": RUN_COLUMNS | ANSWER_COLUMNS,
}
OF_WHY: dict[str, Columns] = {
    "why/attribution": RUN_COLUMNS | ATTRIBUTION_COLUMNS,
    "why/saturation": RUN_COLUMNS | SATURATION_COLUMNS,
    "why/receptive": RUN_COLUMNS | RECEPTIVE_COLUMNS,
    "why/dilution": RUN_COLUMNS | DILUTION_COLUMNS,
    "why/key_tokens": RUN_COLUMNS | KEY_TOKEN_COLUMNS,
}
DETAILS = OF_EVALUATION | OF_WHY
