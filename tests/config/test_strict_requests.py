"""Suites, options and keywords are read strictly, and what is refused is said in one line of plain words.

The keys are taken from the schemas, so that a new key is tested without a new test.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from poscli import api
from poscli.bench.settings import BenchSettings
from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.run import ModelConfig, Recalibration, Recipe, RunConfig
from poscli.config.suite import Suite, SuitePart
from poscli.config.validate import validated
from poscli.inspect.settings import InspectSettings
from poscli.runs.run import Run
from poscli.system.errors import UsageError

REQUESTS = [Suite, SuitePart, TrainRequest, ExtrapolateRequest, BenchSettings, InspectSettings]
MODELS = [*REQUESTS, ModelConfig, Recipe, RunConfig, Recalibration]
FULL: dict[type[BaseModel], dict[str, Any]] = {  # the keys that must be there
    Suite: {"title": "t", "encodings": ["rope"]},
    RunConfig: {"encoding": "rope"},
    Recalibration: {"tokens": 64, "length": 8},
}
# Values of every type that TOML or JSON can hold. None of them is a number of tokens, an encoding or a name.
OF_TYPE = {
    "string": "yes please",
    "integer": 64,
    "number": 1.5,
    "boolean": True,
    "array": [["yes please"]],
    "object": {"yes please": "no"},
}
PYDANTIC = re.compile(
    r"[Ii]nput should|validation|should (be|have)|pydantic|Value error|\n"
    r"|valid (string|integer|number|boolean|list|dict|tuple)"
)


def types_of(schema: dict[str, Any]) -> set[str]:
    """The types of values that a key may have; a whole number is a number, too."""
    kinds = {each["type"] for each in schema.get("anyOf", [schema]) if "type" in each}
    if "$ref" in schema or "allOf" in schema or any("$ref" in each for each in schema.get("anyOf", [])):
        kinds.add("object")
    return kinds | ({"integer"} if "number" in kinds else set())


def keys_of(models: list[type[BaseModel]], part: str = "") -> list[Any]:
    """Every key of every model, with the part of its schema, which must have the `part` that is named."""
    return [
        pytest.param(model, key, schema, id=f"{model.__name__}.{key}")
        for model in models
        for key, schema in model.model_json_schema()["properties"].items()
        if not part or part in schema
    ]


def refusal(model: type[BaseModel], key: str, value: Any) -> str:
    """The message for a key with a value that must be refused."""
    with pytest.raises(UsageError) as refused:
        validated(model, FULL.get(model, {}) | {key: value}, "mine.toml")
    line = str(refused.value)
    assert line.startswith(f"mine.toml: {key}"), line
    assert not PYDANTIC.search(line), line
    return line


def takes(model: type[BaseModel], key: str, value: Any) -> bool:
    """Whether a key takes a value."""
    try:
        validated(model, FULL.get(model, {}) | {key: value}, "mine.toml")
    except UsageError:
        return False
    return True


@pytest.mark.parametrize(("model", "key", "schema"), keys_of(MODELS))
def test_a_value_of_another_type_is_refused(model: type[BaseModel], key: str, schema: dict[str, Any]) -> None:
    kinds = types_of(schema) | ({"integer"} if takes(model, key, 64) else set())
    for kind in OF_TYPE.keys() - kinds:
        line = refusal(model, key, OF_TYPE[kind])
        assert repr(OF_TYPE[kind]) in line or repr(OF_TYPE[kind][0] if kind == "array" else "") in line
    if kinds & {"integer", "number"} and "string" not in kinds and not takes(model, key, "500k"):  # not a count
        assert refusal(model, key, "64").endswith("without quotation marks")


@pytest.mark.parametrize(("model", "key", "schema"), keys_of(MODELS, "items"))
def test_an_entry_of_another_type_is_refused(model: type[BaseModel], key: str, schema: dict[str, Any]) -> None:
    for kind in OF_TYPE.keys() - types_of(schema["items"]) - ({"object"} if "$ref" in schema["items"] else set()):
        refusal(model, key, [OF_TYPE[kind]])


@pytest.mark.parametrize(("model", "key", "schema"), keys_of(MODELS))
def test_a_number_out_of_bounds_is_refused_with_the_bound(
    model: type[BaseModel], key: str, schema: dict[str, Any]
) -> None:
    numbers = [each for each in schema.get("anyOf", [schema]) if each.get("type") in ("integer", "number")]
    for each in numbers:
        for bound, step in (("minimum", -1), ("exclusiveMinimum", 0), ("maximum", 1), ("exclusiveMaximum", 0)):
            if bound in each:
                assert str(int(each[bound])) in refusal(model, key, each[bound] + step).partition(": must")[2]
        if each["type"] == "number":
            assert "finite" in refusal(model, key, float("nan"))


@pytest.mark.parametrize(("model", "key", "schema"), keys_of(REQUESTS))
def test_empty_texts_and_control_characters_are_refused(
    model: type[BaseModel], key: str, schema: dict[str, Any]
) -> None:
    for text in ("\0", "a\x1b[2Jb", "a\x7f", "a\u2028b", "a\nb", "", "  "):
        values: list[Any] = []
        if "string" in types_of(schema):
            values = [text]
        elif "items" in schema and "string" in types_of(schema["items"]):
            values = [[text], ["rope", text]]
        elif "additionalProperties" in schema:
            values = [{text: 1}]
        for value in values:
            default = model.model_fields.get(key)
            if (default is not None and default.default == value) or (key == "description" and text == "a\nb"):
                assert takes(model, key, value)
            else:
                assert repr(text) in refusal(model, key, value) or repr(value) in refusal(model, key, value)


@pytest.mark.parametrize(("model", "key", "schema"), keys_of(REQUESTS, "items"))
def test_nothing_is_named_twice(model: type[BaseModel], key: str, schema: dict[str, Any]) -> None:
    entries = tuple if model is BenchSettings else list  # of the command line
    when = {"of": "rope", "at": 2, "more": 0}
    items = (64, "rope", "train", {"train": {"length": 64}}, when, {"says": "so", "source": "who", "when": [when]})
    item = next(value for value in items if takes(model, key, entries([value])))
    assert "twice; leave one out" in refusal(model, key, entries([item, item]))


@pytest.mark.parametrize(
    ("call", "key"),
    [
        *((api.train, key) for key in {**TrainRequest.model_fields, **ModelConfig.model_fields} if key != "model"),
        *((api.extrapolate, key) for key in ExtrapolateRequest.model_fields),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_keywords_are_as_strict_as_suites(call: Any, key: str) -> None:
    first = "rope" if call is api.train else Run(Path("run"), RunConfig(encoding="rope"), {})
    for junk in (object(), [[1]], {1: 2}, b"rope", 1j):
        with pytest.raises(UsageError, match=f"^{call.__name__}: ") as refused:
            call(first, **{key: junk})
        assert not PYDANTIC.search(str(refused.value))
