"""Which numbers suit a checkpoint at a length: theta, the factor of YaRN, its factor on cos and sin, a temperature.

They are chosen by the loss at the ends of inputs (screening.py) of documents that are kept for choosing, which no
evaluation scores. One number is searched at a time, by Brent's method within bounds: theta with plain rope, YaRN's
factor with the checkpoint's own theta, the factor on cos and sin with the best factor of YaRN, and the temperature with
the best spec so far. What is found is a spec like any other: what it is worth is measured on other text.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from scipy.optimize import minimize_scalar

from poscli.checkpoints.matrix import Matrix
from poscli.checkpoints.models import ReadCheckpoint
from poscli.checkpoints.screening import ends, loaded_checkpoint
from poscli.checkpoints.wanted import BASE, scaled_rotation
from poscli.evaluation.posthoc import spec_under, with_encoding
from poscli.model.held import held
from poscli.system.errors import UsageError
from poscli.system.progress import Meter

INPUTS = 2  # whose ends are read for every try
TRIES = 7  # for each number


@dataclass(frozen=True)
class Found:
    """The best spec after a number was looked for, and its loss at the ends of the inputs, in bits per byte."""

    number: str
    spec: str
    loss: float


@held()  # the checkpoint is loaded once, not for every try
def searched(matrix: Matrix, *, until: float = math.inf) -> list[Found]:
    """The best specs, one for each number; those whose turn would come after `until` are left out.

    `until` is a time of `time.monotonic`. UsageError for a model without rope, DataError for a text that keeps no
    documents for choosing.
    """
    run, base = matrix.checkpoint.run, _theta(matrix.checkpoint)
    octaves = math.log2(matrix.target / run.length)
    chooser = replace(matrix.work[0], task=matrix.work[0].task.tuning())
    read, found = list(itertools.islice(ends(chooser), INPUTS)), list[Found]()

    def best(number: str, bounds: tuple[float, float], spec_of: Callable[[float], str]) -> float:
        """The value between the bounds whose spec has the smallest loss, which is added to what is found.

        The middle of the bounds, and nothing is added, if the time is over.
        """
        if time.monotonic() > until:
            return sum(bounds) / 2
        tried: dict[float, tuple[float, str]] = {}
        with Meter(f"search {number}", TRIES) as progress:

            def loss(value: float) -> float:
                spec = spec_under(run, spec_of(value))
                model = with_encoding(loaded_checkpoint(chooser), spec, run.encoding)
                tried[value] = statistics.fmean(end.loss(model) for end in read), spec
                progress.advance(1, f"{spec_of(value)}: {tried[value][0]:.3f} bits per byte")
                return tried[value][0]

            minimize_scalar(loss, bounds=bounds, method="bounded", options={"maxiter": TRIES})
        value = min(tried, key=lambda each: tried[each])
        least, spec = tried[value]
        found.append(Found(number, spec, least))
        return value

    # Both may have to grow more than the inputs do: theta by twice the cube of that, at most, the factor by twice its
    # square.
    best("theta", (0, 3 * octaves + 1), lambda power: f"rope(base={_short(base * 2**power)})")
    factor = best("factor", (0, 2 * octaves + 1), lambda power: f"yarn(factor={_short(2**power)})")
    yarn = f"factor={_short(2**factor)}"
    best("attention", (0.8, 1.6), lambda value: f"yarn({yarn}, attention={_short(value)})")
    if found:
        least = run.model_copy(update={"encoding": min(found, key=lambda each: each.loss).spec})
        best("temperature", (0, 0.6), lambda value: spec_under(least, f"temper(c={_short(value)})"))
    return found


def _theta(read: ReadCheckpoint) -> float:
    """Theta of the layers that scalings are made for; UsageError for a model that has none."""
    leaf = scaled_rotation(read.run.encoding, read.run.length)
    if leaf is None:
        raise UsageError(f"--search looks for numbers of rope, and {read.name} has none; leave it out")
    return float(str(dict(leaf.options).get("base", BASE)))


def _short(value: float) -> str:
    """A number to paste: three digits."""
    return f"{float(f'{value:.3g}'):g}" if value < 1e6 else f"{float(f'{value:.3g}'):.0f}"
