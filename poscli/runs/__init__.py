"""Runs on disk: a run's folder, its checkpoints, the schema of its results, and the selection of runs."""
