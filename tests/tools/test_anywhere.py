"""What `make anywhere` need not try, because no test sees it: see `pytest_configure` in tests/conftest.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SOMEONES = dict.fromkeys(("HOME", "POSCLI_CACHE", "XDG_CACHE_HOME"), "/proc")  # where nobody can write
SOMEONES |= {"COLUMNS": "40", "LINES": "10", "TERM": "dumb", "NO_COLOR": "1", "FORCE_COLOR": "1"}
SOMEONES |= {"LANG": "C", "LC_ALL": "C", "TZ": "Asia/Kathmandu"}


@pytest.mark.parametrize("someones", [SOMEONES, {}])
def test_no_test_sees_the_home_folder_the_terminal_or_the_language_of_whoever_runs_it(
    someones: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they are, and also if there are none: all tests have the same home folder, in which they can write."""
    conftest = request.config.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], **someones})
    conftest.pytest_configure()
    assert not {name for name, value in someones.items() if os.environ.get(name) == value}
    assert os.environ.keys() == {"PATH", "HOME", "POSCLI_CACHE", "LC_ALL"}
    assert all(os.access(os.environ[name], os.W_OK) for name in ("HOME", "POSCLI_CACHE"))
