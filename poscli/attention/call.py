"""One call of attention: fill the token blanks of an encoding, run an engine, fill the blank `output`."""

from __future__ import annotations

from torch import Tensor

from poscli.attention.engines import Engine
from poscli.attention.sizes import DEFAULT_SIZES, BlockSizes
from poscli.equation import Encoding, Positions
from poscli.equation.reference import Reused, operands


def attend(
    engine: Engine,
    encoding: Encoding,
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    positions: Positions,
    features_BHSF: Tensor | None = None,
    sizes: BlockSizes = DEFAULT_SIZES,
    reused: Reused | None = None,
) -> Tensor:
    """Attention output `[B, H, T, E]` from the outputs of the projections. The queries are the last T of S tokens."""
    x = operands(encoding, q_BHTD, k_BHSD, v_BHSE, positions, features_BHSF, reused)
    return encoding.output(engine.run(encoding, x, sizes), x.pos_T)
