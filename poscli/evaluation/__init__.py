"""Measuring trained models at growing lengths: protocols, baselines, post-hoc encodings, losses, intervals."""
