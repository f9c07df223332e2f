"""Real processes that are killed or asked to stop at random times, and processes that want one run at once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from .pipeline import STAGES, Undisturbed, arguments
from .processes import DIED, Started, steady_clock

LONGEST_STOP_SECONDS = 10.0  # from a signal to the end of the process


def killed(whole: Undisturbed, folder: Path, seed: int, signum: int, longest: float) -> list[str]:
    """Send a signal to each stage at a random time below `longest` seconds, then go on undisturbed.

    Returns the faults found; a process may have ended before its signal.
    """
    draw, found = random.Random(seed), []
    stage = STAGES[seed % 2]  # a report is made anew in any case
    out = whole.start(stage, folder)
    process = Started(arguments(stage, out), steady_clock)
    time.sleep(draw.uniform(0, longest))
    asked = time.monotonic()
    process.signal(signum)
    ended = process.wait()
    if (seconds := time.monotonic() - asked) > LONGEST_STOP_SECONDS and signum != signal.SIGKILL:
        found.append(f"took {seconds:.0f} s to stop")
    codes = {signal.SIGKILL: DIED, signal.SIGTERM: 143, signal.SIGINT: 130}
    found += ended.faults(0, codes[signal.Signals(signum)])
    return found + whole.finish(stage, out)


def contest(whole: Undisturbed, folder: Path, processes: int) -> list[str]:
    """Let several processes train one run at once: one trains it, the others leave with 75 or find it complete."""
    out = whole.start("train", folder)
    gate, opened = os.pipe()

    def at_the_gate() -> None:
        steady_clock()
        os.close(opened)
        os.read(gate, 1)  # returns when the parent closes its end

    started = [Started(arguments("train", out), at_the_gate) for _ in range(processes)]
    os.close(opened)
    os.close(gate)
    ended = [process.wait() for process in started]
    found = [fault for each in ended for fault in each.faults(0, 75)]
    winners = [each for each in ended if each.code == 0 and "already" not in each.err]
    if len(winners) != 1:
        found.append(f"{len(winners)} winners")
    if any(each.code == 75 and "process" not in each.err for each in ended):
        found.append("a loser does not say who holds the run")
    return found + whole.differences("train", out)
