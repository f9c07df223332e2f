"""What a bench measures. Nothing in this file imports torch, so that a wrong command line fails at once."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from poscli.config.validate import LARGEST_BATCH, LONGEST_WINDOW, MOST, Request, TokenCount

AUTO = "auto"  # stands for the fastest engine that can run an encoding
YARDSTICK = "none"  # the encoding that every other one is compared with

Workload = Literal["machine", "train", "eval", "decode"]
WORKLOADS: tuple[Workload, ...] = ("machine", "train", "eval", "decode")
LONGEST = 32768  # tokens of the longest evaluation, unless --max-len or --lengths say otherwise
PROFILED = 8192  # tokens of the evaluation of --profile, unless --lengths names others
QUICK = {"repeats": 3, "seconds": 2.0, "limit": 20.0}  # defaults under --quick


class BenchSettings(Request):
    """What to measure, and how long it may take. Every field is an option of `poscli bench`."""

    encodings: tuple[str, ...] = Field(
        (), description="Encoding spec; repeatable. By default every registered encoding."
    )
    engines: tuple[str, ...] = Field(
        (AUTO,), description="Attention engine, such as blocks, or auto for the fastest one (default); repeatable."
    )
    what: tuple[Workload, ...] = Field(
        WORKLOADS, description="What to measure: machine, train, eval or decode; repeatable. By default all of them."
    )
    preset: str = Field("tiny", description="Shape of the model: nano, copy, tiny, small or base.")
    layers: int | None = Field(None, ge=1, le=1000, description="Number of layers; by default the preset's.")
    train_length: int = Field(512, ge=8, le=LONGEST_WINDOW, description="Tokens in a training window.")
    batch: int | None = Field(
        None,
        ge=1,
        le=LARGEST_BATCH,
        description="Windows per training step; by default as many as make 2048 tokens.",
    )
    quick: bool = Field(
        False, description="Lengths of 512 and 2048 tokens only, three repetitions, two seconds per case."
    )
    max_len: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description=f"Longest evaluation, in tokens; by default that of --lengths, or {LONGEST}.",
    )
    lengths: tuple[TokenCount, ...] = Field(
        (),
        validate_default=True,
        description="Lengths to evaluate, such as 512,4096; by default 512, 1024, ... up to --max-len.",
    )
    past: tuple[TokenCount, ...] = Field(
        (), validate_default=True, description="Tokens in the cache when decoding; by default 512,4096."
    )
    repeats: int = Field(5, ge=1, description="Repetitions of every case.")
    seconds: float = Field(
        10.0,
        gt=0,
        description="No repetition of a case begins after so many seconds; its first run always ends.",
    )
    limit: float = Field(60.0, gt=0, description="Skip runs that are expected to take longer than so many seconds.")
    profile: bool = Field(
        False,
        description="Only show where the time goes, by part: of a training step, and of an evaluation of the longest "
        "of --lengths (by default 8192 tokens), with each --enc (by default none).",
    )
    precision: str = Field("auto", description="Number format: auto, float32, bfloat16 or float16.")

    @property
    def profiled_length(self) -> int:
        """The length of the evaluation that --profile breaks down, in tokens."""
        return max(self.lengths) if "lengths" in self.model_fields_set else min(self.max_len or PROFILED, PROFILED)

    @model_validator(mode="before")
    @classmethod
    def _quick(cls, values: dict[str, Any]) -> dict[str, Any]:
        given = [f"--{name}" for name in ("what", "past", "limit") if name in values and values.get("profile")]
        if given:
            raise ValueError(
                f"--profile breaks down one training step and one evaluation: leave out {' and '.join(given)}"
            )
        return QUICK | values if values.get("quick") else values

    @field_validator("lengths", "past")
    @classmethod
    def _up_to_the_longest(cls, asked: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        """The lengths asked for, or default ones, up to --max-len if that is given."""
        longest = info.data.get("max_len")
        if not asked:
            return _default_lengths(str(info.field_name), longest or LONGEST, quick=info.data.get("quick", False))
        if longest is None:
            return asked
        kept = tuple(length for length in asked if length <= longest)
        if not kept:
            raise ValueError(f"all above --max-len {longest}; raise that, or give shorter ones")
        return kept


def _default_lengths(field: str, longest: int, *, quick: bool) -> tuple[int, ...]:
    """The lengths to measure unless others are asked for.

    >>> _default_lengths("lengths", 3000, quick=False), _default_lengths("past", 3000, quick=False)
    ((512, 1024, 2048), (512,))
    >>> _default_lengths("lengths", 100, quick=False), _default_lengths("lengths", 1000, quick=True)
    ((100,), (512,))
    """
    if quick:
        usual: tuple[int, ...] = (512,) if field == "past" else (512, 2048)
    else:
        usual = (512, 4096) if field == "past" else tuple(512 << n for n in range((longest // 512).bit_length()))
    return tuple(length for length in usual if length <= longest) or (longest,)
