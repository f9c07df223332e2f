"""Evaluation protocols, one file each; poscli/evaluation/protocol.py has the base class."""
