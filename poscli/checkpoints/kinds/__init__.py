"""The kinds of positions that model types of transformers have, one file each."""

from poscli.checkpoints.kinds.alibi import ALIBI
from poscli.checkpoints.kinds.kind import Kind, Layer
from poscli.checkpoints.kinds.learned import LEARNED
from poscli.checkpoints.kinds.rotary import ROTARY

KINDS: dict[str, Kind] = {**ROTARY, **ALIBI, **LEARNED}  # by model_type

__all__ = ["KINDS", "Kind", "Layer"]
