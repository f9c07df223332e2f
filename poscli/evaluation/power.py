"""What a planned suite can tell apart, before it is trained."""

from __future__ import annotations

import numpy as np

from poscli.evaluation.estimates import FEWEST_SEEDS
from poscli.evaluation.intervals import smallest_detectable
from poscli.evaluation.plan import Plan

# Standard deviations, in bits per byte, of the difference between two encodings at the training length. Over seeds:
# the median of 21 pairs on bayes:recall (nano, three seeds). Over single documents: that of 21 pairs on Python source
# (tiny, L = 256, 4096 tokens of 12 documents).
TYPICAL_SEED_SD, TYPICAL_DOCUMENT_SD = 0.015, 0.05


def detectable_difference(plan: Plan, seeds: int) -> str:
    """What so many seeds can tell apart under a plan, as a sentence for the user."""
    protocol = next((name for name in plan.protocols if len(plan.variants(name)) > 1), next(iter(plan.protocols)))
    documents = len(np.unique(plan.spans(protocol, plan.settings.lengths[-1])[:, 0]))
    of_seeds = TYPICAL_SEED_SD if seeds >= FEWEST_SEEDS else 0.0
    found = smallest_detectable(seeds, documents, of_seeds, TYPICAL_DOCUMENT_SD)
    if np.isinf(found):
        return "with one document, no difference between encodings can be told; give more of the corpus to score"
    told = f"{seeds} seed{'s' * (seeds != 1)} and {documents} document{'s' * (documents != 1)}"
    text = f"with {told}, a true difference of {found:.3f} bits per byte between two encodings is found in 4 of 5 cases"
    return text if of_seeds else f"{text}, for these seeds only: what others would give takes {FEWEST_SEEDS} or more"
