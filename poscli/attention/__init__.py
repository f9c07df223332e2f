"""Attention: how the equation of `encodings/blanks.py` is computed. `reference.py` says what is right.

One engine is chosen for an encoding, the first of the table below that can run it; what was passed over, and why,
goes onto every result row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from poscli.attention import blocks, flex, reference, sdpa, tiles, triton
from poscli.attention.biases import BIASES
from poscli.attention.operands import Operands, Positions
from poscli.encodings import TIERS, Encoding
from poscli.errors import UsageError, near

__all__ = ["ENGINES", "Choice", "Engine", "Place", "Positions", "able", "attend", "choose"]


@dataclass(frozen=True)
class Place:
    """Where attention is to run."""

    device: str = "cpu"  # torch's type of device
    dtype: torch.dtype = torch.float32
    width: int = 16  # D, numbers per head of the model
    gradient: bool = True  # is one needed?


@dataclass(frozen=True)
class Engine:
    """A way to compute attention."""

    name: str
    run: Callable[[Operands], Tensor]
    refuses: Callable[[Encoding, Place], str]  # why it cannot run an encoding there; '' if it can
    summary: str
    devices: tuple[str, ...] = ("cpu", "cuda")  # where it is worth a try
    gradient: bool = True  # is it of any use in training?
    automatic: bool = True  # or only where asked for


@dataclass(frozen=True)
class Choice:
    """The engine that runs an encoding, and why a faster one does not."""

    engine: Engine
    reason: str = ""

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name


def _sdpa_refuses(encoding: Encoding, _: Place) -> str:
    acts = sorted(encoding.blanks & {*TIERS["row"], "relative_values"})
    return f"needs whole rows of scores ({', '.join(acts)})" if acts else ""


def _tiles_refuse(encoding: Encoding, _: Place) -> str:
    if acts := sorted(encoding.blanks & set(TIERS["row"])):
        return f"needs whole rows of scores ({', '.join(acts)})"
    if "bias" in encoding.blanks:
        return "the bias of a pair is no function of its distance"
    if "temperature" in encoding.blanks and encoding.blanks & BIASES:
        return "a temperature multiplies what depends on the distance"
    if "positions" in encoding.blanks and encoding.blanks & BIASES:
        return "distances may be uneven"
    return ""


# Fastest first.
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("triton", triton.run, triton.refuses, "Triton kernels that read a number per distance", ("cuda",)),
        Engine("tiles", tiles.tiles, _tiles_refuse, "torch's fused attention, tile by tile", ("cpu",), gradient=False),
        Engine("sdpa", sdpa.sdpa, _sdpa_refuses, "torch's fused attention, the bias a strided view"),
        Engine("flex", flex.run, flex.refuses, "torch's FlexAttention, a yardstick", ("cuda",), automatic=False),
        Engine("blocks", blocks.blocks, lambda *_: "", "eager, block by block over the queries"),
        Engine("reference", reference.reference, lambda *_: "", "eager and dense: the specification"),
    )
}


def choose(encoding: Encoding, wanted: str | None = None, place: Place | None = None) -> Choice:
    """The fastest engine that can run an encoding in a place, or the one asked for; UsageError if that one cannot."""
    place = place or Place()
    if wanted is not None:
        if wanted not in ENGINES:
            raise UsageError(f"there is no engine {wanted!r}: {near(wanted, ENGINES)}")
        if reason := refusal(ENGINES[wanted], encoding, place):
            instead = choose(encoding, place=place).name
            raise UsageError(f"the engine {wanted} cannot run {encoding.name}: {reason}; {instead} can")
        return Choice(ENGINES[wanted], "asked for")
    passed: list[str] = []
    for engine in ENGINES.values():
        if not engine.automatic or misplaced(engine, place):
            continue
        reason = engine.refuses(encoding, place)
        if not reason:
            return Choice(engine, "; ".join(passed))
        if encoding.tier != "token":  # without anything to add to the scores, no engine is faster than torch's kernel
            passed.append(f"not {engine.name}: {reason}")
    raise AssertionError("the reference runs everything")


def able(encoding: Encoding, place: Place | None = None) -> list[Engine]:
    """The engines that can run an encoding in a place, fastest first."""
    return [engine for engine in ENGINES.values() if not refusal(engine, encoding, place or Place())]


def refusal(engine: Engine, encoding: Encoding, place: Place) -> str:
    """Why an engine cannot run an encoding in a place; '' if it can."""
    return misplaced(engine, place) or engine.refuses(encoding, place)


def misplaced(engine: Engine, place: Place) -> str:
    """Why an engine runs nothing in a place; '' if it may."""
    if place.device not in engine.devices:
        return f"it runs on {' and '.join(engine.devices)}, and this is {place.device}"
    return "it has no backward pass" if place.gradient and not engine.gradient else ""


def attend(
    engine: Engine,
    encoding: Encoding,
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    positions: Positions,
    features_BHSF: Tensor | None = None,
) -> Tensor:
    """Attention output `[B, H, T, E]` from what the projections gave. The queries are the last T of the S tokens."""
    keys, queries = k_BHSD.shape[2], q_BHTD.shape[2]
    pos_T = positions.pos[keys - queries :]
    operands = Operands(
        encoding=encoding,
        q_BHTD=encoding.query(encoding.content_query(q_BHTD), pos_T),
        k_BHSD=encoding.key(k_BHSD, positions.pos),
        v_BHSE=encoding.value(v_BHSE, positions.pos),
        raw_q_BHTD=q_BHTD,
        raw_k_BHSD=k_BHSD,
        pos_S=positions.pos,
        step=positions.step,
        features_BHSF=features_BHSF,
        temperature_HT=_temperature(encoding, queries, keys, q_BHTD.device),
    )
    return encoding.output(engine.run(operands), pos_T)


def _temperature(encoding: Encoding, queries: int, keys: int, device: torch.device) -> Tensor | None:
    if "temperature" not in encoding.blanks:
        return None
    n = torch.arange(keys - queries + 1, keys + 1, device=device)
    return encoding.temperature(n.clamp(max=encoding.reach or keys))
