"""How long the work of a command takes, and how much memory it needs, before it starts.

A count of operations gives the time within a factor of ten. If it exceeds a minute, time is measured: a training step
and forward passes over windows of two lengths, of a throw-away model, are timed and multiplied by the steps and windows
that are left to do. `poscli train` only asks whether it takes an hour, and therefore measures from six minutes on. Of a
checkpoint, the loaded model is timed once, and then one layer of attention under each encoding.
Measuring changes no run: weights and data come from the run's seed, not from a global stream of random numbers.

Memory is counted (poscli/config/size.py). A step that may not fit is tried, and stopped before the memory is full.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from poscli.attention import Place, attend, choose
from poscli.config.run import RunConfig
from poscli.config.size import encoding_share, evaluation_bytes, run_parameters, training_bytes, weight_bytes
from poscli.equation import Encoding, Unsupported
from poscli.evaluation.evaluate import is_evaluated
from poscli.evaluation.measure import PASS_TOKENS, EvaluationSetup
from poscli.evaluation.plan import Measurement, Plan
from poscli.evaluation.posthoc import with_encoding
from poscli.evaluation.protocol import EvaluationSettings
from poscli.evaluation.protocols.sliding import PIECES_PER_WINDOW
from poscli.model.cache import Memory
from poscli.model.flops import evaluation_flops, training_flops
from poscli.model.held import held
from poscli.model.initialise import fresh_model
from poscli.model.language_model import LanguageModel
from poscli.model.load import load_model
from poscli.model.transformer import Model
from poscli.runs.run import ENDED, FAILED_STATES, Run, open_run, run_exists
from poscli.system.device import places_of_layers
from poscli.system.errors import CorruptError, ForeignError, UsageError
from poscli.system.memory import USABLE, free_memory, in_words, is_out_of_memory, unaffordable
from poscli.system.ranks import ranks
from poscli.system.seeds import generator
from poscli.tasks import Task
from poscli.training.optimizer import Optimizer
from poscli.training.recalibrate import recalibration_config
from poscli.why.explain import is_left_to_explain

MEASURED_FROM = 60.0  # seconds of a command by the count of operations; encodings take up to 10 times as long
# Measuring may take this share of the command's time, and this number of seconds in any case.
MEASURING_SHARE, MEASURING_SECONDS = 0.03, 15.0
BEGIN_SECONDS = 0.3  # of a training, for building the model and the first and last checkpoint
STATISTICS_SECONDS = 0.7  # of an evaluation, for what follows the passes: scoring, intervals, tables; measured on CPUs
WHY_SHARE = 0.5  # what --why takes, in times of an evaluation; measured 0.4 to 0.7 on CPUs, by encoding and length

# What this program reaches on small models: operations per second of one CPU core and of a GPU, and seconds that
# starting the kernels of one layer takes. Measured: 50e9 to 130e9 on a core with AMX, less on others.
CORE_SPEED, GPU_SPEED, LAYER_SECONDS = 40e9, 5e12, 1e-3

PROBE_TOKENS = 16384  # of a measured step at most; the time of a step is proportional to its windows
PROBE_SECONDS = 30.0  # of a measured forward pass at most
STEPS_SECONDS, MOST_STEPS = 0.5, 12  # of measured steps, until either is reached
BACKWARD = 2  # times as long as the forward pass
SHORT = 512  # tokens of the shorter timed window, at least: attention to fewer takes too little time to show

LOSS_BYTES = 4  # of a token's loss, and of each further measurement of the task
CERTAIN = 3  # an estimate of the memory of windows that is this many times what is free cannot be wrong

# The number of windows of each measurement that are measured whole, and that of those measured at their end only.
Windows = Mapping[Measurement, tuple[int, int]]
PassPace = tuple[float, float]  # seconds per token of a window, and what every further token of the window adds to them
T = TypeVar("T")


# What there is to do


@dataclass(frozen=True)
class PlannedJob:
    """One run with what is done already, and the time and memory that the rest takes."""

    run_id: str
    encoding: str
    corpus: str
    seed: int
    parameters: int
    steps: int
    done: str
    memory_gib: float
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Work:
    """What is left to do of a run: training steps, and the windows of its evaluation.

    `run` is given for a model that poscli did not train: it is loaded to be timed.
    """

    config: RunConfig
    task: Task
    device: torch.device
    run: Run | None = None
    steps: int = 0
    windows: Windows = field(default_factory=dict)
    share: float = 1.0  # of the time of one evaluation of the windows; more than 1 with --why


Planned = tuple[PlannedJob, list[Work]]  # a job whose seconds are not known yet, and its work


def trainings(
    configs: Iterable[RunConfig],
    task: Task,
    runs: Path,
    device: torch.device,
    *,
    anew: bool,
    measured_from: float = MEASURED_FROM,
) -> list[PlannedJob]:
    """The trainings of some runs, each once, whose folders lie in `runs`. Nothing is written.

    `anew`: what they have so far will be deleted. A step is measured where the count of operations exceeds
    `measured_from` seconds. UsageError if a training step does not fit the memory.
    """
    plans = [planned_training(config, task, runs, device, anew=anew) for config in dict.fromkeys(configs)]
    return timed(plans, measured_from)


def evaluations(
    setups: Iterable[EvaluationSetup], *, why: bool, judge: Run | None = None, anew: bool = False
) -> list[PlannedJob]:
    """The evaluations of some runs, and with `why` the analyses that are not made yet. Nothing is written.

    `anew`: those that are made already will be made again. UsageError if an evaluation does not fit the memory.
    """
    plans = []
    for each in setups:
        run, task, settings = each.run, each.task, each.settings
        explained = why and is_left_to_explain(None if anew else run, task, settings, judge)
        job, work = planned_evaluation(run, run.config, task, settings, each.device, why=explained, anew=anew)
        if not lacks_model(run):
            work += recalibration_left(run, task, each.device)
        plans.append((job, work))
    return timed(plans)


def planned_training(config: RunConfig, task: Task, runs: Path, device: torch.device, *, anew: bool) -> Planned:
    """The training of a run whose folder lies, or will lie, in `runs`."""
    run_id = config.run_id(task.fingerprint)
    run = None if anew else existing_run(runs / run_id)
    state, step = ("not begun", 0) if run is None else (run.status()["state"], run.status()["step"])
    first = config.steps if state in ENDED else step  # the first step that is left to take
    job = PlannedJob(
        run_id=run_id,
        encoding=config.encoding + config.recipe_mark,
        corpus=config.corpus,
        seed=config.seed,
        parameters=run_parameters(config, task.vocab),
        steps=config.steps,
        done=state if first in (0, config.steps) else f"step {step} of {config.steps}",
        memory_gib=training_bytes(config, device, task.vocab) / 2**30,
    )
    return job, [Work(config, task, device, steps=config.steps - first)]


def recalibration_left(run: Run, task: Task, device: torch.device) -> list[Work]:
    """The rest of the recalibration of a run, if it has one."""
    if not run.recalibration:
        return []
    config, status = recalibration_config(run), run.status()
    if status["state"] in ENDED:
        return []
    begun = run.training.status()["state"] == "complete"  # until then, `status` is that of the training
    return [Work(config, task, device, steps=config.steps - (status["step"] if begun else 0))]


def planned_evaluation(
    run: Run | None,
    config: RunConfig,
    task: Task,
    settings: EvaluationSettings,
    device: torch.device,
    *,
    why: bool,
    anew: bool = False,
) -> Planned:
    """The evaluation of a run that is trained, or of a configuration that has yet to be; with `why`, the analyses too.

    Of a run without a model nothing is measured.
    """
    refuse_unaffordable_windows(config, settings, device)
    evaluated = run is not None and not anew and is_evaluated(run, settings)
    measured = (why or not evaluated) and not (run is not None and lacks_model(run))
    windows = windows_of(task, settings) if measured else {}
    refuse_unaffordable_losses(task, windows)
    longest = settings.lengths[-1]
    size = evaluation_bytes(config, device, batch=max(1, PASS_TOKENS // longest), length=longest, vocab=task.vocab)
    job = PlannedJob(
        run_id=run.id if run else config.run_id(task.fingerprint),
        encoding=run.label if run else config.encoding,
        corpus=run.corpus if run else config.corpus,
        seed=config.seed,
        parameters=run_parameters(config, task.vocab),
        steps=config.steps,
        done="not evaluated" if not evaluated else "evaluated, not explained" if why else "evaluated",
        memory_gib=size / 2**30,
    )
    share = (not evaluated) + WHY_SHARE * why
    return job, [Work(config, task, device, run if config.checkpoint else None, windows=windows, share=share)]


def lacks_model(run: Run) -> bool:
    """Whether a run has no model, and gets none unless it is trained anew."""
    state = run.status()["state"]
    trained = run.recalibration is not None and run.training.status()["state"] == "complete"
    return state in FAILED_STATES and (state in ENDED or not trained)  # a recalibration that failed is tried again


def existing_run(folder: Path) -> Run | None:
    """The run in a folder; None if none has begun, or what describes it has to be written again."""
    try:
        return open_run(folder) if run_exists(folder) else None
    except ForeignError:
        raise
    except CorruptError:
        return None


@lru_cache(maxsize=4)
def windows_of(task: Task, settings: EvaluationSettings) -> Windows:
    """The measurements of an evaluation with their numbers of windows; UsageError or DataError if there are none."""
    plan, counts = Plan(task, settings), {}
    for each in plan.measurements():
        whole = plan.measured_tokens(each) == each.window
        counts[each] = int(whole.sum()), int((~whole).sum())
    return counts


# What does not fit the memory


def refuse_unaffordable_windows(config: RunConfig, settings: EvaluationSettings, device: torch.device) -> None:
    """UsageError if windows of the longest length certainly do not fit the memory."""
    longest = settings.lengths[-1]
    if why := unaffordable_window(config, longest, device, batch=max(1, PASS_TOKENS // longest)):
        option = "--lengths" if settings.ratios else "--max-len"
        raise UsageError(f"evaluating {config.encoding} on {longest} tokens {why}; lower {option}")


def unaffordable_window(
    config: RunConfig, length: int, device: torch.device, batch: int = 1, *, loaded: bool = False
) -> str:
    """Why `batch` windows of `length` tokens certainly do not fit the memory; empty if they may.

    The weights must fit as well, unless they are `loaded`.
    """
    size = evaluation_bytes(config, device, batch=batch, length=length) - (weight_bytes(config) if loaded else 0)
    where = (device,) if config.checkpoint is None else places_of_layers(device)
    return unaffordable(size, *where) if unaffordable(size / CERTAIN, *where) else ""


def refuse_unaffordable_losses(task: Task, windows: Windows) -> None:
    """UsageError if the losses of all tokens of all windows, which an evaluation holds, do not fit the memory."""
    count = sum(map(sum, windows.values()))
    tokens = sum(sum(counts) * each.window for each, counts in windows.items())
    if why := unaffordable(LOSS_BYTES * tokens * (1 + len(task.columns)), torch.device("cpu")):
        fix = "lower --tokens or --max-len, or raise --stride"
        raise UsageError(f"keeping the losses of {count:,} windows {why}; {fix}")


# How long it takes


def timed(plans: Sequence[Planned], measured_from: float = MEASURED_FROM) -> list[PlannedJob]:
    """The jobs of a command with the seconds that each takes; UsageError if a training step does not fit the memory."""
    counted = sum(counted_seconds(each) for _, work in plans for each in work)
    pace = Pace(max(MEASURING_SECONDS, MEASURING_SHARE * counted) if counted > measured_from else 0.0)
    with held():  # all encodings of a checkpoint share one copy of it
        return [replace(job, seconds=sum(map(pace.seconds, work), 0.0)) for job, work in plans]


class Pace:
    """How fast this machine works: each model is measured, once for all seeds and texts, until a budget is spent.

    What is not measured is counted in operations, and multiplied by the median ratio of measured to counted time of
    the configurations that are. A training step is measured even without a budget where it must be tried.
    """

    def __init__(self, budget: float) -> None:
        """`budget` is in seconds; the last measurement may exceed it."""
        self._left = budget
        self._steps: dict[str, float] = {}
        self._passes: dict[str, tuple[PassPace, PassPace]] = {}
        self._without: dict[str, tuple[float, float]] = {}  # by digest: checkpoints without their attention
        self._ratios: dict[str, list[float]] = {"step": [], "pass": []}

    def seconds(self, work: Work) -> float:
        """The time that work takes."""
        training = BEGIN_SECONDS + work.steps * self._step(work) if work.steps else 0.0
        evaluation = work.share * (STATISTICS_SECONDS + self._evaluation(work)) if work.windows else 0.0
        return training + evaluation

    def _step(self, work: Work) -> float:
        config, task, device = work.config, work.task, work.device
        key, counted = _key(config, task), counted_step(config, task, device)
        if key not in self._steps and (self._left > 0 or is_unusual(config, task, device)):
            self._steps[key] = self._measured(lambda: measured_step(config, task, device))
            self._ratios["step"].append(self._steps[key] / counted)
        return self._steps.get(key) or counted * self._typical("step")

    def _evaluation(self, work: Work) -> float:
        config, task, device = work.config, work.task, work.device
        key, counted = _key(config, task), counted_evaluation(config, task, work.windows, device) / ranks().count
        if config.checkpoint is not None and work.run is None:  # there is nothing to load
            return counted
        if key not in self._passes and self._left > 0:
            measure = partial(measured_pass, config, task, device)
            if work.run is not None:
                measure = partial(self._checkpoint_pass, work.run, device)
            self._passes[key] = self._measured(measure)
            self._ratios["pass"].append(
                evaluation_at(self._passes[key], work.windows, config.length) / ranks().count / counted
            )
        if key in self._passes:
            return evaluation_at(self._passes[key], work.windows, config.length) / ranks().count
        return counted * self._typical("pass")

    def _checkpoint_pass(self, run: Run, device: torch.device) -> tuple[PassPace, PassPace]:
        """The pace of a checkpoint under an encoding: its layers are timed once, and attention for each encoding."""
        assert run.config.checkpoint is not None
        model, digest = load_model(run, device), run.config.checkpoint.digest
        if digest not in self._without:
            self._without[digest] = pace_without_attention(model)
        encodings = with_encoding(model, run.config.encoding, run.trained).encodings if run.trained else model.encodings
        base, slope = attention_pace(encodings, model)
        whole, at_the_end = self._without[digest]
        return (whole + base, slope), (at_the_end + base, slope)

    def _measured(self, measure: Callable[[], T]) -> T:
        start = time.monotonic()
        measured = measure()
        self._left -= time.monotonic() - start
        return measured

    def _typical(self, what: str) -> float:
        return statistics.median(self._ratios[what]) if self._ratios[what] else 1.0


def _key(config: RunConfig, task: Task) -> str:
    """What the time of a step or a window depends on; it does not depend on the text, the seed or the recipe."""
    alike = {"seed", "corpus", "tokens", "recipe", "tuning"}
    return f"{task.vocab} {config.model_dump_json(exclude=alike)}"


def is_unusual(config: RunConfig, task: Task, device: torch.device) -> bool:
    """Whether a step must be tried: a count of operations says little about it, or it may not fit the memory."""
    size = training_bytes(config, device, task.vocab)
    return encoding_share(config, task.vocab) > 0.5 or bool(unaffordable(size, device))


# By the count of operations


def counted_seconds(work: Work) -> float:
    """The time that work takes by the count of operations, right within a factor of ten."""
    training = work.steps * counted_step(work.config, work.task, work.device) if work.steps else 0.0
    evaluation = counted_evaluation(work.config, work.task, work.windows, work.device) / ranks().count
    return training + work.share * evaluation


def counted_step(config: RunConfig, task: Task, device: torch.device) -> float:
    """Seconds of a training step by the count of operations."""
    flops = training_flops(config.model, task.vocab, config.length) * config.batch * config.length / ranks().count
    return _counted(flops, 3 * config.model.layers, device)  # forward, and twice as many kernels backward


def counted_evaluation(config: RunConfig, task: Task, windows: Windows, device: torch.device) -> float:
    """Seconds of the forward passes of an evaluation by the count of operations, in one process."""
    seconds = 0.0
    for measurement, counts in windows.items():
        tokens = sum(counts) * measurement.window
        passes = tokens / max(PASS_TOKENS, measurement.window)
        attended = measurement.attended(config.length)
        flops = evaluation_flops(config.model, task.vocab, attended)
        if config.checkpoint is not None:  # its matrices are not those of poscli's model of this shape
            of_scores = 2 * config.model.layers * config.model.width * attended
            flops = 2 * config.checkpoint.parameters + of_scores
        seconds += _counted(tokens * flops, 0, device) + passes * _counted(0, config.model.layers, device)
    return seconds


def _counted(flops: float, layers: int, device: torch.device) -> float:
    """Seconds of `flops` operations in `layers` layers."""
    speed = GPU_SPEED if device.type == "cuda" else CORE_SPEED * torch.get_num_threads()
    return flops / speed + layers * LAYER_SECONDS


# By measuring


def measured_step(config: RunConfig, task: Task, device: torch.device) -> float:
    """Seconds of a training step of a throw-away copy of a run's model; UsageError if it does not fit the memory."""
    per_rank = config.batch // ranks().count
    windows = max(1, min(per_rank // config.accumulate, PROBE_TOKENS // config.length))
    try:
        seconds = _steps(config, task, device, windows)
    except _TooSlow:
        seconds = (1 + BACKWARD) * PROBE_SECONDS
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        why = str(error) if isinstance(error, _TooLarge) else f"needs more than {in_words(free_memory(device))}"
        fix = "lower --batch, --length or the encoding's options"
        raise UsageError(f"training {config.encoding} {why}; {fix}") from error
    return seconds * per_rank / windows


def _steps(config: RunConfig, task: Task, device: torch.device, windows: int) -> float:
    """Seconds of a step: the median of some, without the first, which also loads kernels.

    On a CPU the first is enough if it is long; on a GPU, kernels may have been compiled in it.
    """
    model = fresh_model(config, task.vocab, device)
    assert model.choices  # to choose may mean to compile and to try kernels, which no step has to do again
    optimizer, memory = Optimizer(model, config.recipe, config.steps), Memory(config.model.memory)
    batch = task.batch(size=windows, length=config.length, seed=config.seed, step=0)
    seconds: list[float] = []
    while len(seconds) < 2 or (sum(seconds) < STEPS_SECONDS and len(seconds) < MOST_STEPS):
        start, guard = time.monotonic(), _Guard(device)
        model.begin_step(0.0, generator(config.seed, "step", "0"))
        inputs, targets = batch.tensors(device)
        with torch.autograd.graph.saved_tensors_hooks(guard.keep, lambda kept: kept):
            loss = model.loss(inputs, targets, memory if memory.tokens else None)
        loss.backward()
        optimizer.clip().item()  # waits for the device
        optimizer.step(0)
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.monotonic() - start)
        if seconds[0] > 1 and device.type == "cpu":
            return seconds[0]
    return statistics.median(seconds[1:])


class _TooLarge(MemoryError):
    """A forward pass keeps more than the free memory."""


class _TooSlow(Exception):
    """A forward pass takes longer than PROBE_SECONDS."""


class _Guard:
    """Sees every tensor that autograd keeps, and stops the forward pass before memory is full or the time is over.

    Without it the system would kill the process, because it promises more memory than it has.
    """

    def __init__(self, device: torch.device) -> None:
        self.free, self.end = free_memory(device), time.monotonic() + PROBE_SECONDS
        self.bytes, self.seen = 0, set[int]()

    def keep(self, kept: Tensor) -> Tensor:
        """Count a tensor that autograd keeps; a storage that several tensors share counts once."""
        storage = kept.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        if self.bytes > USABLE * self.free:
            raise _TooLarge(f"needs more than {in_words(self.bytes)}, {in_words(self.free)} are free")
        if time.monotonic() > self.end:
            raise _TooSlow
        return kept


def measured_pass(config: RunConfig, task: Task, device: torch.device) -> tuple[PassPace, PassPace]:
    """The pace of forward passes over windows that are measured whole, and at their end only."""
    model = fresh_model(config, task.vocab, device).eval().requires_grad_(False)
    length = max(model.length, SHORT)
    whole, at_the_end = (_pass_pace(model, length, part) for part in (1, PIECES_PER_WINDOW))
    return whole, at_the_end


def pace_without_attention(model: LanguageModel) -> tuple[float, float]:
    """Seconds per token of all of a model but its attention, for windows measured whole, and at their end only."""
    base, slope = attention_pace(model.encodings, model)
    short = [_pass(model, SHORT, part, windows=1) for part in (1, PIECES_PER_WINDOW)]
    whole, at_the_end = (max(0.0, seconds - base - slope * SHORT) for seconds in short)
    return whole, at_the_end


def attention_pace(encodings: Sequence[Encoding], like: LanguageModel) -> PassPace:
    """The pace of attention on all layers, under these encodings, in a model of the same sizes."""
    counts = Counter(encodings)  # layers may share an encoding
    paces = [(_attention_pace(encoding, like), count) for encoding, count in counts.items()]
    return sum(base * count for (base, _), count in paces), sum(slope * count for (_, slope), count in paces)


@torch.inference_mode()
def _attention_pace(encoding: Encoding, like: LanguageModel) -> PassPace:
    """The pace of attention on one layer."""
    shape, dtype = like.shape, like.attention_dtype
    own = itertools.chain(encoding.parameters(), encoding.buffers())  # of a model on several GPUs, each has its own
    device = next((tensor.device for tensor in own), like.device)
    engine = choose(encoding, None, Place(device.type, dtype, shape.head_width, gradient=False, here=device)).engine
    least = SHORT if device.type == "cpu" else 8 * SHORT  # a GPU takes as long for fewer tokens

    def seconds(tokens: int) -> float:
        """Per token; the shorter of two runs."""
        size = (1, shape.heads, tokens, shape.head_width)
        q, k, v = torch.zeros(3, *size, device=device, dtype=dtype)
        found = []
        for _ in range(2):
            start = time.monotonic()
            attend(engine, encoding, q, k, v, encoding.locate(tokens, device)).sum().item()  # waits for the device
            found.append(time.monotonic() - start)
        return min(found) / tokens

    try:
        short, long = seconds(least), seconds(4 * least)
    except Unsupported:
        return 0.0, 0.0  # beyond its longest length nothing is measured
    return _line(least, short, long)


def _pass_pace(model: Model, length: int, part: int) -> PassPace:
    """The pace of passes in which one `part`th of each window is measured."""
    try:
        short, long = _pass(model, length, part), _pass(model, 4 * length, part)
    except Unsupported:  # the encoding ends here, and longer lengths will be skipped for the same reason
        return _pass(model, model.length, part), 0.0
    return _line(length, short, long)


def _line(length: int, short: float, long: float) -> PassPace:
    """The pace that follows from the seconds per token in windows of a `length`, and in windows four times as long."""
    slope = max(0.0, (long - short) / (3 * length))
    return max(0.0, short - slope * length), slope


@torch.inference_mode()
def _pass(model: LanguageModel, length: int, part: int, windows: int = 0) -> float:
    """Seconds per token of a forward pass over windows of a length; of the second, on a CPU of the first if it is long.

    Without a number of `windows`, there are as many as an evaluation reads together.
    """
    tokens = torch.zeros(windows or max(1, PASS_TOKENS // length), length, dtype=torch.long, device=model.device)
    for _ in range(2):
        start = time.monotonic()
        for _, logits in model.logits_in_slices(tokens, length // part):
            logits.sum().item()  # waits for the device
        seconds = time.monotonic() - start
        if seconds > 1 and model.device.type == "cpu":
            break
    return seconds / tokens.numel()


def evaluation_at(paces: tuple[PassPace, PassPace], windows: Windows, train_length: int) -> float:
    """The time to evaluate a run at the paces that `measured_pass` returns, in one process."""
    return sum(
        count * each.window * (base + slope * each.attended(train_length))
        for each, counts in windows.items()
        for count, (base, slope) in zip(counts, paces, strict=True)
    )
