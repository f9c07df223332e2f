"""Floating-point operations of a model by its definition, the numerator of model FLOP utilisation.

The count covers the matrix products of the definition, two operations per multiply-add (Kaplan et al., 2020, section
2.1; Chowdhery et al., 2022, appendix B), and of causal attention only the half of the scores that are visible. It
leaves out what an implementation computes twice and what an encoding adds, so that more tokens per second always mean
a higher utilisation.
"""

from __future__ import annotations

from poscli.config.run import ModelConfig


def evaluation_flops(config: ModelConfig, vocab: int, length: float) -> float:
    """Operations per token of a forward pass over `length` tokens."""
    layer = config.width * (4 * config.width + 3 * config.mlp)
    scores_and_sums = 2 * config.width * length / 2
    return 2 * (config.layers * (layer + scores_and_sums) + config.width * vocab)


def training_flops(config: ModelConfig, vocab: int, length: int) -> float:
    """Operations per token of a training step over windows of `length` tokens. The backward pass counts twice."""
    return 3 * evaluation_flops(config, vocab, length)
