"""The columns of the tables of an evaluation beside eval.csv and position.csv: one file per table.

`units.csv`, `recall.csv` and `answers.csv` are written by every evaluation, those in the folder `why` by
`poscli extrapolate --why`.
"""

from __future__ import annotations

from poscli.runs.schema import LENGTH_COLUMN, RUN_COLUMNS, Columns

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
        "base (the last L tokens), full (the whole window), or the one change made: offset, stretch, crowd",
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
    "share": ("float64", "harm divided by that of the full window; empty if that is below 0.01 nats"),
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
