"""Fixtures of all tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Run torch on one thread.

    The tensors of the tests are tiny, and beside another busy process a parallel region costs a tick of the scheduler:
    8 ms, where one thread takes 20 microseconds.
    """
    torch.set_num_threads(1)
