"""One call of attention: fill the token blanks of an encoding, run an engine, fill the blank `output`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from poscli.attention.engines import Engine
from poscli.attention.sizes import DEFAULT_SIZES, BlockSizes
from poscli.equation import Encoding, Operands, Positions
from poscli.equation.compatibility import BLIND
from poscli.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Reused:
    """What a call takes over from earlier calls for the same text."""

    keys_BHSD: Tensor | None = None  # the blank `key` of all keys
    by_distance: dict[str, Tensor] | None = None  # as in `Operands`


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


def operands(
    encoding: Encoding,
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    positions: Positions,
    features_BHSF: Tensor | None = None,
    reused: Reused | None = None,
) -> Operands:
    """The inputs of an engine: every token blank except `output` is filled."""
    keys, queries = k_BHSD.shape[2], q_BHTD.shape[2]
    if encoding.blanks - BLIND and positions.pos.ndim != encoding.axes:
        takes = "rows and columns of a grid, [S, 2]" if encoding.axes == 2 else "positions along a line, [S]"
        raise UsageError(
            f"{encoding.name} takes {takes}, and was given {list(positions.pos.shape)}; encoding.locate(...) makes them"
        )
    pos_T = positions.pos[keys - queries :]
    reused = reused or Reused()
    return Operands(
        q_BHTD=encoding.query(encoding.content_query(q_BHTD), pos_T),
        k_BHSD=encoding.key(k_BHSD, positions.of_keys) if reused.keys_BHSD is None else reused.keys_BHSD,
        v_BHSE=encoding.value(v_BHSE, positions.of_keys),
        raw_q_BHTD=q_BHTD,
        raw_k_BHSD=k_BHSD,
        pos_S=positions.of_keys,
        pos_of_queries_T=None if positions.shown is None else pos_T,
        step=positions.step,
        columns=positions.columns,
        reach=encoding.reach,
        sinks=encoding.sinks if encoding.reach else 0,  # without a reach every key is visible
        features_BHSF=features_BHSF,
        by_distance=reused.by_distance,
        temperature_HT=temperature(encoding, queries, keys, q_BHTD.device),
    )


def temperature(encoding: Encoding, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """The factor `[H or 1, T]` on the scores of each query, from the number of keys that the query sees."""
    if "temperature" not in encoding.blanks:
        return None
    n = torch.arange(keys - queries + 1, keys + 1, device=device)
    return encoding.temperature(n if encoding.reach is None else n.clamp(max=encoding.reach + encoding.sinks))
