"""Encodings as tables: what each class says of itself, the bounds of its options, and models of other shapes."""

from __future__ import annotations

import contextlib
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from measured import digest, numbers, wave
from torch import Tensor
from toys import HEAD_WIDTH, perturbed, shape

from poscli.encodings import Encoding, Shape, Unsupported, get, missing, names
from poscli.equation.blanks import BLANKS
from poscli.equation.reference import operands, reference
from poscli.specs import build, check, parse
from poscli.specs.build import encoding_parameters
from poscli.system.errors import UsageError

CPU = torch.device("cpu")
OPTIONS = {  # beside the default
    "adarope": ["scaling=false", "base=50, layout=interleaved, fraction=0.5"],
    "alibi": ["trainable=true, most=6", "scale=0.25", "before_scale=true, scale=2, most=4"],
    "alibi-2d": ["distance=manhattan, trainable=true"],
    "bam": ["beta=1", "beta=0.5, mu=true"],
    "cable": ["start=-2"],
    "clipped": ["clip=1", "clip=5"],
    "convolution": ["width=1", "width=4"],
    "cope": ["max_pos=2", "max_pos=5"],
    "cpb": ["log=false, hidden=5"],
    "dape": ["base=alibi, hidden=3", "base=fire", "base=fox"],
    "deberta": ["span=6", "span=100, buckets=8", "span=9, buckets=12"],
    "dual-chunk": ["chunk=5", "chunk=6, local=3, layout=interleaved", "chunk=12, local=0, fraction=0.5, base=50"],
    "exponential": ["terms=3"],
    "finite-span": ["span=5, rank=3", "span=4, alpha=0.5, floor=6"],
    "fire": ["hidden=3, threshold=0.5", "threshold=2"],
    "floater": ["hidden=0, step=3", "hidden=5, dt=0.1"],
    "fope": ["sigma=0", "sigma=0.5, base=50, layout=interleaved", "learned=true, base=20"],
    "fourier": ["terms=1", "terms=3"],
    "fox": ["start=0"],
    "gaussian": ["terms=2"],
    "grape": ["planes=false, base=50", "frequencies=false"],
    "grape-additive": ["probe=4"],
    "hierarchical": ["alpha=0.7"],
    "interpolated": ["factor=2.5"],
    "jet-long": ["near=0", "near=5, base=50, layout=interleaved"],
    "learned": ["beyond=interpolate", "beyond=hierarchical", "beyond=random"],
    "learned-2d": ["beyond=interpolate"],
    "lerope": ["per=layer", "per=head, base=50, layout=interleaved"],
    "llama3": ["factor=4, low=0.5, high=3, base=50", "original=10, base=20, layout=interleaved, fraction=0.5"],
    "logn": ["length=4"],
    "longrope": [
        "factor=4, start=ntk, keep_first=2, base=50",
        "start=pi, attention=1.5, original=10",
        "search=20, factor=2, keep_first=3, fraction=0.5, layout=interleaved",
    ],
    "mobius": ["share=0.5, length=5", "share=1, base=50, layout=interleaved, fraction=0.5"],
    "p-rope": ["p=0.5, factor=2", "p=0", "p=1, base=50, fraction=0.5"],
    "path": ["rank=2"],
    "polynomial": ["degree=1", "degree=4"],
    "pope": ["base=50, start=uniform"],
    "query-bias": ["clip=3"],
    "random-floats": ["span=1", "span=40"],
    "randomized": ["max=20"],
    "randomized-yarn": ["max=20, curriculum=false, base=50", "factor=4, ramp=turns, beta_fast=2, beta_slow=0.1"],
    "rerope": ["window=4", "window=1, base=50, layout=interleaved, fraction=0.5"],
    "rope": ["base=50", "layout=interleaved, fraction=0.5", "fraction=0.25"],
    "rope-2d": ["base=10, layout=interleaved", "mixed=true"],
    "rope-clip": ["clip=0", "clip=2, base=50", "clip=4, layout=interleaved", "base=20, fraction=0.5", "base=20"],
    "rope-dropped": ["recalibrate=0.5, base=50"],
    "rope-dynamic": ["factor=4, base=50", "factor=1, original=10"],
    "rope-id": ["fast=2, c=0", "p=0.3, fast=2.5, turns=1, length=5, layout=interleaved"],
    "rope-linear": ["factor=4", "original=10, layout=interleaved, base=50"],
    "rope-ntk": ["factor=4", "original=10, fraction=0.25"],
    "sandwich": ["width=6, base=50"],
    "repo": ["rank=2, base=50"],
    "selective-rope": ["rank=2, tokens=2, base=50, bias=true"],
    "self-extend": ["window=4", "window=5, group=3, base=50", "group=1", "window=20, group=2, layout=interleaved"],
    "shaw": ["clip=3, values=false", "clip=1"],
    "sink": ["count=2"],
    "sink-logit": ["start=2"],
    "sinusoidal": ["base=50", "combine=multiply", "combine=concat, base=20"],
    "sinusoidal-2d": ["base=50"],
    "smear": ["tokens=2"],
    "stick-breaking": ["current=false"],
    "string": ["shift=4", "shift=7, local=3, base=50", "shift=6, local=0, layout=interleaved"],
    "swin-2d": ["window=2", "window=6"],
    "t5": ["buckets=6, far=11", "buckets=2, far=2", "buckets=7, far=50"],
    "t5-2d": ["buckets=4, far=3", "buckets=6, far=20"],
    "tapa": ["alpha=0.5, amplitude=0.25"],
    "temper": ["c=0.9, length=5", "c=0, search=4"],
    "transformer-xl": ["clamp=4"],
    "tupe": ["table=sinusoidal", "bias=false"],
    "urpe": ["base=t5", "base=none"],
    "wavelet": ["scales=2, first=1", "scales=4"],
    "wall": ["start=0"],
    "window": ["width=3"],
    "xlnet": ["clamp=3"],
    "xpos": ["scale_base=8, base=50", "layout=interleaved, fraction=0.5"],
    "yarn": [
        "factor=4, base=50",
        "ramp=turns, beta_fast=2, beta_slow=0.1",
        "beta_fast=1.5, beta_slow=0.2, truncate=false, base=50, attention=1.5",
        "original=10, factor=2, beta_fast=1.5, beta_slow=0.5, base=20, layout=interleaved",
    ],
}
JOINED = {
    "interpolated": "+rope",
    "random-floats": "+rope",
    "randomized": "+alibi",
    "sink": "+window(5)",
}  # that it has an effect
FAMILIES = {
    family: [n for n in names() if get(n).family == family] for family in sorted({get(n).family for n in names()})
}


def specs_of(name: str) -> list[str]:
    """The specs of one encoding: with its defaults, and with other options."""
    beside = ["dape+logn(length=4)", "dape(base=alibi)+ssmax"] if name == "dape" else []
    return [name + JOINED.get(name, ""), *beside] + [
        f"{name}({given}){JOINED.get(name, '')}" for given in OPTIONS.get(name, [])
    ]


def of_family(family: str) -> list[str]:
    """The encodings of a family whose packages are installed."""
    return [name for name in FAMILIES[family] if not missing(name)]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_encodings_are(family: str, snapshot: Callable[..., None]) -> None:
    """What each class says of itself, the parameters and buffers of its instances, and their initial values."""
    snapshot("\n".join(line for name in of_family(family) for line in described(name)) + "\n", rounded=True)


def described(name: str) -> Iterator[str]:
    """Lines on the class of an encoding and on the weights of all its specs, each line once."""
    cls, seen = get(name), set[str]()
    yield f"== {name}: {cls.paper}{''.join(f'; {fact}' for fact in cls.facts)}"
    yield f"options: {', '.join(f'{key}={option.default}' for key, option in cls.options().items()) or 'none'}"
    for spec in specs_of(name):
        yield spec
        encoding = built(spec)
        weights = (
            f"  {what} {list(x.shape)} = {digest(x)} {numbers(x.flatten()[:2])}" for what, x in state_of(encoding)
        )
        for line in (f"  {properties(encoding)}", *weights):
            if line not in seen:
                yield line
        seen |= {f"  {properties(encoding)}"}


def properties(encoding: Encoding) -> str:
    """The blanks that an encoding fills, and those of its properties that few have."""
    rare = {
        "features": encoding.feature_width, "on a grid, axes": encoding.axes - 1 and 2, "losses": encoding.evaluations,
        "reach": encoding.reach, "sinks": encoding.sinks, "in float16 up to": encoding.longest(torch.float16),
        "after": ",".join(encoding.after), "scale": round(1 / encoding.scale**2 - HEAD_WIDTH),
    }  # fmt: skip
    filled = [blank for blank in BLANKS if blank in encoding.blanks]
    flags = [flag for flag in FLAGS if getattr(encoding, flag)]
    return " ".join([encoding.tier, *filled, *flags, *(f"{what} {value}" for what, value in rare.items() if value)])


FLAGS = (
    "shared", "relative", "rescales", "keys_are_steady", "wraps", "inert_alone", "has_kernel_form",
    "kernel_form_has_gradient",
)  # fmt: skip


def state_of(encoding: Encoding) -> Iterator[tuple[str, Tensor]]:
    """Parameters, with a sign whether they are trained, and buffers."""
    for name, parameter in encoding.named_parameters():
        yield name + ("" if parameter.requires_grad else " (not trained)"), parameter.detach()
    for name, buffer in encoding.named_buffers():
        yield f"{name} (buffer)", buffer


def built(spec: str, at: Shape | None = None) -> Encoding:
    """The encoding of the first layer with its initial weights."""
    return build(parse(spec), at or shape(), seed=1)[0]


def moved(spec: str, at: Shape | None = None) -> Encoding:
    """The encoding of the first layer in float64, its weights moved away from where they start."""
    return perturbed(built(spec, at)).requires_grad_(False).double()


TRIED: dict[Any, list[str]] = {  # values of options by their type
    int: ["-1", "0", "1", "2", "3", "4", "5", "15", "16", "17", "24", "25"],
    float: ["-1", "0", "0.1", "0.5", "0.9", "1", "1.5", "4"],
    bool: ["true", "false", "1"],
    str: ["rope", "t5", "fire", "cope", "alibi-2d", "dape", "zzz"],
}
TOGETHER = [  # options whose bounds depend on each other
    "deberta(span=4, buckets=4)", "deberta(span=3, buckets=4)", "dual-chunk(chunk=12, local=4)",
    "dual-chunk(chunk=12, local=5)", "llama3(low=2, high=2)", "llama3(low=2, high=2.5)",
    "longrope(factor=1, original=2, attention=0.1)", "self-extend(window=16, group=2)", "self-extend(window=15)",
    "string(shift=3, local=3)", "string(shift=3, local=4)", "t5(buckets=4, far=3)", "t5(buckets=4, far=2)",
    "t5-2d(buckets=6, far=4)", "t5-2d(buckets=6, far=3)", "yarn(beta_slow=2, beta_fast=2)",
    "yarn(beta_slow=2, beta_fast=2.5)", "rope(fraction=0.25, base=1.1)", "rope-clip(fraction=0.5, clip=2)",
    "rope-clip(fraction=0.5, clip=3)", "rope-2d(layout=interleaved, mixed=true, base=1.1)",
]  # fmt: skip


def test_bounds_of_options(snapshot: Callable[..., None]) -> None:
    """Which values of every option are allowed by itself, and how the others are refused, at a length of 16."""
    found = ((name, line) for name in names() if not missing(name) for line in bounds(name))
    lines = [*grouped(found), *(f"{spec}: {refusal(spec) or 'allowed'}" for spec in TOGETHER)]
    snapshot("\n".join(lines) + "\n")


def bounds(name: str) -> Iterator[str]:
    """One line for every answer that values of an option get."""
    for key, option in get(name).options().items():
        kinds = typing.get_args(option.kind) if isinstance(option.kind, types.UnionType) else [option.kind]
        is_choice, answers = typing.get_origin(option.kind) is typing.Literal, dict[str, list[str]]()
        for value in [*typing.get_args(option.kind), "x"] if is_choice else TRIED[kinds[0]]:
            said = refusal(f"{name}({key}={value}){JOINED.get(name, '')}")
            head, got, rest = said.partition("got ")
            said = head + got + re.sub(rf"(?<![\d.-]){re.escape(value)}(?![\d.])", "@", rest)
            answers.setdefault(said or "allowed", []).append(value)
        yield from (f"{key}={','.join(values)}: {answer}" for answer, values in answers.items())


def grouped(found: Iterable[tuple[str, str]]) -> list[str]:
    """Every text once, with all the names that it was found for."""
    names_of: dict[str, list[str]] = {}
    for name, text in found:
        names_of.setdefault(text, []).append(name)
    few = {
        text: owners if len(owners) < 5 else [*owners[:3], f"... {owners[-1]} ({len(owners)})"]
        for text, owners in names_of.items()
    }
    return [f"{', '.join(owners)}: {text}" for text, owners in few.items()]


def refusal(spec: str, at: Shape | None = None, **options: Any) -> str:
    """Why a spec cannot be trained, without its own name; "" if it can."""
    try:
        check(spec, at or shape(), **options)
    except UsageError as error:
        return re.sub(r"^[\w-]+(\([^)]*\))?: ", "", str(error))
    return ""


SHAPES = (
    Shape(width=16, heads=4, layers=1, length=16),
    Shape(width=6, heads=3, layers=2, length=9),
    Shape(width=48, heads=6, layers=3, length=7, vocab=11),
    Shape(width=8, heads=1, layers=7, length=1),
    Shape(width=9, heads=3, layers=4, length=12),
)


OF_TIED = ("dape(base=t5)", "urpe(base=transformer-xl)", "transformer-xl+xlnet", "deberta+t5")


def test_models_of_other_shapes(snapshot: Callable[..., None]) -> None:
    """At each shape the number of parameters, of which layers may share some, and what attention gives, or why not."""
    specs = [name for name in [*names(), *OF_TIED] if not missing(name)]
    lines = grouped((spec, "; ".join(at_shape(spec, at) for at in SHAPES[:-1])) for spec in specs)
    refused = ((spec, f"at {at}: {why}") for spec in specs for at in SHAPES if (why := refusal(spec, at)))
    alternating = grouped((spec, " ".join(parameters(spec))) for spec in specs)
    snapshot("\n".join([*lines, *grouped(refused), "five layers:", *alternating]) + "\n", rounded=True)


def parameters(spec: str) -> Iterator[str]:
    """The parameters of five layers, alone and beside others."""
    for text in (spec, f"none|{spec}+none", f"{spec}+none|alibi|t5"):
        with contextlib.suppress(UsageError):
            yield str(encoding_parameters(parse(text), shape(layers=5)))


def at_shape(spec: str, at: Shape) -> str:
    """The parameters of all layers, and one number on the attention of the first one, within L and beyond."""
    if refusal(spec, at):
        return "-"
    encoding, found = moved(spec, at), [str(encoding_parameters(parse(spec), at))]
    for count in (at.length, at.length + 3):
        with contextlib.suppress(Unsupported):
            found.append(digest(attention(encoding, count, count)))
    return " ".join(found)


def attention(encoding: Encoding, queries: int, keys: int) -> Tensor:
    """The output of attention for waves; an embedding is used as queries, keys and values."""
    at, (heads, width) = encoding.locate(keys, CPU), (encoding.shape.heads, encoding.shape.head_width)
    if "embed" in encoding.blanks:
        ids = torch.arange(keys)[None] % encoding.shape.vocab
        x = encoding.embed(wave(1, keys, heads * width), at.pos, ids).unflatten(2, (heads, width)).transpose(1, 2)
        return reference(encoding, operands(encoding, x, x, x, at))
    f = encoding.features(wave(1, keys, heads * width, start=3))
    q, k, v = (wave(1, heads, t, width, start=n) for n, t in enumerate((queries, keys, keys)))
    x = operands(encoding, q, k, v, at, f)
    return encoding.output(reference(encoding, x), x.pos_T)
