"""The browser in which pages are tested, a new one for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser_session import Browser


@pytest.fixture(scope="module")  # a file leaves its windows and permissions behind
def browser() -> Iterator[Browser]:
    session = Browser()
    yield session
    session.driver.quit()
