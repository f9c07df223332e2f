"""The generated parts of the documents are up to date."""

import re
from pathlib import Path

import pytest
from oracles import every
from oracles.measure import largest
from oracles.table import DOCUMENT, document, errors, without_errors

from poscli.encodings import names
from poscli.report.catalogue import with_table
from poscli.specs import parse

ROOT = Path(__file__).parent.parent


def test_the_table_of_encodings_is_up_to_date():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(readme) == readme, "run `make table`"


def test_the_document_of_encodings_is_up_to_date():
    written = DOCUMENT.read_text(encoding="utf-8")
    assert without_errors(document(lambda oracle: (0.0, 0.0))) == without_errors(written), "run `make table`"
    stated = errors(written)
    assert stated.keys() == set(names())
    assert all(0 < error <= limit for error, limit in stated.values())


@pytest.mark.parametrize("name", ["alibi", "yarn", "shaw", "cope", "sinusoidal"])
def test_errors_are_as_documented(name):
    own = [o for o in every() if name in {leaf.name for leaves in parse(o.spec).layers for leaf in leaves}]
    error, limit = max((largest(oracle) for oracle in own), key=lambda pair: pair[0] / pair[1])
    stated, allowed = errors(DOCUMENT.read_text(encoding="utf-8"))[name]
    assert stated / 10 < error < 10 * stated  # another CPU adds in another order
    assert 0.4 * allowed < limit < 2.5 * allowed


def test_the_readme_is_short_and_its_tree_names_every_room() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    tree = readme[readme.index("    poscli/\n") : readme.index("Apache-2.0")]
    named = set(re.findall(r"(?<!\S)([a-z]+)/ ", tree))
    rooms = {path.parent.name for path in (ROOT / "poscli").glob("*/__init__.py")}
    assert named == rooms | {"suites", "results", "tests", "docs"}
