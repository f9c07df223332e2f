"""What verify does with encodings that end, by hand."""

from __future__ import annotations

import pytest

from poscli.verify.checks import causality
from poscli.verify.subject import Subject


@pytest.mark.parametrize(("most", "changed"), [(18, 8), (31, 8), (32, 16)])
def test_causality_is_checked_on_a_longer_text_where_the_encoding_takes_one(most: int, changed: int) -> None:
    assert causality(Subject(f"randomized({most})+rope", 0)).startswith(f"changing {changed} tokens changes")
