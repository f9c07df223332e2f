"""Models of Hugging Face: their positions, and how they run under other encodings."""

CORPUS = "whole:stdlib"  # the text that checkpoints read unless another is named; nothing of it is kept for training
