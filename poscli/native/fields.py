"""The structures of attention.h, field by field in the same order, and how tensors fill them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_float, c_int64, c_void_p

import torch
from torch import Tensor

MOST_TERMS = 4
BYTES = 4  # of a float32
QUERIES = 32  # queries of a block of the kernels, of which each has a first key


class Strides(ctypes.Structure):
    """Strides of a tensor `[B, H, tokens, channels]` whose channels are contiguous, in numbers."""

    _fields_ = [(name, c_int64) for name in ("batch", "head", "token")]


class TermFields(ctypes.Structure):
    """A term of the scores, and the gradient that is added up for it."""

    _fields_ = [
        ("x", c_void_p),
        ("grad", c_void_p),
        *((name, c_int64) for name in ("batch", "head", "query", "grad_batch", "grad_head", "grad_query")),
    ]


class RelativeFields(ctypes.Structure):
    """Vectors by distance, and the queries or keys that meet them."""

    _fields_ = [
        *((name, c_void_p) for name in ("met", "vectors", "grad_met", "grad_vectors")),
        ("met_at", Strides),
        ("grad_met_at", Strides),
        ("width", c_int64),
        ("head", c_int64),
    ]


class PiecesFields(ctypes.Structure):
    """A function made of straight pieces, of a number by distance times a number by query."""

    _fields_ = [
        *((name, c_void_p) for name in ("of_distance", "of_query", "start", "slopes", "bends")),
        ("count", c_int64),
    ]


class PassedFields(ctypes.Structure):
    """What each key does to the keys before it."""

    _fields_ = [
        *((name, c_int64) for name in ("kind", "width")),
        *((name, c_void_p) for name in ("of_queries", "of_keys", "factor")),
        ("of_queries_at", Strides),
        ("of_keys_at", Strides),
        ("without_own", c_int64),
        *((name, c_void_p) for name in ("grad_of_queries", "grad_of_keys", "grad_factor")),
        ("grad_of_queries_at", Strides),
        ("grad_of_keys_at", Strides),
    ]


class MixingFields(ctypes.Structure):
    """A network of one hidden layer over the heads of a pair."""

    _fields_ = [
        *((name, c_void_p) for name in ("of_scores", "of_distance", "out")),
        ("hidden", c_int64),
        ("given", c_int64),
        *((name, c_void_p) for name in ("grad_of_scores", "grad_of_distance", "grad_out")),
        ("leak", c_float),
    ]


TENSORS = ("q", "k", "v", "o", "grad_o", "grad_q", "grad_k", "grad_v")  # those with strides


class CallFields(ctypes.Structure):
    """One call of the kernels."""

    _fields_ = [
        *((name, c_int64) for name in ("batch", "heads", "queries", "keys", "width", "value_width")),
        *((name, c_int64) for name in ("reach", "sinks", "terms", "threads", "constant")),
        *((name, c_void_p) for name in ("q", "k", "v", "o", "top", "sum", "grad_o", "grad_q", "grad_k", "grad_v")),
        *((f"{name}_at", Strides) for name in TENSORS),
        ("term", TermFields * MOST_TERMS),
        ("a", RelativeFields),
        ("b", RelativeFields),
        ("c", RelativeFields),
        ("first_key", c_void_p),
        ("factors", c_void_p),
        ("grad_factors", c_void_p),
        ("pieces", PiecesFields),
        ("passed", PassedFields),
        ("mixing", MixingFields),
        ("past", c_int64),
        ("scale", c_float),
    ]

    def put(self, **tensors: Tensor) -> None:
        """Set the pointers and strides of some of `TENSORS`, `[B, H, tokens, channels]`."""
        for name, x in tensors.items():
            setattr(self, name, x.data_ptr())
            setattr(self, f"{name}_at", strides(x))


def strides(x: Tensor) -> Strides:
    """The strides of a tensor whose channels are contiguous; a batch or head of size 1 is shared by all."""
    assert x.stride(3) == 1 or x.shape[3] == 1
    return Strides(*x.stride()[:3])


def by_token(x: Tensor, width: int, make: Callable[..., Tensor]) -> Tensor:
    """A new tensor `[B, H, tokens, width]` in which the heads of a token are contiguous, as projections need them."""
    batch, heads, tokens, _ = x.shape
    return make(batch, tokens, heads, width, dtype=torch.float32).transpose(1, 2)


def term_at(x: Tensor, queries: int, *, skewed: bool) -> tuple[int, int, int, int]:
    """Address of the entry of the first query and key, and the strides of batch, head and query, of a term."""
    batch, head = (0 if x.shape[dim] == 1 else x.stride(dim) for dim in (0, 1))
    if skewed:
        first, query = queries - 1, -1
    elif x.shape[2] == 1:
        first, query = 0, 0
    else:  # the queries are in reverse order
        first, query = (queries - 1) * x.stride(2), -x.stride(2)
    return x.data_ptr() + BYTES * first, batch, head, query
