"""Training a model: the loop and the optimizers."""
