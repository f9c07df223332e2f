"""The circumstances of an attention call that decide which engines can run it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from poscli.equation import Encoding
from poscli.equation.blanks import not_computed_by
from poscli.equation.reference import TERMS

# The refusal of engines that hide every key beyond the reach.
SINKS_REFUSED = "the first tokens stay visible beyond the reach (sinks)"


ON_GRID_REFUSED = "its distances are those of a grid, of rows and of columns"


@dataclass(frozen=True)
class Place:
    """A device, a dtype, the head width of the model, and whether a gradient is needed."""

    device: str = "cpu"  # torch's type of device
    dtype: torch.dtype = torch.float32
    width: int = 16  # D, numbers per head of the model
    gradient: bool = True
    here: torch.device | None = None  # the device itself, to try kernels on; None: it need not be at hand


def blanks_refused(encoding: Encoding, engine: str) -> str:
    """Why an engine refuses an encoding that fills a blank that the engine does not compute; '' if it computes all.

    Sinks are left out: they matter only beside a reach, and are refused by SINKS_REFUSED then.
    """
    blanks = [blank for blank in not_computed_by(engine, encoding.blanks) if blank != "sinks"]
    if rows := [blank for blank in blanks if blank not in TERMS]:
        return f"needs whole rows of scores ({', '.join(rows)})"
    return f"the {blanks[0]} of a pair is no function of its distance" if blanks else ""
