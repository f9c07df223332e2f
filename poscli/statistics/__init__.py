"""Intervals, tests and comparisons over seeds and documents."""

import math

UPPER = 0.975  # the upper end of a 95 % interval; 1 - UPPER is the lower one
FEWEST_SEEDS = 3  # with fewer, the spread between seeds is not estimated
FEWEST_DOCUMENTS = 5  # with fewer, an interval over documents is not made

Triple = tuple[float, float, float]  # an estimate and the ends of its 95 % interval
UNKNOWN: Triple = (math.nan, math.nan, math.nan)
