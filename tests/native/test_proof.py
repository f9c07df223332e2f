"""The proof of compiled kernels: a library with a planted fault is found, whatever the fault."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from compiled import Wrong, kernels, needs_kernels

from poscli.native import proof, why_not


def test_kernels_that_this_machine_compiles_are_right() -> None:
    """Without kernels the other tests of them are skipped, also if it is their own proof that refuses them."""
    assert "are wrong on this CPU" not in why_not()


@needs_kernels
def test_the_kernels_are_proven_and_the_proof_draws_nothing_from_the_global_generator() -> None:
    """Otherwise a process that compiles them would draw other numbers than one that finds them kept."""
    before = torch.get_rng_state()
    assert proof.disagreement(kernels()) == ""
    assert torch.equal(torch.get_rng_state(), before)


def shifted_scale(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.scale *= 1.0001
    return real(call)


def one_key_less(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.reach -= 1
    return real(call)


def another_table(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.term[0].x += 4
    return real(call)


def another_gradient(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.term[0].grad += 4
    return real(call)


def vectors_of_the_first_head(real: Callable, call: ctypes.Structure) -> bool:
    call._obj.a.head = 0
    return real(call)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("attention_forward", shifted_scale),
        ("attention_forward", one_key_less),
        ("attention_forward", another_table),
        ("attention_backward", shifted_scale),
        ("attention_backward", another_gradient),
        ("attention_backward", vectors_of_the_first_head),
    ],
)
def test_a_wrong_kernel_is_found(name: str, fault: Callable) -> None:
    assert "differs" in proof.disagreement(Wrong(name, fault))  # type: ignore[arg-type]


def changed(field: str, by: Callable) -> Callable:
    """A kernel whose call has another number in a field, where it has one."""

    def fault(real: Callable, call: ctypes.Structure) -> bool:
        owner, _, name = field.rpartition(".")
        fields = getattr(call._obj, owner) if owner else call._obj
        if getattr(fields, name):
            setattr(fields, name, by(getattr(fields, name)))
        return real(call)

    return fault


@needs_kernels
@pytest.mark.parametrize(
    ("field", "by", "form"),
    [
        ("pieces.of_distance", lambda x: x + 4, "pieces"),
        ("pieces.count", lambda x: x - 1, "pieces"),
        ("passed.factor", lambda x: x + 4, "costs"),
        ("passed.width", lambda x: x - 1, "costs"),
        ("passed.without_own", lambda _: 0, "stick"),
        ("mixing.leak", lambda x: x + 0.01, "mixing"),
        ("mixing.of_distance", lambda x: x + 4, "mixing"),
        ("factors", lambda x: x + 4, "factors"),
    ],
)
def test_a_wrong_form_is_found(field: str, by: Callable, form: str) -> None:
    wrong = proof.disagreement(Wrong("attention_forward", changed(field, by)))  # type: ignore[arg-type]
    assert f"the form {form} differs" in wrong


def shifted(real: Callable, call: ctypes.Structure) -> bool:
    """Gradients by query land one token too far."""
    fields = call._obj
    if fields.passed.grad_of_queries:
        fields.passed.grad_of_queries += 4 * fields.passed.grad_of_queries_at.token
        fields.queries -= 1
    return real(call)


@needs_kernels
@pytest.mark.parametrize(
    ("field", "by", "form"),
    [
        ("passed.factor", lambda x: x + 4, "costs"),
        ("passed.of_keys", lambda x: x + 4, "costs"),
        ("passed.grad_of_keys", lambda _: 0, "costs"),
        ("passed.grad_factor", lambda _: 0, "costs"),
        ("passed.without_own", lambda _: 0, "stick"),
        ("factors", lambda x: x + 4, "factors"),
        ("grad_factors", lambda x: x + 4, "factors"),
        ("mixing.leak", lambda x: x + 0.01, "mixing"),
        ("mixing.of_distance", lambda x: x + 4, "mixing"),
        ("mixing.grad_out", lambda _: 0, "mixing"),
        ("mixing.grad_of_scores", lambda _: 0, "mixing"),
        ("mixing.grad_of_distance", lambda _: 0, "mixing"),
        ("scale", lambda x: x * 1.0001, "costs"),
    ],
)
def test_a_wrong_gradient_of_a_form_is_found(field: str, by: Callable, form: str) -> None:
    """No gradient is moved beyond its tensor: some are left out (0) instead."""

    def fault(real: Callable, call: ctypes.Structure) -> bool:
        fields = call._obj
        of_form = (
            fields.passed.kind or fields.factors or fields.mixing.hidden
        )  # not the plain calls, which are compared first
        return changed(field, by)(real, call) if of_form else real(call)

    wrong = proof.disagreement(Wrong("attention_backward", fault))  # type: ignore[arg-type]
    assert wrong.startswith("the gradient of ")
    assert f"of the form {form} differs" in wrong


@needs_kernels
def test_a_gradient_of_another_table_is_found() -> None:
    assert "of the form costs differs" in proof.disagreement(Wrong("attention_backward", shifted))  # type: ignore[arg-type]
