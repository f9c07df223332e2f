"""Floating-point operations of a model by its definition, the numerator of model FLOP utilisation.

The count covers the matrix products of the definition, two operations per multiply-add (Kaplan et al., 2020, section
2.1; Chowdhery et al., 2022, appendix B), and of causal attention only the half of the scores that are visible. It
leaves out what an implementation computes twice and what an encoding adds, so that more tokens per second always mean
a higher utilisation.
"""

from __future__ import annotations

import torch

from poscli.config.run import ModelConfig

# What this program reaches on small models: operations per second of one CPU core and of a GPU, and seconds that
# starting the kernels of one layer takes. Measured: 50e9 to 130e9 on a core with AMX, less on others.
CORE_SPEED, GPU_SPEED, LAYER_SECONDS = 40e9, 5e12, 1e-3


def evaluation_flops(config: ModelConfig, vocab: int, length: int) -> float:
    """Operations per token of a forward pass over `length` tokens."""
    layer = config.width * (4 * config.width + 3 * config.mlp)
    scores_and_sums = 2 * config.width * length / 2
    return 2 * (config.layers * (layer + scores_and_sums) + config.width * vocab)


def training_flops(config: ModelConfig, vocab: int, length: int) -> float:
    """Operations per token of a training step over windows of `length` tokens. The backward pass counts twice."""
    return 3 * evaluation_flops(config, vocab, length)


def rough_seconds(flops: float, layers: int, device: torch.device) -> float:
    """The time of `flops` operations in `layers` layers on this machine, right within a factor of ten."""
    speed = GPU_SPEED if device.type == "cuda" else CORE_SPEED * torch.get_num_threads()
    return flops / speed + layers * LAYER_SECONDS
