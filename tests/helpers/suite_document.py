"""docs/SUITES.md: every key of a suite, from the models that read it. `make table` writes it, a test checks it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from poscli.config.claim import Claim, Condition
from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.run import PRESETS, ModelConfig, Recipe
from poscli.config.suite import Suite, SuitePart
from poscli.config.validate import Longest, TokenCount

DOCUMENT = Path(__file__).parents[2] / "docs" / "SUITES.md"
HEAD = """# Suites

A suite is a TOML file for `poscli run`: every encoding of a part is trained with every seed of it, and all are compared
in one report. `make table` writes this page from the classes in `poscli/config/`; the tests check it.

```toml
title = "Two encodings on text of my own"
encodings = ["alibi", "rope+window(128)"]
seeds = [0, 1, 2]

[train]
corpus = "text:books/*.txt"
tokens = "500k"

[train.model]
layers = 2

[train.recipe]
matrix_lr = 0.02

[extrapolate]
max_len = 4096
baselines = ["sink(4)+window"]

[[part]]                     # everything above, on the text above

[[part]]                     # and once more on another text, with fewer tokens, one encoding only
encodings = ["rope"]
train.corpus = "stdlib"
train.tokens = "300k"

[[claim]]                    # a published statement, which the report holds against the results
says = "ALiBi reads 8 times its training length without harm."
source = "arXiv:2108.12409"
when = [{ of = "alibi", at = 8, more = -0.01 }]
```

Unknown keys, infinity and NaN are errors. The report goes to `results/`, into a folder named like the file.
"""
TABLES: dict[str, tuple[type[BaseModel], str]] = {
    "": (Suite, "Keys at the top of the file"),
    "train": (TrainRequest, "How runs are trained; these are the options of `poscli train`"),
    "train.model": (ModelConfig, "Fields of the model's shape, each instead of the preset's"),
    "train.recipe": (Recipe, "Fields of the recipe"),
    "extrapolate": (ExtrapolateRequest, "How runs are evaluated; these are the options of `poscli extrapolate`"),
    "part": (SuitePart, "Parts of a suite, such as one for each corpus"),
    "claim": (Claim, "Published statements that the report holds against the results"),
    "claim.when": (Condition, "What has to hold for the claim, each a bound on one number"),
}
WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}
OPTION = re.compile(r"--([a-z][a-z-]*)")
BOUNDS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}", "min_length": "{} or more"}


def document() -> str:
    """The text of the document."""
    return HEAD + "".join("".join(_section(path, model, about)) for path, (model, about) in TABLES.items())


def _section(path: str, model: type[BaseModel], about: str) -> Iterator[str]:
    heads = {"": "The suite"} | {each: f"`[[{each}]]`" for each in ("part", "claim", "claim.when")}
    yield f"\n## {heads.get(path, f'`[{path}]`')}\n\n{about}.\n\n"
    yield "| key | type | default | meaning |\n| --- | --- | --- | --- |\n"
    for name, field in model.model_fields.items():
        key = field.alias or name
        if model is SuitePart and key in TABLES:
            yield f"| `[part.{key}]` | table | `[{key}]` | {field.description} |\n"
        elif f"{path}.{key}".lstrip(".") not in TABLES:
            default = "the preset's" if model is ModelConfig else _default(field)
            meaning = (field.description or "").replace("|", "\\|").replace("; repeatable", "")
            meaning = OPTION.sub(lambda option: f"`{option[1].replace('-', '_')}`", meaning)
            yield f"| `{key}` | {_type(field)} | {default} | {meaning} |\n"
    if model is ModelConfig:
        yield f"\n| preset | {' | '.join(ModelConfig.model_fields)} |\n"
        yield f"| --- |{' ---: |' * len(ModelConfig.model_fields)}\n"
        for preset, shape in PRESETS.items():
            yield f"| `{preset}` | {' | '.join(str(value) for value in shape.model_dump().values())} |\n"


def _type(field: FieldInfo) -> str:
    """The type of a key and its bounds, in words."""
    kind, extra = field.annotation, [item for item in field.metadata if not isinstance(item, BeforeValidator)]
    if NoneType in get_args(kind):
        kind = next(choice for choice in get_args(kind) if choice is not NoneType)
    if kind is Longest:
        return 'number of tokens, or a multiple of the training length such as "8x"'
    if len(extra) < len(field.metadata) or kind == TokenCount:
        return 'number of tokens, such as 4096, "500k" or "2M"'
    if get_origin(kind) is Literal:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in get_args(kind))
    if get_origin(kind) in (list, tuple):
        item = get_args(kind)[0]
        return f"list of {_plural(item)}{_bounds(extra)}"
    return f"{WORDS.get(kind, kind)}{_bounds(extra)}"


def _plural(item: Any) -> str:
    if item is str:
        return "texts"
    kind, *metadata = get_args(item)
    bounds = _bounds([bound for info in metadata for bound in info.metadata]).removeprefix(", ")
    return f"{WORDS[kind]}s ({bounds})"


def _bounds(metadata: list[Any]) -> str:
    said = [
        words.format(getattr(item, name))
        for item in metadata
        for name, words in BOUNDS.items()
        if getattr(item, name, None) is not None
    ]
    return "".join(f", {words}" for words in said)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    return "see there" if default is None else f"`{json.dumps(default)}`"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
