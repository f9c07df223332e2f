"""`whole:CORPUS`: another corpus of which nothing is set aside for training, to score models that are trained already.

Three quarters are scored, by documents, or of a single document by bytes; a quarter is for choosing, and never scored.
"""

from __future__ import annotations

from dataclasses import replace

from poscli.data.corpora import CORPORA, Kind, source_of
from poscli.data.source import Source


def source(argument: str) -> Source:
    """The corpus `whole:CORPUS`."""
    base = source_of(argument)
    if base.whole:
        return base
    return replace(base, spec=f"whole:{base.spec}", stamp=["whole", base.stamp], whole=True)


CORPORA.add("whole", Kind("whole:CORPUS", "a corpus of which nothing is for training: to score trained models", source))
