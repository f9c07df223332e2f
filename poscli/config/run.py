"""The configuration of a training run: everything that decides its result. Its hash is part of the run's name.

Nothing in this file imports torch, so that a command line is checked before anything slow is loaded.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import TYPE_CHECKING

import tomli_w
from pydantic import Field, model_validator

from poscli.config.validate import LARGEST_BATCH, LONGEST_WINDOW, MOST, Frozen, write_count

if TYPE_CHECKING:
    from poscli.equation import Shape

# Version of the run folders. Raise it when a column of a result or a default of a run's configuration changes: run
# folders of another version are refused.
SCHEMA = 5
TUNING_SEED = 1_000_000_007  # of the trials of `poscli tune`, and of no run that is scored
LONGEST_SLUG = 120  # characters of a spec in a file name, which has at most 255 bytes


class ModelConfig(Frozen):
    """The shape of a model."""

    layers: int = Field(4, ge=1, le=1000, description="Number of layers.")
    width: int = Field(128, ge=2, le=2**16, description="Width of the residual stream, in channels.")
    heads: int = Field(8, ge=1, description="Attention heads per layer.")
    mlp: int = Field(
        352, ge=1, le=2**20, description="Hidden width of the MLP (SwiGLU); 8/3 of the width if only that is given."
    )
    memory: int = Field(
        0, ge=0, le=LONGEST_WINDOW, description="Tokens of earlier segments to attend to, as in Transformer-XL."
    )
    shifted: int = Field(
        0, ge=0, description="Heads whose keys are those of the token before, so that a single layer can learn to copy."
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelConfig:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by {self.heads} heads; give a multiple of {self.heads}, or other "
                "heads"
            )
        return self

    @model_validator(mode="after")
    def _shifted_heads_exist(self) -> ModelConfig:
        if self.shifted > self.heads:
            raise ValueError(
                f"shifted {self.shifted} is more than the {self.heads} heads there are; give {self.heads} or fewer"
            )
        if self.shifted and self.memory:
            raise ValueError(
                f"shifted {self.shifted} and memory {self.memory} exclude each other: the oldest token of a memory has "
                "no token before it; set one of them to 0"
            )
        return self

    def shape(self, length: int, vocab: int = 257) -> Shape:
        """The sizes that an encoding is built for."""
        from poscli.equation import Shape  # imports torch

        return Shape(width=self.width, heads=self.heads, layers=self.layers, length=length, vocab=vocab)


# `copy` is the smallest model that was seen to use 16 times its training length; docs/RECIPE.md has the search.
# `base` is GPT-2 small with a wider MLP, which makes up for the smaller vocabulary: both have 124M parameters.
PRESETS: dict[str, ModelConfig] = {
    "nano": ModelConfig(layers=2, width=64, heads=4, mlp=192),
    "copy": ModelConfig(layers=2, width=128, heads=4, mlp=352, shifted=2),
    "tiny": ModelConfig(layers=4, width=128, heads=8, mlp=352),
    "small": ModelConfig(layers=6, width=384, heads=6, mlp=1024),
    "base": ModelConfig(layers=12, width=768, heads=12, mlp=3456),
}


def mlp_width(width: int) -> int:
    """The usual hidden width of the MLP: 8/3 of the model's width, rounded up to a multiple of 32.

    SwiGLU's three matrices then have as many weights as two matrices with a hidden width of 4 times the model's.
    """
    return math.ceil(width * 8 / 3 / 32) * 32


class Recipe(Frozen):
    """How a model is trained. The defaults were searched at `tiny`; docs/RECIPE.md has the measurements."""

    matrix_lr: float = Field(0.01, gt=0, description="Peak learning rate of Muon, which trains the layers' matrices.")
    embedding_lr: float = Field(0.1, gt=0, description="Peak learning rate of AdamW for the token embedding.")
    head_lr: float = Field(0.01, gt=0, description="Peak learning rate of AdamW for the output matrix and the norms.")
    encoding_lr: float = Field(0.05, gt=0, description="Peak learning rate of AdamW for the encoding's parameters.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of Muon.")
    beta2: float = Field(0.95, ge=0, lt=1, description="Decay rate of AdamW's second moment.")
    weight_decay: float = Field(0.01, ge=0, description="Weight decay of Muon.")
    warmup: float = Field(0.05, ge=0, lt=1, description="Share of the steps in which the learning rate rises.")
    decay: float = Field(0.9, gt=0, le=1, description="Share of the steps, the last ones, in which it falls to 0.")
    clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")


class CheckpointConfig(Frozen):
    """A checkpoint of transformers in the place of a model that poscli trains."""

    name: str = Field(description="Its name in tables.")
    source: str = Field(description="hf:ORG/NAME@REVISION, or the path of its folder.")
    digest: str = Field(description="A hash of its configuration, its tokenizer and the headers of its weights.")
    parameters: int = Field(ge=1, description="Numbers in its weights.")
    one_rope: bool = Field(
        False, description="Whether layers with a window have the one rope of all layers that rotate."
    )


class RunConfig(Frozen):
    """One training run, or a checkpoint that was trained elsewhere."""

    encoding: str
    task: str = Field("language", description="What is asked of the model.")
    corpus: str = "stdlib"
    tokenizer: str = Field("bytes", description="How text becomes tokens.")
    seed: int = Field(0, ge=0, le=MOST)
    length: int = Field(512, ge=8, le=LONGEST_WINDOW, description="Tokens in a training window, L; at least 8.")
    batch: int = Field(8, ge=1, le=LARGEST_BATCH, description="Windows per step.")
    accumulate: int = Field(1, ge=1, le=LARGEST_BATCH, description="Parts in which a step processes its windows.")
    tokens: int = Field(2_000_000, ge=1, le=MOST, description="Tokens to train on.")
    precision: str = Field("float32", pattern="^(float32|bfloat16|float16)$")
    model: ModelConfig = PRESETS["tiny"]
    recipe: Recipe = Recipe()
    tuning: str | None = Field(None, description="The tuning that its recipe comes from, if it is not the default one.")
    checkpoint: CheckpointConfig | None = Field(None, description="The checkpoint, if poscli did not train the model.")
    plugins: dict[str, str] = Field(
        {}, description="The source of each encoding, task and tokenizer from outside poscli: the hash of plugins.py."
    )

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def steps(self) -> int:
        """The number of optimizer steps."""
        return max(1, self.tokens // (self.batch * self.length))

    @property
    def recipe_mark(self) -> str:
        """What follows the encoding in tables, so that runs with a tuned recipe have lines of their own."""
        return " (tuned recipe)" if self.tuning else ""

    @property
    def one_rope(self) -> bool:
        """Whether another rope is that of all layers that rotate, also of those with a window."""
        return self.checkpoint is not None and self.checkpoint.one_rope

    def run_id(self, fingerprint: str) -> str:
        """The encoding's slug and a hash of everything that decides the result, so that a command finds its run again.

        `fingerprint` is that of the training data. Fields with their default value are not hashed.
        """
        content = json.dumps([SCHEMA, fingerprint, self.model_dump(exclude_defaults=True)], sort_keys=True)
        name = self.encoding if self.checkpoint is None else self.checkpoint.name
        return f"{slug(name)}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


class Recalibration(Frozen):
    """A short training of a trained model under another encoding, before it is evaluated under that one.

    The default of `rate` was chosen among 0.03, 0.1, 0.3 and 1 for a nano model trained with rope and recalibrated at
    4 L on a tenth of its training tokens. As yarn(factor=4), it was the best; as none and as rope-linear(factor=4) a
    rate of 1 was better, by 0.03 and 0.15 nats.
    """

    tokens: int = Field(ge=1, le=MOST)
    length: int = Field(ge=8, le=LONGEST_WINDOW)  # tokens in a window
    rate: float = Field(0.3, gt=0)  # the peak learning rates, as a share of those of the recipe
    plugins: dict[str, str] = Field({})  # the source of each encoding from outside poscli, as in RunConfig

    def __str__(self) -> str:
        return f"recalibrated {write_count(self.tokens)}"

    def config(self, trained: RunConfig, encoding: str, seed: int) -> RunConfig:
        """The configuration of this training: that of the trained run, with as many tokens in each step."""
        rates = ("matrix_lr", "embedding_lr", "head_lr", "encoding_lr")
        batch = max(1, trained.batch * trained.length // self.length)
        slower = {name: self.rate * getattr(trained.recipe, name) for name in rates}
        changed = {
            "encoding": encoding,
            "tokens": self.tokens,
            "length": self.length,
            "batch": batch,
            "accumulate": math.gcd(batch, trained.accumulate),
            "recipe": trained.recipe.model_copy(update=slower),
            "seed": seed,
        }
        return trained.model_copy(update=changed)


class OtherCorpus(Frozen):
    """A corpus that a model is evaluated on although it was trained on another one, in the tokens of the model."""

    spec: str
    fingerprint: str  # of its documents and their split in these tokens


def slug(text: str) -> str:
    """A spec as part of a file name.

    >>> slug("rope(base=500000.0)+window(width=128)|none")
    'rope-base-500000.0-+window-width-128-none'
    >>> slug("../mine.py:Mine")  # neither a hidden file nor a folder above
    'mine.py-Mine'
    """
    name = re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-.") or "encoding"
    if len(name) <= LONGEST_SLUG:
        return name
    return f"{name[:LONGEST_SLUG]}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def write_run_config(config: RunConfig) -> str:
    """The content of a run's config.toml."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))
