"""Forms of the scores that compiled kernels know: encodings in evaluation, against the reference in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from test_native import Wrong, needs_kernels
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, WIDTH, draw, make

from poscli.attention import ENGINES, Place, attend, choose
from poscli.encodings import Encoding, names
from poscli.encodings.fire import FIRE
from poscli.native import proof

UNIT = 2.0**-24
EVALUATION = Place(gradient=False)
SPECS = [name for name in names() if make(name).has_kernel_form]
OPTIONS = [
    "cope(max_pos=3)", "stick-breaking(current=false)", "dape(base=t5)", "urpe(base=none)", "fire(hidden=300)",
    "cope(max_pos=5)+window(150)", "stick-breaking+window(9)", "grape-additive+window(150)", "fire+alibi",
    "grape-additive+alibi", "dape+window(150)", "rope+cope", "shaw+urpe(base=none)", "rerope(window=150)",
    "self-extend(window=70, group=3)", "string(shift=130)",
]  # fmt: skip
CASES = [(1, 170, 170), (2, 40, 300), (1, 9, 140)]  # texts, queries, keys: more than a tile of keys, and less
WHOLE = [  # two parts for which kernels know a form, and what else they cannot take beside one
    "urpe(base=cope)", "fire+cope", "dape(base=fire)", "cope+logn(5)", "cope+fox", "cope+sink(2)+window(5)",
    "stick-breaking+interpolated(4)", "path+alibi", "rerope+window(5)",
]  # fmt: skip


def output(engine: str, encoding: Encoding, case: tuple[int, int, int], dtype: torch.dtype, off: int = 0) -> Tensor:
    """Attention output in float64; with a seed `off`, every input is changed by a unit of rounding of float32."""
    texts, queries, keys = case

    def drawn(*shape: int, seed: int) -> Tensor:
        x = draw(*shape, seed=seed, dtype=torch.float32).double()
        return (x * (1 + UNIT * draw(*shape, seed=off + seed, dtype=torch.float64).sign()) if off else x).to(dtype)

    q, k, v = (drawn(texts, HEADS, n, HEAD_WIDTH, seed=n) for n in (queries, keys + 1, keys + 2))
    encoding = encoding.to(dtype)
    features = encoding.features(drawn(texts, keys, WIDTH, seed=5))
    k, v = k[:, :, :keys], v[:, :, :keys]  # numbers unlike those of the queries
    return attend(ENGINES[engine], encoding, q, k, v, encoding.locate(keys, torch.device("cpu")), features).double()


@needs_kernels
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spec", [*SPECS, *OPTIONS])
@torch.no_grad()
def test_a_form_equals_the_reference(spec: str, case: tuple[int, int, int]) -> None:
    exact = output("reference", make(spec), case, torch.float64)
    moved = [output("reference", make(spec), case, torch.float64, off) for off in (100, 200)]
    # Rounding of the inputs, and of sums over all keys and channels, whose roundings differ in sign.
    limit = 16 * max(float((m - exact).abs().max()) for m in moved) + UNIT * 4 * case[2] ** 0.5 * float(
        exact.abs().max()
    )
    assert float((output("native", make(spec), case, torch.float32) - exact).abs().max()) <= limit


@needs_kernels
def test_kernels_run_forms_in_evaluation_and_those_with_a_gradient_in_training() -> None:
    assert SPECS
    for spec in [*SPECS, *OPTIONS]:
        assert choose(make(spec), place=EVALUATION).name == "native", spec
        rows = make(spec).tier == "row" and not make(spec).kernel_form_has_gradient
        assert choose(make(spec)).name == ("blocks" if rows else "native"), spec


@needs_kernels
@pytest.mark.parametrize("spec", WHOLE)
@torch.no_grad()
def test_what_no_form_covers_is_computed_in_whole_rows(spec: str) -> None:
    assert choose(make(spec), place=EVALUATION).name == "blocks"


def test_a_subclass_that_changes_the_formula_loses_the_form() -> None:
    class Other(FIRE):
        def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
            return 2 * super().bias(i, j, f_i, f_j)

    class Same(FIRE):
        pass

    shape = make("fire").shape
    assert Same(shape).has_kernel_form
    assert not Other(shape).has_kernel_form


@needs_kernels
def test_queries_whose_stick_is_used_up_read_no_further_keys() -> None:
    """NaN in the values of keys that have no weight would be seen."""
    q, k, v = (torch.ones(1, HEADS, 400, HEAD_WIDTH) for _ in "qkv")
    v[:, :, :64] = torch.nan
    at = make("none").locate(400, torch.device("cpu"))
    with torch.no_grad():
        out = attend(ENGINES["native"], make("stick-breaking"), q, k, v, at)
    assert out[:, :, 368:].isfinite().all()
    assert out[:, :, 64].isnan().all()


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
