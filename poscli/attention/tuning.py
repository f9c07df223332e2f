"""Which engine is fastest for an input on this machine: measured once, and kept in the user's cache folder.

The order of `ENGINES` is right on the machines it was measured on. Another CPU or another shape may have another
fastest engine, so every large input is tried once on each engine that can run it, forward and, in training, backward.
The engines are taken in turns, so that other processes slow all of them alike. The first engine of the table is kept
unless another is faster by `MARGIN`: results must not depend on the noise of a measurement. Several ranks of one run
measure nothing, as each might find another engine.

A run remembers what it used (`remembered`), so that a resumed run has the same bits as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poscli.attention.call import attend
from poscli.attention.engines import ENGINES, Choice, refusal
from poscli.attention.place import Place
from poscli.attention.sizes import DEFAULT_SIZES, BlockSizes
from poscli.equation import Encoding, Positions
from poscli.native import identity
from poscli.system.console import warn_once
from poscli.system.errors import StorageError
from poscli.system.files import cache_folder, make_in_cache, write_atomic
from poscli.system.provenance import cpu
from poscli.system.ranks import ranks

SWITCH = "POSCLI_NO_TUNING"  # the environment variable behind --no-tuning; processes started from here inherit it
SMALLEST = 10**8  # multiply-adds of the scores from which on an input is measured: they take about 10 ms
MARGIN = 1.15  # how many times as fast as the first engine another one must be
LAST_QUERIES = 1024  # queries of an evaluation that are timed: those that see the most keys
TURNS, SECONDS = 5, 1.0  # an engine is timed so often, or until all have taken so long


DENSE = {"relative_keys", "relative_queries", "potential", "bias"}  # biases that differ from text to text


@dataclass(frozen=True)
class Option:
    """An engine and the block sizes it runs with."""

    engine: str
    sizes: BlockSizes = DEFAULT_SIZES


# What is tried, where the engine can run the encoding: by name, the names being what files hold.
OPTIONS = {
    "native": Option("native"),
    "tiles": Option("tiles"),
    "sdpa": Option("sdpa"),
    "sdpa, all queries at once": Option("sdpa", BlockSizes(training_tokens=0)),
}


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call of attention, as `attend` takes them."""

    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSE: Tensor
    positions: Positions
    features_BHSF: Tensor | None

    @property
    def work(self) -> int:
        """Multiply-adds of the scores."""
        return self.q_BHTD.numel() * self.k_BHSD.shape[2]

    def sample(self, training: bool) -> Inputs:
        """The last queries of the inputs, outside any graph; in training gradients can be asked for.

        Evaluation takes so many queries that the time of a long input can be told from them; training takes all.
        """
        tensors = {name: x.detach().requires_grad_(training) for name, x in vars(self).items() if isinstance(x, Tensor)}
        found = replace(self, **tensors)  # type: ignore[arg-type]
        return found if training else replace(found, q_BHTD=found.q_BHTD[:, :, -LAST_QUERIES:])


class Tuning:
    """What has been measured on this machine, and what the run at work remembers."""

    def __init__(self) -> None:
        self.measured: dict[Path, dict[str, dict[str, Any]]] = {}  # by file, once it has been read
        self.of_run: dict[str, str] | None = None  # options by case; None: no run remembers
        self.run_file = Path()

    def fastest(self, choice: Choice, encoding: Encoding, place: Place, inputs: Inputs) -> Choice:
        """The fastest engine for these inputs, given the first engine of the table that can run the encoding."""
        if inputs.work < SMALLEST or switched_off() or ranks().count > 1:
            return choice
        options = _possible(choice, encoding, place)
        if len(options) < 2:
            return choice
        case = _case(encoding, place, inputs)
        name = (self.of_run or {}).get(case, "")
        if name not in options:
            name = self._entry(case, options, encoding, place, inputs)["option"]
            self._remember(case, name)
        option = OPTIONS[name]
        if option == OPTIONS.get(choice.name):
            return choice
        return Choice(ENGINES[option.engine], f"measured: faster than {choice.name} on this input", option.sizes)

    def entries(self) -> dict[str, dict[str, Any]]:
        """What has been measured on this machine, by case: the fastest option, and the seconds of each."""
        path = file()
        if path not in self.measured:
            self.measured[path] = _read(path)
        return self.measured[path]

    @contextmanager
    def remembered(self, path: Path) -> Iterator[None]:
        """Within the block, take the options that a run used before from its file, and write new ones there."""
        self.of_run, self.run_file = _read_run(path), path
        try:
            yield
        finally:
            self.of_run = None

    def _remember(self, case: str, name: str) -> None:
        if self.of_run is not None:
            self.of_run[case] = name
            write_atomic(self.run_file, json.dumps(self.of_run, indent=2) + "\n")

    def _entry(self, case: str, options: list[str], encoding: Encoding, place: Place, inputs: Inputs) -> dict[str, Any]:
        """The entry of a case that is known already, or that of a measurement, which is kept."""
        known = self.entries().get(case)
        if known is not None and known["option"] in options:
            return known
        seconds = measure({name: _work(OPTIONS[name], encoding, place, inputs) for name in options})
        found = {"option": best(seconds), "seconds": seconds}
        path = file()
        self.measured[path] = self.measured[path] | _read(path) | {case: found}  # others may have written since
        _write(path, self.measured[path])
        return found


TUNING = Tuning()  # of this process


def switched_off() -> bool:
    """Whether the user has switched measuring off."""
    return os.environ.get(SWITCH, "") not in ("", "0")


def best(seconds: dict[str, float]) -> str:
    """The first option, unless the fastest one is faster by `MARGIN`."""
    first, fastest = next(iter(seconds)), min(seconds, key=lambda name: seconds[name])
    return fastest if seconds[first] > MARGIN * seconds[fastest] else first


def measure(works: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median seconds of each function, called in turns.

    A function whose first call takes more than SECONDS, and three times as long as the shortest one, is called once.
    """
    seconds: dict[str, list[float]] = {name: [_seconds(work)] for name, work in works.items()}
    shortest = min(times[0] for times in seconds.values())
    slow = {name for name, times in seconds.items() if times[0] > max(SECONDS, 3 * shortest)}
    for _ in range(TURNS):
        for name, work in works.items():
            if name not in slow:
                seconds[name].append(_seconds(work))
        if sum(map(sum, seconds.values())) > SECONDS:
            break
    # The first call of each is slower: it touches new memory.
    return {name: statistics.median(times[1:] or times) for name, times in seconds.items()}


def file() -> Path:
    """Where the measurements of this machine are kept: another CPU or number of threads has another file."""
    machine = _machine()
    key = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]
    try:
        folder = cache_folder()
    except RuntimeError as error:
        raise StorageError(f"no folder for measurements is known: {error}; set POSCLI_CACHE to one") from error
    return folder / "tuning" / f"{key}.json"


def _machine() -> dict[str, str]:
    """All that decides how fast the engines are, beside the input."""
    return {"cpu": cpu(), "torch": torch.__version__, "threads": str(torch.get_num_threads()), "kernels": identity()}


def _possible(choice: Choice, encoding: Encoding, place: Place) -> list[str]:
    """The options that can run an encoding, the given engine first; none where an engine was asked for."""
    if place.device != "cpu" or choice.name not in OPTIONS or choice.asked:
        return []
    # Torch's kernels have no backward pass for such biases, so that it would only cost memory to try them.
    if place.gradient and (encoding.blanks & DENSE or any(p.requires_grad for p in encoding.parameters())):
        return []
    first = [name for name in OPTIONS if name == choice.name]
    others = [n for n, o in OPTIONS.items() if n != choice.name and not refusal(ENGINES[o.engine], encoding, place)]
    return first + [name for name in others if place.gradient or OPTIONS[name].sizes == DEFAULT_SIZES]


def _case(encoding: Encoding, place: Place, x: Inputs) -> str:
    """The input in words; sizes within a factor of two count as equal."""
    batch, heads, queries, width = x.q_BHTD.shape
    sizes = f"{_power(batch)} x {heads} heads of {width}, {_power(queries)} queries, {_power(x.k_BHSD.shape[2])} keys"
    return f"{'training' if place.gradient else 'evaluation'} of {encoding.name}: {sizes}"


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _work(option: Option, encoding: Encoding, place: Place, inputs: Inputs) -> Callable[[], None]:
    """One call of attention on copies of the inputs, with the gradients of all that has one."""

    def work() -> None:
        with torch.inference_mode(mode=False), torch.set_grad_enabled(place.gradient):
            x = inputs.sample(place.gradient)
            out = attend(
                ENGINES[option.engine],
                encoding,
                *(x.q_BHTD, x.k_BHSD, x.v_BHSE),
                x.positions,
                x.features_BHSF,
                option.sizes,
            )
            if place.gradient:
                wanted = [t for t in (*vars(x).values(), *encoding.parameters()) if isinstance(t, Tensor)]
                wanted = [t for t in wanted if t.requires_grad]
                torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)

    return work


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of a machine's file; none, said once, if it is not what this machine has written."""
    content = _content(path)
    if content is None:
        return {}
    if not isinstance(content, dict) or content.get("machine") != _machine() or not _sound(content.get("cases")):
        warn_once(f"{path} is damaged or of another machine: engines are measured again")
        return {}
    cases: dict[str, dict[str, Any]] = content["cases"]
    return cases


def _sound(cases: Any) -> bool:
    return isinstance(cases, dict) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("seconds"), dict)
        and entry["seconds"]
        and entry.get("option") in list(OPTIONS)
        and all(name in OPTIONS and isinstance(s, float) and s > 0 for name, s in entry["seconds"].items())
        for entry in cases.values()
    )


def _read_run(path: Path) -> dict[str, str]:
    """The options that a run remembers; none, said once, if its file is damaged."""
    content = _content(path)
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(name in list(OPTIONS) for name in content.values()):
        warn_once(f"{path} is damaged: engines are chosen again, and the last bits of the run may differ")
        return {}
    return content


def _content(path: Path) -> Any:
    """The document in a file; None if there is no file, '' if it is damaged."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return ""


def _write(path: Path, cases: dict[str, dict[str, Any]]) -> None:
    try:
        make_in_cache(path.parent)
        write_atomic(path, json.dumps({"machine": _machine(), "cases": cases}, indent=2) + "\n")
    except (OSError, StorageError) as error:
        warn_once(f"which engine is fastest cannot be kept, and is measured by each process: {error}")
