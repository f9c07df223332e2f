"""The grammar of specs, its errors, and how encodings are found by name and built."""

from __future__ import annotations

import contextlib
import sys
import types
import typing
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ENDS, make, shape

from poscli.encodings import Encoding, get, names
from poscli.equation import Option, Shape
from poscli.specs import build, check, parse
from poscli.system.errors import UsageError
from poscli.system.registry import Registry


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("rope()", "rope"),
        ("rope(500000)", "rope(base=500000.0)"),
        ("rope(base=1e-2)", "rope(base=0.01)"),
        ("rope(base=-7.5)", "rope(base=-7.5)"),  # its constructor refuses
        ("rope(base=1E+20)", "rope(base=1e+20)"),
        ("rope(base=10000)", "rope"),
        ("rope(10000, interleaved, 0.5)", "rope(layout=interleaved, fraction=0.5)"),
        ("alibi(TRUE)", "alibi(trainable=true)"),
        ("window(width=None)", "window"),
        ("window(L)", "window(width=1L)"),
        (
            "rope + window(.50L)|sink(2, )+window( width = 2.0L )",
            "rope+window(width=0.5L)|sink(count=2)+window(width=2L)",
        ),
        ("xpos(1E-7L)|xpos(1e20L)", "xpos(scale_base=1e-07L)|xpos(scale_base=1e+20L)"),
        ("  rope\t(\n base = 7 ,)+t5 | none", "rope(base=7.0)+t5|none"),
        ("t5+t5", "t5+t5"),
    ],
)
def test_canonical_forms(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)
    assert hash(parse(canonical)) == hash(parse(text))


def test_options_that_are_given_as_their_default_are_kept_on_request() -> None:
    kept = "rope(base=7.0, layout=half)|window(width=none)|t5"
    assert str(parse("rope(base=7, layout=half)|window(none)|t5", defaults=True)) == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \n", "expected the name of an encoding at its end"),
        ("alibbi", r"there is no encoding 'alibbi': did you mean alibi or alibi-2d\?"),
        ("zzz", "there is no encoding 'zzz': none of the "),
        ("Rope", "there is no encoding 'Rope': did you mean rope"),
        ("rope(bse=3)", r"rope has no option 'bse': did you mean base\?"),
        ("none(x=1)", "none has no option 'x': it takes none"),
        ("none(1)", "none takes 0 options"),
        ("window(1, 2)", "window takes 1 option;"),
        ("rope(base=1.2.3)", "rope: base must be a number, got '1.2.3'"),
        ("rope(base=inf)", "rope: base must be finite, got 'inf'"),
        ("rope(base=nan)", "rope: base must be finite, got 'nan'"),
        ("window(1.5)", "window: width must be a whole number of tokens, or of training lengths .* 0.5L, got '1.5'"),
        ("window(1.2.3L)", "window: width must be a whole number of tokens, .* such as 0.5L, got '1.2.3L'"),
        ("xpos(0.5l)", "xpos: scale_base must be a number of tokens, or of training lengths .* 0.5L, got '0.5l'"),
        ("window(0L)", r"window\(width=0L\) at L = 16: width must be at least 1, got 0"),
        ("window(-1L)", r"window\(width=-1L\) at L = 16: width must be at least 1, got -16"),
        ("window(infL)", "window: width must be finite, got 'infL'"),
        ("window(1e999L)", "window: width must be finite, got '1e999L'"),
        ("window(1e300L)", r"window\(width=1e\+300L\): width must be below 2\^63 tokens; give a smaller multiple of L"),
        ("rope+shaw(1e9L)", r"rope\+shaw\(clip=1000000000L\) needs about .* give smaller numbers"),
        ("alibi(scale=0.5L)", "alibi: scale is not a length .* cannot be '0.5L'; the lengths among its options: far"),
        (
            "string(base=L)",
            "string: base is not a length .* cannot be 'L'; the lengths among its options: shift, local",
        ),
        ("rope(base=2L)", "rope: base is not a length .* cannot be '2L'; rope has no option that is one"),
        ("t5-2d(far=0.5L)", "t5-2d: far is not a length in tokens, .* t5-2d has no option that is one"),
        ("window(9223372036854775808)", r"window: width must be below 2\^63"),
        ("shaw(clip=none)", "shaw: clip must be a whole number of tokens, or of training lengths .*, got 'none'"),
        ("rope-clip(1.5)", "rope-clip: clip must be a whole number, got '1.5'"),
        ("alibi(1)", "alibi: trainable must be true or false, got '1'"),
        ("rope(layout=halv)", "rope: layout is one of half, interleaved; got 'halv'"),
        ("rope(5, base=6)", "the option base is given twice"),
        ("rope alibi", "unexpected 'alibi'"),
        ("rope(base=5))", r"unexpected '\)'"),
        ("rope(", "expected an option at its end"),
        ("rope(base=", "expected a value for base at its end"),
        ("rope(base=)", r"expected a value for base before '\)'"),
        ("rope(base=5 6)", r"expected , or \)"),
        ("rope(,)", "expected an option before ','"),
        ("(rope)", r"expected the name of an encoding before '\('"),
        ("|rope", r"expected the name of an encoding before '\|'"),
        ("rope++alibi", r"expected the name of an encoding before '\+'"),
        ("rope(base='5')", "cannot read \"'5'\\)\""),
        ("rope(base=1)", "base must be above 1, got 1"),
        ("rope+none|alibi+window(-3)", "width must be at least 1, got -3"),
        ("sinusoidal|none", "sinusoidal acts on the embedding, before any layer, so it cannot alternate by layer"),
        ("rope+learned|none", "learned acts on the embedding"),
        ("toys:Disentangled+toys:Tripled", "state different scales of q . k; keep one"),
        ("toys:Gated+toys:Gated", "toys:Gated and toys:Gated both define what replaces the softmax"),
        ("path+rope", "path replaces q . k and rope turns q and k"),
        ("randomized+interpolated(2)", "both define the positions"),
        ("toys:Bilinear+rope+toys:Bilinear", "both define what replaces q . k"),
        ("rope|none|alibi", "alternates 3 encodings, and the model has 2 layers"),
    ],
)
def test_errors_of_specs(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["toys"], "Tripled", type("Tripled", (Encoding,), {"scale": 3.0}), raising=False)
    with pytest.raises(UsageError, match=message):
        check(text, shape())


# every spec that can be written


def _values_of(option: Option) -> st.SearchStrategy[tuple[str, object]]:
    """Texts of an option, each with its value; for a length in units of L, with its canonical text."""
    if not option.is_length:
        return _values(option.kind)
    multiples = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: (f"{x!r}L", f"{x}L".replace(".0L", "L")))
    return st.one_of(_values(option.kind), multiples, st.just(("L", "1L")))


def _values(kind: object) -> st.SearchStrategy[tuple[str, object]]:
    """Texts of an option, each with its value."""
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from([(choice, choice) for choice in typing.get_args(kind)])
    if isinstance(kind, types.UnionType):
        of, none = (k for k in typing.get_args(kind))
        assert none is type(None)
        return st.one_of(_values(of), st.sampled_from([("none", None), ("None", None)]))
    if kind is str:  # the name of another encoding
        return st.sampled_from([("rope", "rope"), ("none", "none"), ("alibi", "alibi")])
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return {
        bool: st.sampled_from([("true", True), ("True", True), ("false", False), ("FALSE", False)]),
        int: st.integers(-(10**9), 10**9).map(lambda n: (str(n), n)),
        float: st.one_of(floats.map(lambda x: (repr(x), x)), st.integers(0, 10**6).map(lambda n: (str(n), float(n)))),
    }[kind]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value) if isinstance(value, float) else str(value).lower()


@st.composite
def leaves(draw: st.DrawFn) -> tuple[str, str]:
    """A leaf as a user may write it, and its canonical form."""
    name, space = draw(st.sampled_from(names())), draw(st.sampled_from(["", " ", "\t "]))
    options = get(name).options()
    keys, values = list(options), [draw(_values_of(option)) for option in options.values()]
    positional = draw(st.integers(0, len(keys)))
    by_name = draw(st.permutations(range(positional, len(keys))))[: draw(st.integers(0, len(keys)))]
    texts = [values[n][0] for n in range(positional)]
    texts += [f"{keys[n]}{space}={space}{values[n][0]}" for n in by_name]
    kept = [
        f"{keys[n]}={_shown(values[n][1])}"
        for n in sorted([*range(positional), *by_name])
        if values[n][1] != options[keys[n]].default
    ]
    brackets = f"{space}({space}{f',{space}'.join(texts)}{space})" if texts or draw(st.booleans()) else ""
    return name + brackets + space, name + (f"({', '.join(kept)})" if kept else "")


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.lists(leaves(), min_size=1, max_size=3), min_size=1, max_size=3), st.sampled_from(["", " ", "\n"]))
def test_round_trip(layers: list[list[tuple[str, str]]], space: str) -> None:
    written = f"{space}|{space}".join(f"{space}+{space}".join(text for text, _ in leaves) for leaves in layers)
    canonical = "|".join("+".join(form for _, form in leaves) for leaves in layers)
    assert str(parse(written)) == canonical
    assert parse(canonical) == parse(written)


@settings(deadline=None)
@given(st.text(alphabet="ropealibit5(),=|+ 0.1e-_:$L\n", max_size=20))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        spec = parse(text)
        assert parse(str(spec)) == spec


# build


def test_layers_alternate_and_share_what_their_classes_share() -> None:
    built = build(parse("rope|none|alibi"), shape(layers=7), seed=0)
    assert [layer.name for layer in built] == ["rope", "none", "alibi", "rope", "none", "alibi", "rope"]
    a, b, c, d = build(parse("rope+t5|t5+shaw"), shape(layers=4), seed=0)
    assert a.parts[1] is b.parts[0] is c.parts[1] is d.parts[0]
    assert a.parts[0] is not c.parts[0]  # rope is not shared
    assert b.parts[1] is not d.parts[1]
    other, plain = build(parse("t5(buckets=8)|t5"), shape(layers=2), seed=0)
    assert other is not plain
    twice = build(parse("t5+t5"), shape(layers=1), seed=0)[0]
    assert twice.parts[0] is twice.parts[1]


def test_a_scale_other_than_the_usual_wins() -> None:
    for spec in ("rope+toys:Disentangled", "toys:Disentangled+rope+t5"):
        assert make(spec).scale == pytest.approx(make("rope+alibi").scale / 3**0.5)


@pytest.mark.parametrize("spec", [*names(), "fire+shaw|t5", "learned+fire"])
def test_weights_come_from_the_seed_alone(spec: str) -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        return [p for layer in build(parse(spec), shape(), seed) for p in layer.parameters()]

    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = weights(5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    assert all(torch.equal(a, b) for a, b in zip(first, weights(5), strict=True))
    if "learned" in spec or "fire" in spec:  # those that draw
        assert not all(torch.equal(a, b) for a, b in zip(first, weights(6), strict=True))


def test_building_an_encoding_leaves_the_generators_of_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    build(parse("learned"), shape(), 5)
    assert seeds == []
    torch.manual_seed(5)
    assert seeds == [5]


@pytest.mark.parametrize("name", sorted(name for name in ENDS if get(name).axes == 1))
def test_an_encoding_without_positions_for_a_training_window_is_refused(name: str) -> None:
    """Whichever of its blanks lacks them: learned has none for embeddings, tupe none for queries."""
    message = rf"{name}\+randomized cannot be trained on windows of 16 tokens: {name} has 16"
    with pytest.raises(UsageError, match=message):
        check(f"{name}+randomized", shape())
    assert str(check(name, shape())) == name


def test_windows_that_fit_no_memory_are_no_reason_to_refuse_an_encoding() -> None:
    """To tell whether it has positions for them takes no tensor of such a window, here of 512 GiB."""
    assert str(check("yarn", Shape(width=2**17, heads=32, layers=2, length=2**20, vocab=50))) == "yarn"


# from outside

OUTSIDE = """
from typing import Literal, Optional, Union
from torch import Tensor
from poscli.encodings import Encoding, Shape

class Slope(Encoding):
    def __init__(self, shape: Shape, *, gain: float = 2.0, kind: Literal["a", "b"] = "a"):
        super().__init__(shape)
        if gain <= 0:
            raise ValueError(f"gain must be above 0, got {gain:g}")
        self.gain = gain

    def distance_bias(self, d: Tensor) -> Tensor:
        return -self.gain * d[None]

class Older(Encoding):
    def __init__(self, shape: Shape, *, width: Optional[int] = None, either: Union[int, None] = 3):
        super().__init__(shape)

def helper(): ...
class Plain: ...
"""


@pytest.fixture
def outside(here: Path) -> str:
    """The name of a module in the current folder, which is not on sys.path."""
    name = "encodings_of_somebody"
    (here / f"{name}.py").write_text(OUTSIDE)
    (here / f"{name}_broken.py").write_text("import there_is_no_such_module\n")
    (here / f"{name}_unreadable.py").write_text("def f(:\n")
    return name


def test_an_encoding_from_outside(outside: str) -> None:
    spec = parse(f"{outside}:Slope(3)+window(4) | rope")
    assert str(spec) == f"{outside}:Slope(gain=3.0)+window(width=4)|rope"
    first, second = build(spec, shape(), seed=0)
    slope = first.parts[0]
    assert (slope.name, slope.paper, slope.family) == (f"{outside}:Slope", "", "external")
    assert first.distance_bias(torch.arange(5)).tolist() == [[0, -3, -6, -9, -12]]
    assert (first.reach, second.name) == (4, "rope")
    assert f"{outside}:Slope" not in names()
    # `Optional[int]` is read like `int | None`.
    assert str(parse(f"{outside}:Older(width=5, either=none)")) == f"{outside}:Older(width=5, either=none)"
    # Naming a registered class by its path does not rename it; errors and reports still call it `rope`.
    assert get("poscli.encodings.rope:RoPE") is get("rope")
    assert get("rope").name == "rope"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{0}:Slope(gian=3)", r"Slope has no option 'gian': did you mean gain\?"),
        ("{0}:Slope(kind=c)", "kind is one of a, b; got 'c'"),
        ("{0}:Slope(gain=0)", "gain must be above 0, got 0"),
        ("{0}:Missing", "cannot load the encoding '{0}:Missing': .*has no attribute 'Missing'"),
        ("{0}:helper", "'{0}:helper' is no encoding: it must be a subclass"),
        ("{0}:Plain", "'{0}:Plain' is no encoding: it must be a subclass"),
        ("{0}_absent:Slope", "cannot load the encoding '{0}_absent:Slope': No module named '{0}_absent'"),
        ("{0}_broken:Slope", "cannot load the encoding .*: No module named 'there_is_no_such_module'"),
        ("{0}_unreadable:Slope", "cannot load the encoding .*: invalid syntax"),
        ("{0}:", "cannot load the encoding '{0}:'"),
    ],
)
def test_errors_from_outside(text: str, message: str, outside: str) -> None:
    with pytest.raises(UsageError, match=message.format(outside)):
        check(text.format(outside), shape())


def test_a_missing_package_is_named_with_its_extra() -> None:
    registry: Registry[type[Encoding]] = Registry("encoding", "poscli.encodings", lambda thing: thing is Encoding)
    registry.add("needy", Encoding, ("no_such_module", "extra"))
    registry.add("fine", Encoding, ("torch", "extra"))
    assert registry.missing("needy") == "needs no_such_module: pip install 'poscli[extra]'"
    assert registry.missing("fine") == ""
    with pytest.raises(UsageError, match=r"needy needs no_such_module: pip install 'poscli\[extra\]'"):
        registry.get("needy")
