"""Two ranks that train one model, of which one is killed at a random moment."""

from __future__ import annotations

import random
import signal
import time
from functools import cache
from pathlib import Path

from several_ranks import on_ranks, start_ranks

from .pipeline import arguments, differing, results
from .processes import DIED, Ended, Started, steady_clock

RANKS = 2
NOTICED_SECONDS = 0.1  # after which torchrun asks the other ranks to stop
LONGEST_STOP_SECONDS = 10.0


@cache
def undisturbed(base: Path) -> dict[str, str]:
    """The results of ranks that were left alone."""
    found = _together(base / "undisturbed-ranks")
    assert all(each.code == 0 for each in found), found
    return results(base / "undisturbed-ranks")


def killed(expected: dict[str, str], folder: Path, seed: int, longest: float) -> list[str]:
    """Kill a rank after a random time below `longest` seconds; the same command must then end in the same results.

    The other rank is asked to stop soon afterwards, as torchrun does.
    """
    draw, out = random.Random(seed), folder / "results"
    started = start_ranks(RANKS, lambda rank: arguments("train", out), lambda rank: steady_clock())
    victim = draw.randrange(RANKS)
    time.sleep(draw.uniform(0, longest))
    started[victim].signal(signal.SIGKILL)
    found = _ends(started, victim)
    found += [f"afterwards: {fault}" for each in _together(out) for fault in each.faults(0)]
    return found or differing(results(out), expected)


def _together(out: Path) -> list[Ended]:
    return on_ranks(*arguments("train", out), count=RANKS, prepare=lambda rank: steady_clock())


def _ends(started: list[Started], victim: int) -> list[str]:
    """What is wrong with the ends of the ranks: one that was killed, and one that has lost it, or was asked to stop."""
    asked, found = time.monotonic(), started[victim].wait().faults(0, DIED)
    time.sleep(NOTICED_SECONDS)
    others = [each for rank, each in enumerate(started) if rank != victim]
    for other in others:
        other.signal(signal.SIGTERM)
    for other in others:
        ended = other.wait()
        found += ended.faults(0, 1, 143)
        said = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        if len(said) > 1 or (ended.code == 1 and "has lost another rank" not in "".join(said)):
            found.append(f"a rank that is left says {said}")
    if (seconds := time.monotonic() - asked) > LONGEST_STOP_SECONDS:
        found.append(f"took {seconds:.0f} s to stop")
    return found
