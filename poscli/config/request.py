"""What a person asks for, on the command line or in a suite; resolve.py turns it into the configuration of a run.

The descriptions of the fields are the help texts of the options.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from poscli.config.validate import LARGEST_BATCH, LONGEST_WINDOW, MOST, Longest, Request, TokenCount
from poscli.system.errors import UsageError

DEFAULT_BASELINES = ("crop", "window")  # measured in every evaluation
DEFAULT_NGRAM = 6
SHORTEST_PROFILED, LONGEST_PROFILED = 8, 2**16  # the L of `poscli corpus`, in tokens

Ratio = Annotated[float, Field(ge=1, le=MOST, allow_inf_nan=False)]


def ascending(ratios: tuple[float, ...]) -> tuple[float, ...]:
    """Lengths in ascending order."""
    return tuple(sorted(ratios))


class TrainRequest(Request):
    """What to train: the table [train] of a suite, the options of `poscli train`."""

    task: str = Field("language", description="What is asked of the model; `poscli ls tasks` shows all.")
    corpus: str = Field("stdlib", description="What to train on; `poscli ls corpora` shows all.")
    tokenizer: str = Field("bytes", description="How text becomes tokens; `poscli ls tokenizers` shows all.")
    length: int | None = Field(
        None,
        ge=8,
        le=LONGEST_WINDOW,
        description="Tokens in a training window, L; by default 512, 256 (16 x 16 cells) for the task grid, 32 for "
        "passkey, recall, induction and recency.",
    )
    tokens: TokenCount = Field(2_000_000, description="Tokens to train on, such as 500k or 2M.")
    batch: int | None = Field(
        None, ge=1, le=LARGEST_BATCH, description="Windows per step; by default as many as make 2048 tokens."
    )
    accumulate: int = Field(
        1,
        ge=1,
        le=LARGEST_BATCH,
        description="Parts in which a step processes its windows, one after the other, to need less memory.",
    )
    preset: str = Field("tiny", description="Shape of the model: nano, copy, tiny, small or base.")
    model: dict[str, int] = Field({}, description="Single fields of the model's shape, instead of the preset's.")
    recipe: dict[str, float] = Field({}, description="A field of the recipe, such as matrix_lr=0.02; repeatable.")
    precision: str = Field(
        "auto",
        description="Number format: float32, bfloat16, float16, or auto: bfloat16 on GPUs that have it, and on CPUs "
        "that have it for models of width 256 and more; else float32.",
    )


class ExtrapolateRequest(Request):
    """How to evaluate: the table [extrapolate] of a suite, the options of `poscli extrapolate`."""

    max_len: Longest | None = Field(
        None,
        description="Longest evaluation window: a number of tokens, or a multiple of the training length such as 8x; "
        "by default the longest of --lengths, or 16x without them.",
    )
    lengths: Annotated[tuple[Ratio, ...], AfterValidator(ascending)] = Field(
        (),
        strict=False,  # TOML has lists only
        description="Windows to evaluate, in multiples of the training length, the first of them 1, such as "
        "1,1.25,1.5,2; by default its doublings.",
    )
    tokens: TokenCount = Field(4096, description="Tokens to score per length and protocol, such as 4k or 1M.")
    stride: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Tokens between sliding windows, at most 1/8 of a window (L/32 at L); by default 64 (checkpoints: "
        "128) but at most half of L, on grids half a row.",
    )
    on: list[str] = Field(
        [],
        description="Score the held-out documents of this corpus in place of those of the corpus that the model was "
        "trained on, in the model's own tokens; repeatable.",
    )
    as_: list[str] = Field(
        [],
        alias="as",
        description="Evaluate under another encoding as well, without training: 'yarn', 'rope+logn', or all of them "
        "with 'all'; repeatable.",
    )
    recalibrate: TokenCount | None = Field(
        None,
        description="Before each evaluation under another encoding, train the model under it on so many tokens of its "
        "own corpus, such as 200k, with 0.3 times its learning rates; by default it is evaluated as it is.",
    )
    recalibrate_length: int | None = Field(
        None,
        ge=8,
        le=LONGEST_WINDOW,
        description="Tokens in a window of --recalibrate; by default the training length, at which an encoding that "
        "follows the length of the text, such as yarn without a factor, changes nothing yet.",
    )
    baselines: list[str] = Field(
        list(DEFAULT_BASELINES),
        description="What the model is compared with, such as 'sink(4)+window'; crop and window are always measured; "
        "repeatable.",
    )
    ngram: int = Field(
        DEFAULT_NGRAM,
        ge=1,
        le=64,
        description="Tokens that must occur again, in the table of recall by distance: 4 to 8 suit bytes, 2 or 3 "
        "longer tokens.",
    )
    why: bool = Field(
        False, description="Also ask why each model breaks and whether it uses its context; half as long again."
    )
    protocols: list[str] = Field(
        [],
        description="A protocol of your own or of another package to evaluate under, beside those of the task; "
        "`poscli ls protocols` shows all; repeatable.",
    )

    @field_validator("baselines")
    @classmethod
    def _with_defaults(cls, baselines: list[str]) -> list[str]:
        """The default baselines, which are always measured, then the others in their order."""
        return list(dict.fromkeys([*DEFAULT_BASELINES, *baselines]))


def refuse_smoke_with_tokens(request: ExtrapolateRequest, smoke: bool) -> None:
    """UsageError if a smoke evaluation, which scores a number of tokens of its own, is asked for another one."""
    if smoke and "tokens" in request.model_fields_set:
        raise UsageError(f"--smoke scores a few hundred tokens, and --tokens {request.tokens} others; leave one out")
