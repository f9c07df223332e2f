"""The gradients of one call of attention: what the kernels fill, and its sums over what texts and heads share.

Shapes: B batch, H heads, N distances, W width of relative vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poscli.native.fields import CallFields, by_token, strides, term_at
from poscli.native.forms import Form, Learned
from poscli.native.inputs import Block


class Gradients:
    """The gradients of all tensors of a call. Those of what several texts or heads share are added up at the end."""

    def __init__(self, tensors: Sequence[Tensor], wanted: Sequence[bool], of_form: slice) -> None:
        """The tensors are q, k, v, six of relative vectors, those of the form (`of_form`), and all terms."""
        self.tensors, (q, k, v) = tensors, tensors[:3]
        self.wanted, everyone = wanted, q.shape[:2]
        self.grads: list[Tensor | None] = [by_token(q, q.shape[3], torch.empty)]
        self.grads += [by_token(x, x.shape[3], torch.zeros) for x in (k, v)]
        for x in tensors[3:9]:  # vectors have three dimensions, what meets them has four
            per_token = x is not None and x.ndim == 4
            shared = None if x is None or per_token else x.new_empty(*everyone, *x.shape[1:])
            self.grads.append(by_token(x, x.shape[3], torch.zeros) if per_token else shared)
        self.form = of_form
        for x, asked in zip(tensors[self.form], wanted[self.form], strict=True):  # of each text, or shared by all
            shape = x.shape if x.ndim == 4 else (len(q), *x.shape)
            self.grads.append(x.new_zeros(shape) if asked else None)
        for x, asked in zip(tensors[self.form.stop :], wanted[self.form.stop :], strict=True):
            self.grads.append(x.new_zeros(*everyone, *x.shape[2:]) if asked else None)

    def put(self, call: CallFields, block: Block, terms: slice, form: Form | None) -> None:
        """Tell the kernels where to put the gradients of a block."""
        if isinstance(form, Learned):
            form.put_gradients(call, *self.grads[self.form])
        q, k, v, *relative = self.grads[:9]
        assert q is not None
        assert k is not None
        assert v is not None
        call.put(grad_q=q[:, :, block.queries], grad_k=k[:, :, block.keys], grad_v=v[:, :, block.keys])
        for fields, vectors, met in zip((call.a, call.b, call.c), relative[::2], relative[1::2], strict=True):
            if vectors is not None:
                fields.grad_vectors = vectors.data_ptr()
            if met is not None:
                fields.grad_met, fields.grad_met_at = met.data_ptr(), strides(met)
        queries = block.queries.stop - block.queries.start
        for index, (term, grad) in enumerate(zip(block.terms, self.grads[terms], strict=True)):
            if grad is not None:
                fields = call.term[index]
                fields.grad, *steps = term_at(grad, queries, skewed=term.skewed)
                fields.grad_batch, fields.grad_head, fields.grad_query = steps

    def found(self) -> list[Tensor | None]:
        """The gradient of every tensor; None where there is none."""
        return [
            None if grad is None or not asked else _summed(grad, x)
            for grad, x, asked in zip(self.grads, self.tensors, self.wanted, strict=True)
        ]


def _summed(grad: Tensor, x: Tensor) -> Tensor:
    """A gradient for every text and head, added up to the shape of the tensor."""
    if grad.shape == x.shape:
        return grad
    if x.ndim < 4:  # vectors [H or 1, N, W], or a tensor of a form that all texts share
        return grad.sum(0).sum_to_size(x.shape)
    return grad.sum_to_size(x.shape)
