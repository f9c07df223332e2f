"""What a person asks of `poscli advise`. The descriptions of the fields are the help texts of its options."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from poscli.checkpoints import CORPUS
from poscli.config.request import Ratio, ascending
from poscli.config.validate import LONGEST_WINDOW, MOST, Request, TokenCount

LONGEST_MINUTES = 60 * 24 * 60  # two months


class AdviceRequest(Request):
    """How to measure a checkpoint, at its trained length and at a longer one."""

    corpus: str = Field(CORPUS, description="The text to measure on, like your own; `poscli ls corpora` shows all.")
    minutes: float | None = Field(
        None,
        gt=0,
        le=LONGEST_MINUTES,
        description="Answer within this time: all encodings are tried on little text, and the better ones on more.",
    )
    search: bool = Field(
        False,
        description="Also look for theta, a factor, the factor on cos and sin and a temperature, on text that is not "
        "scored, and compare what is found.",
    )
    tokens: TokenCount = Field(
        16_000, description="Tokens to score per length, such as 16k or 1M; with --minutes, at most."
    )
    stride: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Tokens to score at the end of each input; by default an eighth of the trained length, and at most "
        "1024; with --minutes, at most.",
    )
    lengths: Annotated[tuple[Ratio, ...], AfterValidator(ascending)] = Field(
        (),
        strict=False,
        description="Measure inputs of these lengths too, in multiples of the trained length, such as 1.25,1.5.",
    )
    length: int | None = Field(
        None,
        ge=8,
        le=LONGEST_WINDOW,
        description="Its trained length in tokens, where config.json is wrong.",
    )
    precision: str = Field(
        "auto", description="Number format: auto, which is that of its weights, float32, bfloat16 or float16."
    )
    as_: list[str] = Field(
        [], alias="as", description="Compare these encodings, by default all that need no training; repeatable."
    )
    baselines: list[str] = Field(
        [],
        description="Further ways to limit the attention of the model as it is, such as 'sink(8)+window'; repeatable.",
    )
