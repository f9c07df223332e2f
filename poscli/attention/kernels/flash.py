"""Causal flash attention with terms of the distance, and a potential c_i - c_j, added to its scores.

    s_ij = scale (q_i . k_j + q'_i . a[i-j] + k'_j . b[i-j]) + table[i-j] + c_i - c_j        j <= i, i - j < reach
    o_i  = sum_j softmax_j(s_ij) v_j

q' and k' are `q_met` and `k_met`, the queries and keys that meet relative vectors. The blocks and the backward pass
follow Dao, 2023, arXiv:2307.08691. Memory beside inputs and outputs is two float32 per query and, for the gradient of a
table or of vectors, 2-3 times their size for each of up to B parts of the batch.
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
from poscli.attention.kernels.tile_shapes import TileShape, backward_shapes, forward_shape, padded

TABLE_PADDING = 256  # entries before and after a table, so that a tile at its edge can read all its distances
# The batch is divided until the kernel by distances has this many programs.
LEAST_DISTANCE_PROGRAMS = 1024
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

    For the distances 0..n-1 with n >= S: `table` is `[H or 1, n]`; `a` is `[H or 1, n, A]` and its queries `q_met` are
    `[B, H, T, A]`; `b` is `[H or 1, n, B]` and its keys `k_met` are `[B, H, S, B]`. `potential` is c, `[B, H, S]` in
    float64. `reach` is the number of tokens that a query sees, itself among them, for all heads or `[H]` in int32.
    Gradients go to every tensor except the reach and are identical in every run.
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
    """The arguments of `flash` with strides and dtypes that the kernels accept; autograd records the conversions."""
    keys = k.shape[2]
    assert q.dtype in DTYPES
    assert q.shape[0] * q.shape[1] < 2**16  # the limit on programs along the second axis of a CUDA grid
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
    """The results of `arranged` after q, k and v, in the form that the kernels read."""
    return _in_log2(table), a, q_met, b, k_met, _in_parts(potential), reach


class _Flash(torch.autograd.Function):
    """The kernels with their backward pass; the arguments are the results of `arranged`, and the scale."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        given, scale = packed(*rest[:-1]), rest[-1]
        batch, heads, queries, _ = q.shape
        # the layout that the output projection reads: the heads of a token are contiguous
        o = v.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
        lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
        call = Call(q, k, v, o, given, scale)
        shape = forward_shape(call.width, q.dtype, call.square)
        with torch.cuda.device_of(q):
            forward_kernel[(triton.cdiv(queries, shape.queries), batch * heads)](
                q, k, v, o, lse, *call.terms, *call.strides, scale / math.log(2), *call.sizes,
                **call.flags, **call.launch(shape),
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
    """The table in units of log 2, as a view whose rows can be read TABLE_PADDING entries beyond both ends."""
    if table is None:
        return None
    return F.pad(table / math.log(2), (TABLE_PADDING, TABLE_PADDING))[:, TABLE_PADDING:]


def _in_parts(potential: Tensor | None) -> Tensor | None:
    """A potential `[B, H, S]` in float64 as the sum of two float32, `[B, H, 2, S]` in units of log 2.

    Two float32 keep the small differences of large potentials.
    """
    if potential is None:
        return None
    c = potential / math.log(2)
    high = c.float()
    return torch.stack([high, (c - high).float()], dim=2)


def _strided(x: Tensor) -> Tensor:
    """`[B, H, T, D]` in one of the two memory layouts that `torch.empty_like` preserves for the gradient."""
    return x if x.is_contiguous() or x.transpose(1, 2).is_contiguous() else x.contiguous()


class Call:
    """The arguments that the kernels share. `o` is the output or, in the backward pass, its gradient."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, given: tuple[Any, ...], scale: float) -> None:
        self.q, self.k, self.v, self.o, self.scale = q, k, v, o, scale
        self.table, self.a, self.q_met, self.b, self.k_met, self.c, self.reach = given
        self.batch, self.heads, self.queries, _ = q.shape
        self.keys = k.shape[2]
        # an absent term is never read, so any pointer serves as its argument
        self.terms = [
            q if x is None else x for x in (self.q_met, self.k_met, self.table, self.a, self.b, self.c, self.reach)
        ]
        self.strides = [n for x in (q, k, v, o) for n in x.stride()[:3]]
        self.strides += [0 if x is None or len(x) == 1 else x.stride(0) for x in (self.table, self.a, self.b)]
        self.sizes = [self.heads, self.queries, self.keys]

    @property
    def square(self) -> bool:
        """True if the tiles must be square, which relative vectors require."""
        return self.a is not None or self.b is not None

    @property
    def flags(self) -> dict[str, Any]:
        """The compile-time constants of the kernels."""
        widths = {"D": self.q.shape[-1], "E": self.v.shape[-1]}
        widths |= {name: 0 if x is None else x.shape[-1] for name, x in (("A", self.a), ("B", self.b))}
        return {
            **widths,
            **{f"{name}_PADDED": padded(width) for name, width in widths.items()},
            "TABLE": self.table is not None,
            "POTENTIAL": self.c is not None,
            "REACH": self.reach is not None,
            "PRECISION": "ieee" if self.q.dtype == torch.float32 else "tf32",  # concerns float32 products only
        }

    @staticmethod
    def launch(shape: TileShape) -> dict[str, int]:
        """The tile shape as keyword arguments of a kernel."""
        return {"M": shape.queries, "N": shape.keys, "num_warps": shape.warps, "num_stages": shape.stages}

    @property
    def width(self) -> int:
        """The width of the widest vectors, in registers."""
        return padded(max(x.shape[-1] for x in (self.q, self.v, self.a, self.b) if x is not None))

    def backward_shapes(self) -> tuple[TileShape, TileShape, TileShape]:
        """The tile shapes of the three backward kernels: by queries, by keys and by distances."""
        return backward_shapes(self.width, self.q.dtype, self.square)


def _delta(o: Tensor, do: Tensor, delta: Tensor) -> None:
    batch, heads, queries, width = o.shape
    delta_kernel[(triton.cdiv(queries, 64), batch * heads)](
        o, do, delta, *o.stride()[:3], *do.stride()[:3], heads, queries, E=width, E_PADDED=padded(width), M=64
    )


def _by_queries(call: Call, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor | None]:
    shape = call.backward_shapes()[0]
    dq = torch.empty_like(call.q)
    dq_met = None if call.q_met is None else torch.empty_like(call.q_met)
    query_kernel[(triton.cdiv(call.queries, shape.queries), call.batch * call.heads)](
        call.q, call.k, call.v, call.o, dq, dq if dq_met is None else dq_met, lse, delta, *call.terms,
        *call.strides, call.scale / math.log(2), call.scale, *call.sizes, **call.flags, **call.launch(shape),
    )  # fmt: skip
    return dq, dq_met


def _by_keys(call: Call, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    shape = call.backward_shapes()[1]
    dk, dv = torch.empty_like(call.k), torch.empty_like(call.v)
    dk_met = None if call.k_met is None else torch.empty_like(call.k_met)
    dc = None if call.c is None else call.c.new_empty(call.batch, call.heads, call.keys)
    key_kernel[(triton.cdiv(call.keys, shape.keys), call.batch * call.heads)](
        call.q, call.k, call.v, call.o, dk, dv, dk if dk_met is None else dk_met, lse if dc is None else dc,
        lse, delta, *call.terms, *call.strides, call.scale / math.log(2), call.scale, *call.sizes,
        **call.flags, **call.launch(shape),
    )  # fmt: skip
    return dk, dv, dk_met, None if dc is None else dc.double()


def _by_distances(
    call: Call, lse: Tensor, delta: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the table (in float32), of a and of b; None for those that are not `wanted`."""
    if not any(wanted):
        return None, None, None
    _, N, warps, stages = call.backward_shapes()[2]
    blocks = triton.cdiv(call.keys, N) + 1
    parts = min(call.batch, triton.cdiv(LEAST_DISTANCE_PROGRAMS, blocks * call.heads))
    table = None if call.table is None else call.table[:, :-TABLE_PADDING, None]
    sums = [
        lse.new_empty(parts, call.heads, blocks, 2, N, x.shape[-1]) if want and x is not None else None
        for x, want in zip((table, call.a, call.b), wanted, strict=True)
    ]
    distance_kernel[(blocks, call.heads, parts)](
        call.q, call.k, call.v, call.o, *(lse if x is None else x for x in sums), lse, delta, *call.terms,
        *call.strides, call.scale / math.log(2), call.scale, call.batch, *call.sizes, **call.flags,
        **dict(zip(("SUM_TABLE", "SUM_A", "SUM_B"), wanted, strict=True)), N=N, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    d_table, d_a, d_b = (
        None if total is None else _assembled(total, x) for total, x in zip(sums, (table, call.a, call.b), strict=True)
    )
    return None if d_table is None else d_table[..., 0], d_a, d_b


def _assembled(sums: Tensor, like: Tensor) -> Tensor:
    """The gradient by distance, `[H or 1, n, ..]`, from both halves of every block, `[parts, H, blocks, 2, N, ..]`."""
    low, high = sums.sum(0).unbind(2)
    high[:, :-1] += low[:, 1:]
    total = high.flatten(1, 2)
    total = total.sum(0, keepdim=True) if len(like) == 1 else total
    total = total[:, : like.shape[1]]
    return F.pad(total, (0, 0, 0, like.shape[1] - total.shape[1])).to(like.dtype)
