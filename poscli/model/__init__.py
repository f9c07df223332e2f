"""The language model around an encoding: layers, cache, loss, weights, generation."""
