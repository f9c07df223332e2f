"""Independent streams of random numbers, one per purpose, all derived from the seed of the run."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *purpose: object) -> int:
    """The seed for a purpose, such as `("bench", 3)`. It is the same on every machine."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1  # 63 bits, as torch takes


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A generator for a purpose. It draws on the CPU, so that the numbers are equal for every device."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
