"""The training loop and its optimizers."""
