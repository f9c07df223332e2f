"""Power: which true difference between two encodings a planned number of seeds and documents is likely to find."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr

from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.crossed import combined_quantile

PLANNED = 200  # grid points for each of the two variances that a planned experiment will estimate

# Standard deviations, in bits per byte, of the difference between two encodings at the training length. Over seeds:
# the median of 21 pairs on bayes:recall (nano, three seeds). Over single documents: that of 21 pairs on Python source
# (tiny, L = 256, 4096 tokens of 12 documents).
TYPICAL_SEED_SD, TYPICAL_DOCUMENT_SD = 0.015, 0.05


def detectable_difference(seeds: int, documents: int) -> str:
    """What a suite with these numbers of seeds and documents can tell apart, as a sentence for the user."""
    of_seeds = TYPICAL_SEED_SD if seeds >= FEWEST_SEEDS else 0.0
    smallest = smallest_detectable(seeds, documents, of_seeds, TYPICAL_DOCUMENT_SD)
    if np.isinf(smallest):
        return "with one document, no difference between encodings can be told; give more of the corpus to score"
    design = f"{seeds} seed{'s' * (seeds > 1)} and {documents} documents"
    bits = f"{smallest:.3f} bits per byte"
    which = "" if of_seeds else " of these seeds"
    text = (
        f"with {design}, a true difference of {bits} between two encodings{which} is shown by its own 95 % interval in "
        "4 of 5 cases; the words better and worse, which count all comparisons, need more"
    )
    return text if of_seeds else f"{text}; to speak of other seeds, give {FEWEST_SEEDS} or more"


def smallest_detectable(seeds: int, documents: int, seed_sd: float, document_sd: float, power: float = 0.8) -> float:
    """The smallest true paired difference whose `two_level_interval` excludes zero with probability `power`.

    `seed_sd` and `document_sd` are those of `Interval`, guessed or taken from a pilot. Effects are assumed normal and
    documents alike in length. It is infinite where no interval would be made: for one document, or for fewer than three
    seeds unless `seed_sd` is 0, which asks about the given models only.
    """
    if math.isnan(seed_sd + document_sd):
        return math.nan
    if documents < 2 or (seeds < FEWEST_SEEDS and seed_sd > 0):
        return math.inf
    error = math.hypot(seed_sd / math.sqrt(seeds), document_sd / math.sqrt(documents))
    if error == 0:
        return 0.0
    degrees = max(seeds - 1, 1), documents - 1
    of_seeds = _planned(seed_sd / math.sqrt(seeds), degrees[0])[:, None]
    total = of_seeds + _planned(document_sd / math.sqrt(documents), degrees[1])
    quantile, shortened = combined_quantile(of_seeds / total, *degrees)
    reach = quantile * shortened * np.sqrt(total)

    def excess(difference: float) -> float:
        detected = ndtr((difference - reach) / error) + ndtr((-difference - reach) / error)
        return float(detected.mean()) - power

    return float(brentq(excess, 0, reach.max() + 10 * error))


def _planned(error: float, degrees: int) -> NDArray:
    """Equally likely estimates of the squared standard error `error`: quantiles of a scaled chi-square."""
    levels = (np.arange(PLANNED) + 0.5) / PLANNED
    return error**2 * chdtri(degrees, levels) / degrees
