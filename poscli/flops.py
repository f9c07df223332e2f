"""Model FLOP utilisation: the arithmetic that a model's definition asks for, over what the machine can do.

Counted are the matrix products of the definition, two operations per multiply-add (Kaplan et al., 2020, section 2.1;
Chowdhery et al., 2022, appendix B); causal attention as the half of the scores that are seen. What an implementation
computes twice, and what an encoding adds, is not counted: the same model at more tokens per second is always better.
"""

from __future__ import annotations

import time

import torch

from poscli.config import ModelConfig

SECONDS = 0.5  # that `product_rate` measures for
SIZES = {"cpu": (512, 1024, 1536), "cuda": (2048, 4096, 8192)}  # of the square matrices it multiplies


def evaluation_flops(config: ModelConfig, vocab: int, length: int) -> float:
    """Operations per token of a forward pass over `length` tokens."""
    layer = config.width * (4 * config.width + 3 * config.mlp)
    scores_and_sums = 2 * config.width * length / 2
    return 2 * (config.layers * (layer + scores_and_sums) + config.width * vocab)


def training_flops(config: ModelConfig, vocab: int, length: int) -> float:
    """Operations per token of a training step over windows of `length` tokens: the backward pass counts twice."""
    return 3 * evaluation_flops(config, vocab, length)


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a matrix product, the best of several over about half a second."""
    sizes = SIZES[device.type]
    pairs = [[torch.randn(n, n, device=device, dtype=dtype) for _ in range(2)] for n in sizes]
    for a, b in pairs:  # kernels are chosen and loaded at the first call
        _seconds(a, b)
    best, stop = 0.0, time.perf_counter() + SECONDS
    while time.perf_counter() < stop:
        for n, (a, b) in zip(sizes, pairs, strict=True):
            best = max(best, 2 * n**3 / _seconds(a, b))
    return best


def _seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    """Time of one product, until the device is done."""
    if a.device.type == "cuda":
        torch.cuda.synchronize(a.device)
    start = time.perf_counter()
    a @ b
    if a.device.type == "cuda":
        torch.cuda.synchronize(a.device)
    return time.perf_counter() - start
