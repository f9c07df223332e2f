"""One explicit stream of random numbers per purpose, all derived from the run's seed."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *purpose: object) -> int:
    """A seed of its own for a purpose: independent of every other purpose, the same on every machine."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1  # torch takes 63 bits


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator for a purpose, so that draws are equal on every device."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
