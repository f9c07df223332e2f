"""Runs on disk: folders, checkpoints, tables of results."""
