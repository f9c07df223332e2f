"""Checkpoints of Hugging Face models: where they come from, what positions they have, and how they run under others."""
