"""The faults that a card can name: one function each, registered under the fault's name, in files by subject."""

from poscli.checkpoints.card.faults import keys, lengths, model_types, reading, scaling, windows
from poscli.checkpoints.card.faults.fault import CHECKS, Fault, Subject, faults_of, ranges

__all__ = [
    "CHECKS",
    "Fault",
    "Subject",
    "faults_of",
    "keys",
    "lengths",
    "model_types",
    "ranges",
    "reading",
    "scaling",
    "windows",
]
