"""The size of a run, known before anything is allocated: parameters exactly, memory within a factor of three."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from cli_runner import NANO, assert_refused, in_own_process
from torch import nn
from toys import COMPOSITES, first, make

from poscli.config import size
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import PRESETS, ModelConfig, RunConfig
from poscli.config.size import (
    Needs,
    activation_bytes,
    encoding_share,
    evaluation_bytes,
    parameter_count,
    training_bytes,
)
from poscli.encodings import Encoding, Shape, names
from poscli.encodings.registry import missing
from poscli.model.initialise import build_model, fresh_model
from poscli.specs import parse
from poscli.specs.build import abstract, encoding_parameters
from poscli.system import memory
from poscli.system.errors import UsageError
from poscli.system.memory import Peak
from poscli.training.optimizer import Optimizer

CPU = torch.device("cpu")


class Counting(Encoding):
    """A bias per head that its constructor can only make with numbers at hand."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.table = nn.Parameter(torch.tensor(torch.arange(shape.heads).float().tolist()))


SMALL = ModelConfig(layers=5, width=48, heads=3, mlp=40)
LENGTH = 32
pytestmark = pytest.mark.usefixtures("here")  # every command runs in a folder of its own


@pytest.mark.parametrize("spec", [*names(), *COMPOSITES, "rope|none", "deberta|tupe|urpe", "t5|t5(far=64)|none"])
def test_parameters_are_counted_exactly_without_building_the_model(spec: str) -> None:
    if missing(spec):
        pytest.skip(missing(spec))
    built = build_model(SMALL, spec, vocab=257, length=LENGTH, seed=0)
    assert parameter_count(SMALL, spec, LENGTH) == built.size


def test_every_encoding_can_be_built_without_numbers() -> None:
    """An encoding that cannot is built with numbers, which takes the memory that is to be measured."""
    for name in names():
        if not missing(name):
            for encoding in abstract(parse(name), SMALL.shape(LENGTH)):
                assert all(tensor.is_meta for tensor in (*encoding.parameters(), *encoding.buffers())), name


def test_an_encoding_that_needs_numbers_is_built_with_them() -> None:
    (layer,) = abstract(parse("test_size:Counting"), replace(SMALL.shape(LENGTH), layers=1))
    assert not layer.table.is_meta
    assert encoding_parameters(parse("test_size:Counting"), SMALL.shape(LENGTH)) == 5 * 3


@pytest.mark.parametrize("number", [10**9, 10**12, 2**63 - 1, 2**63])
def test_options_beyond_any_memory_are_refused(number: int, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _: 16 * 2.0**30)
    for option in ("fourier(terms", "clipped(clip", "gaussian(terms", "cpb(hidden", "path(rank"):
        with pytest.raises(
            UsageError, match=r"lower (its options|an option of)|give smaller numbers|must be below 2\^63"
        ):
            resolve(TrainRequest(preset="nano"), f"{option}={number})", 0, CPU)


def test_an_allocation_that_the_system_refuses_is_the_spec_s_fault(monkeypatch) -> None:
    """Not every system refuses one that is too large."""

    def refused(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "randperm", refused)
    with pytest.raises(UsageError, match=r"^randomized\(max=10000000000000\) has tensors larger than any memory"):
        resolve(TrainRequest(preset="nano", length=LENGTH), "randomized(max=10000000000000)", 0, CPU)


@pytest.mark.parametrize(
    ("options", "blamed"),
    [
        (("--width", 2**16), "--width"),
        (("--batch", 10**6, "--tokens", 10**12), "--batch"),
        (("--length", 2**20, "--batch", 1, "--tokens", 10**12, "--width", 1024), "--length"),
        (("--layers", 1000, "--width", 4096), "--layers"),
        (("--mlp", 2**20, "--layers", 8), "--mlp"),
        (("--enc", "clipped(clip=10000000000)"), "an option of clipped(clip=10000000000)"),
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_the_option_to_lower(options, blamed, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _: 16 * 2.0**30)  # the message says it, and it changes
    assert_refused(
        ("train", "--enc", "none", *NANO, *options), 2, ("needs about", "16.0 GiB are free", f"; lower {blamed}")
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_fits_16_gib_with_every_encoding(preset: str, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _: 16 * 2.0**30)
    for name in names():
        if not missing(name):
            config = RunConfig(encoding=name, model=PRESETS[preset], length=512, batch=4)
            size.refuse_unaffordable_training(config, CPU)
            assert encoding_share(config, 257) < 0.5


def peak_of(encoding: str, length: int, batch: int, model: dict[str, int], training: bool) -> float:
    """The peak memory of a step of training, or of a forward pass, in MiB."""
    config = config_of(encoding, length, batch, model, training)
    work_on(config, 1, 32, training)  # loads what torch loads once
    with Peak(CPU) as peak:
        work_on(config, batch, length, training)
    return peak.mb


def config_of(encoding: str, length: int, batch: int, model: dict[str, int], training: bool) -> RunConfig:
    request = TrainRequest(preset="nano", length=length if training else 256, batch=batch, model=model)
    return resolve(request, encoding, 0, CPU)


def work_on(config: RunConfig, batch: int, length: int, training: bool) -> None:
    model, tokens = fresh_model(config, 257, CPU), torch.zeros(batch, length, dtype=torch.long)
    if not training:
        with torch.inference_mode():
            model.eval()(tokens).float().logsumexp(-1)
        return
    optimizer = Optimizer(model, config.recipe, 10)
    model.loss(tokens, tokens).backward()
    optimizer.clip()
    optimizer.step(0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak memory of a piece of work")
@pytest.mark.parametrize(
    ("encoding", "length", "batch", "model", "training"),
    first(
        1,
        [
            ("none", 64, 64, {"mlp": 512}, True),
            ("none", 1024, 8, {}, True),
            ("kerple-log", 2048, 2, {}, True),  # a shorter text may need a fifth of the estimate
            ("cope", 512, 4, {}, True),
            ("none", 16, 1, {"width": 512}, True),
            ("shaw", 512, 4, {}, True),
            ("fire", 1024, 2, {}, True),
            *((encoding, 16384, 1, {}, False) for encoding in ("alibi", "cope", "none")),
            ("t5", 8192, 1, {}, False),
        ],
    ),
)
def test_memory_is_right_within_a_factor_of_three(encoding, length, batch, model, training) -> None:
    config = config_of(encoding, length, batch, model, training)
    needed = training_bytes(config, CPU) if training else evaluation_bytes(config, CPU, batch=1, length=length)
    peak = in_own_process(peak_of, encoding, length, batch, model, training)
    assert peak / 2 < needed / 2**20 < 3 * peak


@pytest.mark.parametrize("measure", [training_bytes, partial(evaluation_bytes, batch=2, length=LENGTH)])
def test_an_encoding_of_layers_that_a_model_does_not_have_needs_no_memory(measure: Callable[..., float]) -> None:
    first_alone = ModelConfig(layers=1, width=48, heads=3, mlp=40)
    configs = [RunConfig(encoding=spec, model=first_alone, length=512) for spec in ("none", "none|dape+toys:Capped")]
    assert measure(configs[0], CPU) == measure(configs[1], CPU)


# The formula, by hand: 4 bytes per number

NANO_RUN = RunConfig(encoding="none", model=PRESETS["nano"], length=8, batch=1)
NANO_PARAMETERS = 2 * (4 * 64 * 64 + 3 * 64 * 192 + 2 * 64) + (2 * 257 + 1) * 64  # layers; embedding, norm and head


@pytest.mark.parametrize(
    ("needs", "length", "training", "memory", "expected"),
    [
        (Needs(block=6), 100, True, 0, 4 * 2 * 100 * 100 * 6),
        (Needs(block=6), 2000, True, 0, 4 * 2 * 1024 * 2000 * 6),  # the queries of a block
        (Needs(block=6), 100, True, 50, 4 * 2 * 100 * 150 * 6),
        (Needs(block=6), 100, False, 0, 0),  # only the backward pass has blocks
        (Needs(kept_once=3), 100, True, 0, 4 * 2 * 100 * 100 * 3 * 3),  # by every layer, once for all texts
        (Needs(kept_once=3), 100, False, 0, 0),
        (Needs(buffer=7), 100, False, 0, 7),
        (Needs(buffer=1e30), 100, False, 0, 16 * 4 * 2 * 100 * 100 * 6),  # a short text does not fill it
    ],
)
def test_what_attention_needs_is_added_to_the_activations(needs, length, training, memory, expected) -> None:
    shape = ModelConfig(layers=3, width=16, heads=2, mlp=40)
    sizes = {"batch": 6, "length": length, "training": training, "memory": memory}
    without = activation_bytes(shape, 258, Needs(), **sizes)
    assert activation_bytes(shape, 258, needs, **sizes) - without == expected


def test_what_engines_need_for_the_blanks_of_encodings(snapshot) -> None:
    """In the order of the fields of `Needs`, with heads of 8 channels; `fixed` has no gradient."""
    lines: dict[str, list[str]] = {}
    for engine, spec, learned in itertools.product(("reference", "native", "blocks", "sdpa"), KINDS, (True, False)):
        found = size.needs(engine, make(spec).blanks, 8, learned)
        text = f"{engine}: " + " ".join(f"{getattr(found, each.name):g}" for each in fields(Needs))
        lines.setdefault(text, []).append(spec if learned else f"{spec} fixed")
    layers = [("sdpa", make("t5")), ("blocks", make("cope"))]
    both, fixed = (size.largest_needs(each, 8) for each in (layers, [("sdpa", make("alibi"))]))
    snapshot("".join(f"{text} | {', '.join(specs)}\n" for text, specs in lines.items()) + f"{both}\n{fixed}\n")


KINDS = (
    "none",
    "t5",
    "fire",
    "fox",
    "grape-additive",
    "shaw(values=false)",
    "shaw",
    "cope",
    "shaw+cope+t5",
    "fire+fox",
)


def test_a_step_takes_four_numbers_per_weight_and_the_activations_or_three_more_numbers() -> None:
    assert parameter_count(NANO_RUN.model, "none", 8) == NANO_PARAMETERS
    assert training_bytes(NANO_RUN, CPU) == (4 + 3) * 4 * NANO_PARAMETERS
    many = NANO_RUN.model_copy(update={"batch": 64})
    activations = 4 * 64 * 8 * ((24 * 64 + 6 * 192) * 2 + 257 * 4)
    assert training_bytes(many, CPU) == 4 * 4 * NANO_PARAMETERS + activations
    for asked, counted in ((20, 20), (65, 64), (1000, 64)):  # at most 8 segments of 8 tokens
        longer = many.model_copy(update={"model": many.model.model_copy(update={"memory": asked})})
        assert training_bytes(longer, CPU) - training_bytes(many, CPU) == 4 * 64 * counted * 64 * 2


def test_an_evaluation_takes_the_weights_and_the_activations_of_one_layer() -> None:
    activations = 4 * 2 * 16 * (8 * 64 + 3 * 192 + 257 * 2)
    assert evaluation_bytes(NANO_RUN, CPU, batch=2, length=16) == 4 * NANO_PARAMETERS + activations
    vocab, at_once = 2**21, 2**25 // 32  # logits are computed in slices, unless a memory is read segment by segment
    weights = 4 * (NANO_PARAMETERS + 2 * (vocab - 257) * 64)
    remembering = NANO_RUN.model_copy(update={"model": NANO_RUN.model.model_copy(update={"memory": 1})})
    for config, logits in ((NANO_RUN, at_once), (remembering, vocab)):
        found = evaluation_bytes(config, CPU, batch=2, length=16, vocab=vocab)
        assert found == weights + activations + 4 * 2 * 16 * 2 * (logits - 257)


def test_a_run_is_refused_at_eight_times_what_one_piece_of_work_may_take(monkeypatch) -> None:
    """That is nine tenths of the free memory. The weights alone must fit without any doubt."""
    many = NANO_RUN.model_copy(update={"batch": 1024})
    for config, bytes_needed in ((many, training_bytes(many, CPU) / 8), (NANO_RUN, 16 * NANO_PARAMETERS)):
        monkeypatch.setattr(memory, "free_memory", lambda _, needed=bytes_needed: needed / 0.9 * 1.01)
        size.refuse_unaffordable_training(config, CPU)
        monkeypatch.setattr(memory, "free_memory", lambda _, needed=bytes_needed: needed / 0.9 * 0.99)
        with pytest.raises(UsageError, match="training none needs about "):
            size.refuse_unaffordable_training(config, CPU)
