"""Causal attention with additive terms and relative vectors by the compiled kernels, with gradients, on a CPU.

    s_ij = scale q_i . k_j + the sum of terms_ij + p_i . a[i-j] + r_j . b[i-j]        over the visible keys j
    o_i  = sum_j softmax_j(s_ij) (v_j + c[i-j])       beside one more key, of score null_i and value 0, if it is given

Memory is O(tokens): a thread holds a tile of scores, or, for the gradients of forms in which keys act on the keys
before them (rows_backward.cpp), the rows of `QUERIES` queries. The results have the same bits on any number of threads.
All tensors are float32.

Shapes: B batch, H heads, T queries, S keys (the queries are the last T of the S tokens), D and E head widths of keys
and values, W width of relative vectors, N = T + S - 1 distances in descending order: query t and key j meet entry
T - 1 - t + j.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from poscli.native.call import (
    EVERY_KEY,
    MOST_TERMS,
    NO_VECTORS,
    QUERIES,
    Block,
    CallFields,
    Form,
    Part,
    RelativeFields,
    Term,
    TermFields,
    Vectors,
    Visible,
    by_token,
    put_gradients,
    strides,
    tensors_of,
    term_at,
)


@dataclass(frozen=True)
class _Plan:
    """What a call knows besides tensors; `library` holds the kernels."""

    library: ctypes.CDLL
    blocks: tuple[Block, ...]
    scale: float
    visible: Visible
    form: Form | None = None
    past: int | None = None  # keys before that of the first query; keys - queries if it is not given

    @property
    def of_form(self) -> slice:
        """Where the tensors of the form stand among those of the call."""
        return slice(10, 10 + (0 if self.form is None else len(tensors_of(self.form))))


def native_attention(
    library: ctypes.CDLL,
    qkv: tuple[Tensor, Tensor, Tensor],
    blocks: Sequence[Block],
    *,
    scale: float,
    visible: Visible = EVERY_KEY,
    vectors: Vectors = NO_VECTORS,
    null: Tensor | None = None,
    form: Form | None = None,
) -> Tensor:
    """Attention output `[B, H, T, E]` of queries, keys and values `[B, H, tokens, width]`.

    The blocks cover all queries in order. A call with relative vectors a, b, c (`vectors`) or with a form has one
    block. `null` `[B, H, T, 1]` is the score of a key without a value beside the others; the form `Stick`, which has no
    softmax, does not see it.
    """
    assert len(blocks) == 1 or (vectors == NO_VECTORS and form is None)
    plan = _Plan(library, tuple(blocks), scale, visible, form)
    relative = [x for each in vectors for x in ((None, None) if each is None else (each.vectors, each.met))]
    terms = [_ready(term.x) for block in blocks for term in block.terms]
    of_form = [] if form is None else [x.to(torch.float32).contiguous() for x in tensors_of(form)]
    out: Tensor = _Attention.apply(plan, *map(_ready, (*qkv, *relative, null)), *of_form, *terms)
    return out


@torch.no_grad()
def attention_to_part(library: ctypes.CDLL, part: Part, v_BHSE: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The output of attention to some keys, and the log-sum-exp `[B, H, T]` of their scores; no gradient."""
    q, k, v, term = (_ready(x) for x in (part.q_BHTD, part.k_BHSD, v_BHSE, part.term_BHTS))
    assert q is not None
    plan = _Plan(library, (), scale, Visible(reach=part.reach), past=part.keys_before)
    terms = () if term is None else (Term(term),)
    block = Block(slice(0, q.shape[2]), slice(0, v_BHSE.shape[2]), terms)
    out = by_token(q, v_BHSE.shape[3], torch.empty)
    top, total = _forward(plan, block, (q, k, v, *[None] * 7), [each.x for each in terms], out)
    return out, top + total.log()


def _ready(x: Tensor | None) -> Tensor | None:
    """The tensor with contiguous channels."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


class _Attention(torch.autograd.Function):
    """The tensors are q, k, v, the vectors of a, b and c with what meets each, null, those of the form, all terms."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor | None) -> Tensor:
        q, k, v = tensors[:3]
        assert q is not None
        assert k is not None
        assert v is not None
        assert all(x is None or x.dtype == torch.float32 for x in tensors)
        out = by_token(q, v.shape[3], torch.empty)
        tops_and_sums = []
        for block, at in zip(plan.blocks, _terms_of(plan), strict=True):
            tops_and_sums.append(_forward(plan, block, tensors, tensors[at], out))
        ctx.plan, ctx.count = plan, len(tensors)
        ctx.save_for_backward(*tensors, out, *tops_and_sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        tensors, (out, *tops_and_sums) = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        grad_o = grad_o if grad_o.stride(-1) == 1 else grad_o.contiguous()
        grads = _Gradients(tensors, ctx.needs_input_grad[1:], plan.of_form)
        for block, (top, total), at in zip(plan.blocks, tops_and_sums, _terms_of(plan), strict=True):
            call = _call(plan, block, tensors, tensors[at])
            call.put(o=out[:, :, block.queries], grad_o=grad_o[:, :, block.queries])
            call.top, call.sum = top.data_ptr(), total.data_ptr()
            kept = _put_form(plan, call, tensors)
            grads.put(call, block, at, plan.form)
            _check(plan.library.attention_backward(ctypes.byref(call)))
            del kept
        return None, *grads.summed()


class _Gradients:
    """The gradients of all tensors of a call. Those of what several texts or heads share are added up at the end."""

    def __init__(self, tensors: Sequence[Tensor], wanted: Sequence[bool], of_form: slice) -> None:
        """The tensors are q, k, v, six of relative vectors, null, those of the form (`of_form`), and all terms."""
        self.tensors, (q, k, v) = tensors, tensors[:3]
        self.wanted, everyone = wanted, q.shape[:2]
        self.grads: list[Tensor | None] = [by_token(q, q.shape[3], torch.empty)]
        self.grads += [by_token(x, x.shape[3], torch.zeros) for x in (k, v)]
        for x in tensors[3:9]:  # vectors have three dimensions, what meets them has four
            per_token = x is not None and x.ndim == 4
            shared = None if x is None or per_token else x.new_empty(*everyone, *x.shape[1:])
            self.grads.append(by_token(x, x.shape[3], torch.zeros) if per_token else shared)
        null = tensors[9]
        self.grads.append(None if null is None else null.new_zeros(null.shape))
        self.form = of_form
        for x, needed in zip(tensors[self.form], wanted[self.form], strict=True):  # of each text, or shared by all
            shape = x.shape if x.ndim == 4 else (len(q), *x.shape)
            self.grads.append(x.new_zeros(shape) if needed else None)
        for x, needed in zip(tensors[self.form.stop :], wanted[self.form.stop :], strict=True):
            self.grads.append(x.new_zeros(*everyone, *x.shape[2:]) if needed else None)

    def put(self, call: CallFields, block: Block, terms: slice, form: Form | None) -> None:
        """Tell the kernels where to put the gradients of a block."""
        if form is not None:
            put_gradients(form, call, self.grads[self.form])
        q, k, v, *relative, null = self.grads[:10]
        assert q is not None
        assert k is not None
        assert v is not None
        call.put(grad_q=q[:, :, block.queries], grad_k=k[:, :, block.keys], grad_v=v[:, :, block.keys])
        for fields, vectors, met in zip((call.a, call.b, call.c), relative[::2], relative[1::2], strict=True):
            if vectors is not None:
                fields.grad_vectors = vectors.data_ptr()
            if met is not None:
                fields.grad_met, fields.grad_met_at = met.data_ptr(), strides(met)
        if null is not None:
            call.put(grad_null=null[:, :, block.queries])
        queries = block.queries.stop - block.queries.start
        for index, (term, grad) in enumerate(zip(block.terms, self.grads[terms], strict=True)):
            if grad is not None:
                fields = call.term[index]
                fields.grad, *steps = term_at(term, grad, queries)
                fields.grad_batch, fields.grad_head, fields.grad_query = steps

    def summed(self) -> list[Tensor | None]:
        """The gradient of every tensor, in its shape; None where there is none."""
        return [
            None if grad is None or not needed else _summed(grad, x)
            for grad, x, needed in zip(self.grads, self.tensors, self.wanted, strict=True)
        ]


def _summed(grad: Tensor, x: Tensor) -> Tensor:
    """A gradient for every text and head, added up to the shape of the tensor."""
    if grad.shape == x.shape:
        return grad
    if x.ndim < 4:  # vectors [H or 1, N, W], or a tensor of a form that all texts share
        return grad.sum(0).sum_to_size(x.shape)
    return grad.sum_to_size(x.shape)


def _forward(
    plan: _Plan, block: Block, tensors: Sequence[Tensor | None], terms: Sequence[Tensor | None], out: Tensor
) -> Tensor:
    """Put the output of a block in its place.

    Returns, `[2, B, H, queries]`, the largest score m of every query and the sum of e^(score - m) over its keys.
    """
    call = _call(plan, block, tensors, terms)
    top, total = tops_and_sums = out.new_empty(2, *out.shape[:2], block.queries.stop - block.queries.start)
    call.put(o=out[:, :, block.queries])
    call.top, call.sum = top.data_ptr(), total.data_ptr()
    kept = _put_form(plan, call, tensors)
    _check(plan.library.attention_forward(ctypes.byref(call)))
    del kept  # the kernels have read these tensors
    return tops_and_sums


def _put_form(plan: _Plan, call: CallFields, tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """Describe the form of a call to the kernels; returns tensors that must live until they return."""
    given = [x for x in tensors[plan.of_form] if x is not None]
    return [] if plan.form is None else plan.form.put(call, *given)


def _check(enough: bool) -> None:
    """MemoryError if the kernels found too little memory."""
    if not enough:
        raise MemoryError("the kernels of attention could not allocate memory")


def _call(plan: _Plan, block: Block, tensors: Sequence[Tensor | None], terms: Sequence[Tensor | None]) -> CallFields:
    """The description of a block for the kernels, without results."""
    q, k, v = (x[:, :, at] for x, at in zip(tensors, (block.queries, block.keys, block.keys), strict=False))  # type: ignore[index]
    (batch, heads, queries, width), keys = q.shape, k.shape[2]
    assert k.shape == (batch, heads, keys, width)
    assert v.shape[:3] == k.shape[:3]
    assert queries <= keys or plan.past is not None
    call = CallFields(
        batch, heads, queries, keys, width, v.shape[3], plan.visible.reach, plan.visible.sinks, len(terms)
    )
    call.threads, call.scale, call.constant = torch.get_num_threads(), plan.scale, block.constant
    call.past = keys - queries if plan.past is None else plan.past
    call.put(q=q, k=k, v=v)
    # The kernels read memory unchecked: terms and vectors must have all entries.
    assert len(terms) <= MOST_TERMS
    for index, (term, x) in enumerate(zip(block.terms, terms, strict=True)):
        assert x is not None
        assert x.shape[2] in (1, queries)
        assert x.shape[3] >= term.least(queries, keys)
        assert not ((term.skewed or term.columns) and x.shape[2] != 1)
        first, *steps = term_at(term, x, queries)
        call.term[index] = TermFields(first, None, *steps, columns=term.columns)
    for name, vectors, met in zip("abc", tensors[3:9:2], tensors[4:9:2], strict=True):
        if vectors is not None:
            assert vectors.is_contiguous()
            assert vectors.shape[1] == queries + keys - 1
            head = 0 if len(vectors) == 1 else vectors.stride(0)
            relative = RelativeFields(None, vectors.data_ptr(), width=vectors.shape[2], head=head)
            if met is not None:
                assert met.shape[3] == vectors.shape[2]
                relative.met, relative.met_at = met.data_ptr(), strides(met)
            setattr(call, name, relative)
    if (null := tensors[9]) is not None:
        of_block = null[:, :, block.queries]
        assert of_block.shape == (batch, heads, queries, 1)
        call.put(null=of_block)
    if (first_key := block.first_key) is not None:
        assert first_key.dtype == torch.int32
        assert first_key.is_contiguous()
        assert first_key.shape == (heads, -(-queries // QUERIES))
        call.first_key = first_key.data_ptr()
    return call


def _terms_of(plan: _Plan) -> list[slice]:
    """Where the terms of each block stand among the tensors."""
    places, first = [], plan.of_form.stop
    for block in plan.blocks:
        places.append(slice(first, first + len(block.terms)))
        first += len(block.terms)
    return places
