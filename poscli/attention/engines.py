"""The engines that can compute attention, the choice among them for an encoding and a place, and one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from poscli.attention import blocks, flex, native, sdpa, tiles, triton
from poscli.attention.place import DEFAULT_SIZES, GPU_SIZES, BlockSizes, Place
from poscli.equation import Encoding, Operands, Positions
from poscli.equation.reference import Reused, operands, reference
from poscli.system.console import warn_once
from poscli.system.errors import UsageError, near


@dataclass(frozen=True)
class Engine:
    """A way to compute attention."""

    name: str
    run: Callable[[Encoding, Operands, BlockSizes], Tensor]  # attention output [B, H, T, E]
    refuses: Callable[[Encoding, Place], str]  # the reason why it cannot run an encoding in a place; '' if it can
    summary: str
    devices: tuple[str, ...] = ("cpu", "cuda")  # types of device on which it is chosen
    gradient: bool = True  # False: it has no backward pass
    automatic: bool = True  # False: it runs only where a user asks for it
    # What a trial on the device of a place found wrong with the code that an encoding needs; '' if nothing is.
    fault: Callable[[Encoding, Place], str] = lambda *_: ""


@dataclass(frozen=True)
class Choice:
    """The engine chosen for an encoding, and the reason why no faster engine was."""

    engine: Engine
    reason: str = ""

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name

    def said_of(self, encoding: Encoding) -> str:
        """The sentence that announces the choice to users."""
        return f"{encoding.name} runs on the engine {self.name} ({self.reason})"


# In order of preference: the first that can run an encoding in a place is chosen. On CUDA that is torch's own kernel,
# but for a learned number per distance, whose gradient torch's kernels lack.
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("native", native.run, native.refuses, "our own kernels, compiled for this CPU", ("cpu",)),
        Engine(
            "tiles",
            tiles.run,
            tiles.refuses,
            "torch's fused attention, tile by tile",
            ("cpu",),
            gradient=False,
        ),
        Engine(
            "triton",
            triton.run,
            triton.refuses,
            "Triton kernels with the gradient of a number per distance",
            ("cuda",),
            fault=triton.fault,
        ),
        Engine("sdpa", sdpa.run, sdpa.refuses, "torch's fused attention, the bias a strided view"),
        Engine("flex", flex.run, flex.refuses, "torch's FlexAttention, a yardstick", ("cuda",), automatic=False),
        Engine("blocks", blocks.run, lambda *_: "", "eager, block by block over the queries"),
        Engine("reference", lambda e, x, _: reference(e, x), lambda *_: "", "eager and dense: the specification"),
    )
}


def choose(encoding: Encoding, wanted: str | Engine | None = None, place: Place | None = None) -> Choice:
    """The first engine that can run an encoding in a place, or the one asked for; UsageError if that one cannot.

    An engine is asked for by its name in `ENGINES`, or given itself: an analysis may bring one that is not there. An
    engine whose kernels a trial found wrong on the device is passed over, which is announced.
    """
    place = place or Place()
    if wanted is not None:
        engine = wanted if isinstance(wanted, Engine) else engine_named(wanted)
        if reason := refusal(engine, encoding, place):
            instead = choose(encoding, place=place).name
            raise UsageError(f"the engine {engine.name} cannot run {encoding.name}: {reason}; {instead} can")
        return Choice(engine, "asked for")
    passed: list[str] = []
    announced = False
    for engine in ENGINES.values():
        if not engine.automatic or misplaced(engine, place):
            continue
        reason = engine.refuses(encoding, place)
        fault = "" if reason else engine.fault(encoding, place)
        if not (reason or fault):
            choice = Choice(engine, "; ".join(passed))
            if announced:
                warn_once(choice.said_of(encoding))
            return choice
        announced = announced or bool(fault)
        if fault or engine.name != "triton":  # which is not meant for most encodings
            passed.append(f"not {engine.name}: {reason or fault}")
    raise AssertionError("the reference runs everything")


def attend(
    engine: Engine,
    encoding: Encoding,
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    positions: Positions,
    features_BHSF: Tensor | None = None,
    sizes: BlockSizes | None = None,
    reused: Reused | None = None,
) -> Tensor:
    """Attention output `[B, H, T, E]` from the outputs of the projections. The queries are the last T of S tokens.

    Blocks have the usual sizes of the device unless `sizes` are given.
    """
    # Fast kernels read the numbers of a vector as neighbours, whatever the strides say.
    q, k, v = (y if y.stride(-1) == 1 else y.contiguous() for y in (q_BHTD, k_BHSD, v_BHSE))
    x = operands(encoding, q, k, v, positions, features_BHSF, reused)
    usual = DEFAULT_SIZES if q.device.type == "cpu" else GPU_SIZES
    return encoding.output(engine.run(encoding, x, sizes or usual), x.pos_T)


def engine_named(name: str) -> Engine:
    """The engine of a name; UsageError, with the near names, if there is none."""
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}: {near(name, ENGINES)}")
    return ENGINES[name]


def engines_for(encoding: Encoding, place: Place | None = None) -> list[Engine]:
    """The engines that can run an encoding in a place, fastest first."""
    return [engine for engine in ENGINES.values() if not refusal(engine, encoding, place or Place())]


def refusal(engine: Engine, encoding: Encoding, place: Place) -> str:
    """Why an engine cannot run an encoding in a place; '' if it can."""
    return misplaced(engine, place) or engine.refuses(encoding, place) or engine.fault(encoding, place)


def misplaced(engine: Engine, place: Place) -> str:
    """Why an engine runs no encoding at all in a place; '' if it runs some."""
    if place.device not in engine.devices:
        return f"it runs on {' and '.join(engine.devices)}, and this is {place.device}"
    return "it has no backward pass" if place.gradient and not engine.gradient else ""
