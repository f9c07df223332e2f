"""The generated parts of the documents are up to date."""

import re
import tomllib
from pathlib import Path

import architecture
import pytest
import suite_document
from compiled import needs_kernels
from oracles import every
from oracles.measure import largest
from oracles.table import DOCUMENT, document, errors, with_table, without_errors
from toys import first

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.run import ModelConfig, Recipe
from poscli.config.suite import Suite
from poscli.encodings import names
from poscli.specs import parse

ROOT = Path(__file__).parents[2]


def test_the_table_of_encodings_is_up_to_date():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(readme) == readme, "run `make table`"


@needs_kernels  # the document lists the engines of a machine with a compiler
def test_the_document_of_encodings_is_up_to_date():
    written = DOCUMENT.read_text(encoding="utf-8")
    assert without_errors(document(lambda oracle: (0.0, 0.0))) == without_errors(written), "run `make table`"
    stated = errors(written)
    assert stated.keys() == set(names())
    assert all(0 < error <= limit for error, limit in stated.values())


def test_the_document_of_suites_is_up_to_date_and_names_every_key():
    assert suite_document.DOCUMENT.read_text(encoding="utf-8") == suite_document.document(), "run `make table`"
    for model in (Suite, TrainRequest, ModelConfig, Recipe, ExtrapolateRequest):
        assert all(field.description for field in model.model_fields.values())
    example = re.search(r"```toml\n(.*?)```", suite_document.HEAD, re.DOTALL)[1]
    assert Suite.model_validate(tomllib.loads(example)).train.model == {"layers": 2}


@pytest.mark.parametrize("name", first(3, ["yarn", "shaw", "sinusoidal", "cope", "alibi"]))
def test_errors_are_as_documented(name):
    own = [o for o in every() if name in {leaf.name for leaves in parse(o.spec).layers for leaf in leaves}]
    error, limit = max((largest(oracle) for oracle in own), key=lambda pair: pair[0] / pair[1])
    stated, allowed = errors(DOCUMENT.read_text(encoding="utf-8"))[name]
    assert stated / 10 < error < 10 * stated  # another CPU adds in another order
    assert 0.4 * allowed < limit < 2.5 * allowed


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.drawn(), "run `make table`"


def test_the_files_to_read_first_exist() -> None:
    rows = re.findall(
        r"^\| `(poscli/\S+\.py)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) == 10
    assert all((ROOT / row).is_file() for row in rows)
