"""Baselines, one file each; poscli/evaluation/baseline.py has the base class. A spec of wrappers needs no file."""
