"""What verify does with encodings that end, by hand."""

from __future__ import annotations

import pytest

from poscli.encodings.registry import ENCODINGS
from poscli.verify import verify
from poscli.verify.checks import causality, far
from poscli.verify.subject import Subject


@pytest.mark.parametrize(("most", "changed"), [(18, 8), (31, 8), (32, 16)])
def test_causality_is_checked_on_a_longer_text_where_the_encoding_takes_one(most: int, changed: int) -> None:
    assert causality(Subject(f"randomized({most})+rope", 0)).startswith(f"changing {changed} tokens changes")


def test_an_encoding_that_refuses_long_texts_is_not_at_fault() -> None:
    assert far(Subject("randomized(18)+rope", 0)).startswith("refused: 256 tokens need as many positions")
    assert far(Subject("rope", 0)) == "logits and gradients finite at 256 tokens"


@pytest.mark.parametrize(("broken", "status"), [(True, "failed"), (False, "unavailable")])
def test_only_of_a_broken_plugin_verify_says_where_to_look(
    broken: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ENCODINGS, "missing", lambda name: "does not load")
    monkeypatch.setattr(ENCODINGS, "broken", lambda name: broken)
    (finding,) = verify("mine").findings
    assert (finding.status, finding.detail) == (status, "does not load")
    assert bool(finding.look) == broken
