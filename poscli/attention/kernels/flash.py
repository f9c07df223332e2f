"""Causal flash attention with everything that depends on the distance, or on c_i - c_j, added to its scores.

    s_ij = scale (q_i . k_j + q'_i . a[i-j] + k'_j . b[i-j]) + table[i-j] + c_i - c_j        j <= i, i - j < reach
    o_i  = sum_j softmax_j(s_ij) v_j

(Dao, 2023, arXiv:2307.08691, for the blocks and the backward pass.) Memory beside inputs and outputs is two float32 per
query, and for the gradient of a table or vectors 2-3 times their size, for up to B parts of the batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from poscli.attention.kernels.backward import delta_kernel, key_kernel, query_kernel
from poscli.attention.kernels.distances import distance_kernel
from poscli.attention.kernels.forward import forward_kernel
from poscli.attention.kernels.sizes import Tiles, backward_tiles, forward_tiles, padded

PADDING = 256  # entries before and after a table, so that every tile that touches it may read all of its distances
PROGRAMS = 1024  # that the kernel by distances should have at the least, where the batch can be divided
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def flash(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    *,
    scale: float,
    table: Tensor | None = None,
    a: Tensor | None = None,
    q_met: Tensor | None = None,
    b: Tensor | None = None,
    k_met: Tensor | None = None,
    potential: Tensor | None = None,
    reach: int | Tensor | None = None,
) -> Tensor:
    """Attention output `[B, H, T, E]` in the dtype of the values; the queries are the last T of the S tokens.

    `table` `[H or 1, n]`, `a` `[H or 1, n, A]` with its queries `[B, H, T, A]`, `b` `[H or 1, n, B]` with its keys
    `[B, H, S, B]`: for the distances 0..n-1, n >= S. `potential`: c `[B, H, S]`, float64. `reach`: tokens that a query
    sees, itself among them, for all heads or `[H]` int32. Gradients go to all of them but the reach, and are the same
    in every run.
    """
    return _Flash.apply(*arranged(q_BHTD, k_BHSD, v_BHSE, table, a, q_met, b, k_met, potential, reach), scale)


def arranged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor | None,
    a: Tensor | None,
    q_met: Tensor | None,
    b: Tensor | None,
    k_met: Tensor | None,
    potential: Tensor | None,
    reach: int | Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The same with strides and dtypes that kernels take; whatever that changes, autograd sees."""
    keys = k.shape[2]
    assert q.dtype in DTYPES
    assert q.shape[0] * q.shape[1] < 2**16  # programs along the second axis of a CUDA grid
    assert 1 <= q.shape[2] <= keys == v.shape[2]
    assert (a is None) == (q_met is None)
    assert (b is None) == (k_met is None)
    assert all(x is None or x.shape[1] >= keys for x in (table, a, b))
    if isinstance(reach, int):
        reach = None if reach >= keys else torch.full((q.shape[1],), reach, dtype=torch.int32, device=q.device)
    vectors = [None if x is None else x.to(q.dtype).contiguous() for x in (a, q_met, b, k_met)]
    table = None if table is None else table.float()
    return (*(_strided(x) for x in (q, k, v)), table, *vectors, potential, reach)


def packed(table: Any, a: Any, q_met: Any, b: Any, k_met: Any, potential: Any, reach: Any) -> tuple[Any, ...]:
    """What `arranged` gave beside q, k and v, as the kernels read it."""
    return _in_log2(table), a, q_met, b, k_met, _in_parts(potential), reach


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        given, scale = packed(*rest[:-1]), rest[-1]
        batch, heads, queries, _ = q.shape
        # as the output projection wants it: a token's heads side by side
        o = v.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
        lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
        call = Call(q, k, v, o, given, scale)
        tiles = forward_tiles(call.width, q.dtype, call.square)
        with torch.cuda.device_of(q):
            forward_kernel[(triton.cdiv(queries, tiles.queries), batch * heads)](
                q, k, v, o, lse, *call.operands, *call.strides, scale / math.log(2), *call.sizes,
                **call.flags, **call.tiled(tiles),
            )  # fmt: skip
        ctx.save_for_backward(q, k, v, o, lse, *given)
        ctx.scale = scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, o, lse, *given = ctx.saved_tensors
        need = ctx.needs_input_grad
        do = _strided(do)
        delta = torch.empty_like(lse)
        call = Call(q, k, v, do, tuple(given), ctx.scale)
        with torch.cuda.device_of(q):
            _delta(o, do, delta)
            dq, dq_met = _by_queries(call, lse, delta)
            dk, dv, dk_met, dc = _by_keys(call, lse, delta)
            d_table, d_a, d_b = _by_distances(call, lse, delta, tuple(need[n] for n in (3, 4, 6)))
        return (dq, dk, dv, d_table, d_a, dq_met, d_b, dk_met, dc, None, None)


def _in_log2(table: Tensor | None) -> Tensor | None:
    """The table in units of log 2, as a view whose rows may be read PADDING entries beyond both of their ends."""
    if table is None:
        return None
    return F.pad(table / math.log(2), (PADDING, PADDING))[:, PADDING:]


def _in_parts(potential: Tensor | None) -> Tensor | None:
    """`[B, H, S]` of float64 as the sum of two of float32, `[B, H, 2, S]` in units of log 2: differences stay exact."""
    if potential is None:
        return None
    c = potential / math.log(2)
    high = c.float()
    return torch.stack([high, (c - high).float()], dim=2)


def _strided(x: Tensor) -> Tensor:
    """`[B, H, T, D]` in one of the two orders that gradients can be given the strides of."""
    return x if x.is_contiguous() or x.transpose(1, 2).is_contiguous() else x.contiguous()


class Call:
    """The arguments that the kernels share. `o`: the output, or its gradient, by its strides."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, given: tuple[Any, ...], scale: float) -> None:
        self.q, self.k, self.v, self.o, self.scale = q, k, v, o, scale
        self.table, self.a, self.q_met, self.b, self.k_met, self.c, self.reach = given
        self.batch, self.heads, self.queries, _ = q.shape
        self.keys = k.shape[2]
        # where there is nothing, any pointer will do: it is not read
        self.operands = [
            q if x is None else x for x in (self.q_met, self.k_met, self.table, self.a, self.b, self.c, self.reach)
        ]
        self.strides = [n for x in (q, k, v, o) for n in x.stride()[:3]]
        self.strides += [0 if x is None or len(x) == 1 else x.stride(0) for x in (self.table, self.a, self.b)]
        self.sizes = [self.heads, self.queries, self.keys]

    @property
    def square(self) -> bool:
        """Relative vectors need square tiles."""
        return self.a is not None or self.b is not None

    @property
    def flags(self) -> dict[str, Any]:
        """What the kernels are compiled for."""
        widths = {"D": self.q.shape[-1], "E": self.v.shape[-1]}
        widths |= {name: 0 if x is None else x.shape[-1] for name, x in (("A", self.a), ("B", self.b))}
        return {
            **widths,
            **{f"{name}_PADDED": padded(width) for name, width in widths.items()},
            "TABLE": self.table is not None,
            "POTENTIAL": self.c is not None,
            "REACH": self.reach is not None,
            "PRECISION": "ieee" if self.q.dtype == torch.float32 else "tf32",  # of float32 products only
        }

    @staticmethod
    def tiled(tiles: Tiles) -> dict[str, int]:
        """How a kernel is launched."""
        return {"M": tiles.queries, "N": tiles.keys, "num_warps": tiles.warps, "num_stages": tiles.stages}

    @property
    def width(self) -> int:
        """Of the widest vectors, in registers."""
        return padded(max(x.shape[-1] for x in (self.q, self.v, self.a, self.b) if x is not None))

    def tiles(self) -> tuple[Tiles, Tiles, Tiles]:
        """Of the three backward kernels."""
        return backward_tiles(self.width, self.q.dtype, self.square)


def _delta(o: Tensor, do: Tensor, delta: Tensor) -> None:
    batch, heads, queries, width = o.shape
    delta_kernel[(triton.cdiv(queries, 64), batch * heads)](
        o, do, delta, *o.stride()[:3], *do.stride()[:3], heads, queries, E=width, E_PADDED=padded(width), M=64
    )


def _by_queries(call: Call, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor | None]:
    tiles = call.tiles()[0]
    dq = torch.empty_like(call.q)
    dq_met = None if call.q_met is None else torch.empty_like(call.q_met)
    query_kernel[(triton.cdiv(call.queries, tiles.queries), call.batch * call.heads)](
        call.q, call.k, call.v, call.o, dq, dq if dq_met is None else dq_met, lse, delta, *call.operands,
        *call.strides, call.scale / math.log(2), call.scale, *call.sizes, **call.flags, **call.tiled(tiles),
    )  # fmt: skip
    return dq, dq_met


def _by_keys(call: Call, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    tiles = call.tiles()[1]
    dk, dv = torch.empty_like(call.k), torch.empty_like(call.v)
    dk_met = None if call.k_met is None else torch.empty_like(call.k_met)
    dc = None if call.c is None else call.c.new_empty(call.batch, call.heads, call.keys)
    key_kernel[(triton.cdiv(call.keys, tiles.keys), call.batch * call.heads)](
        call.q, call.k, call.v, call.o, dk, dv, dk if dk_met is None else dk_met, lse if dc is None else dc,
        lse, delta, *call.operands, *call.strides, call.scale / math.log(2), call.scale, *call.sizes,
        **call.flags, **call.tiled(tiles),
    )  # fmt: skip
    return dk, dv, dk_met, None if dc is None else dc.double()


def _by_distances(
    call: Call, lse: Tensor, delta: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the table, a and b, where wanted: of all that is there, float32 for the table."""
    if not any(wanted):
        return None, None, None
    _, N, warps, stages = call.tiles()[2]
    blocks = triton.cdiv(call.keys, N) + 1
    parts = min(call.batch, triton.cdiv(PROGRAMS, blocks * call.heads))
    table = None if call.table is None else call.table[:, :-PADDING, None]
    sums = [
        lse.new_empty(parts, call.heads, blocks, 2, N, x.shape[-1]) if want and x is not None else None
        for x, want in zip((table, call.a, call.b), wanted, strict=True)
    ]
    distance_kernel[(blocks, call.heads, parts)](
        call.q, call.k, call.v, call.o, *(lse if x is None else x for x in sums), lse, delta, *call.operands,
        *call.strides, call.scale / math.log(2), call.scale, call.batch, *call.sizes, **call.flags,
        **dict(zip(("SUM_TABLE", "SUM_A", "SUM_B"), wanted, strict=True)), N=N, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    d_table, d_a, d_b = (
        None if total is None else _assembled(total, x) for total, x in zip(sums, (table, call.a, call.b), strict=True)
    )
    return None if d_table is None else d_table[..., 0], d_a, d_b


def _assembled(sums: Tensor, like: Tensor) -> Tensor:
    """The gradient by distance `[H or 1, n, ..]` from both halves of every block, `[parts, H, blocks, 2, N, ..]`."""
    low, high = sums.sum(0).unbind(2)
    high[:, :-1] += low[:, 1:]
    total = high.flatten(1, 2)
    total = total.sum(0, keepdim=True) if len(like) == 1 else total
    total = total[:, : like.shape[1]]
    return F.pad(total, (0, 0, 0, like.shape[1] - total.shape[1])).to(like.dtype)
