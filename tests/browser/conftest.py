"""The browser that all tests of pages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser_session import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    session = Browser()
    yield session
    session.driver.quit()
