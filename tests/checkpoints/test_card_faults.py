"""Every fault that a card can name is planted in a small configuration, and healthy ones have none.

No weights: a card reads config.json and tokenizer_config.json only. Where versions of transformers differ, the expected
names are those of the installed version; the tests run under version 4 and under version 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from published_configs import PUBLISHED, spaced, write

transformers = pytest.importorskip("transformers")

from poscli.checkpoints.card import Card, read_card  # noqa: E402
from poscli.checkpoints.faults import FAULTS  # noqa: E402
from poscli.checkpoints.readings import stock_reading  # noqa: E402

FOUR = int(transformers.__version__.split(".")[0]) < 5
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
LLAMA = SIZES | {"model_type": "llama", "max_position_embeddings": 64, "rope_theta": 500.0}
QWEN = LLAMA | {"model_type": "qwen2"}
GEMMA = LLAMA | {"model_type": "gemma3_text", "head_dim": 8, "num_key_value_heads": 1, "sliding_window": 16}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention"]}
SMOL = LLAMA | {"model_type": "smollm3", "no_rope_layers": [1, 0], "pad_token_id": None}
MPT = {"model_type": "mpt", "d_model": 48, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 99}
NEOX = SIZES | {"model_type": "gpt_neox", "max_position_embeddings": 64, "rotary_emb_base": 500, "rotary_pct": 0.5}
FALCON = SIZES | {"model_type": "falcon", "max_position_embeddings": 64, "rope_theta": 500.0}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "factor": 4.0, "short_factor": spaced(1, 1.2, 4), "long_factor": spaced(1, 4, 4)}
ABOVE = {"original_max_position_embeddings": 16}  # at the top of config.json, where version 4 reads it for longrope


@dataclass(frozen=True)
class Planted:
    """A configuration with a fault, and all that a card says about it."""

    config: dict[str, Any]
    names: set[str]  # of the faults and notes, in any version
    four: set[str] = field(default_factory=set)  # and in version 4 only
    five: set[str] = field(default_factory=set)
    limit: int | None = None  # of the tokenizer
    says: str = ""  # among the words about what is wrong

    @property
    def expected(self) -> set[str]:
        return self.names | (self.four if FOUR else self.five)


def scaled(scaling: dict[str, Any], base: dict[str, Any] = LLAMA, **changes: Any) -> dict[str, Any]:
    return base | {"rope_scaling": scaling} | changes


PLANTED: dict[str, Planted] = {
    # what the installed version does not read, or reads otherwise
    "refused": Planted(
        scaled({"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 16}),
        {"refused"},
        says="low_freq_factor",
    ),
    "rope-parameters-unread": Planted(
        SIZES
        | {"model_type": "llama", "max_position_embeddings": 64}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        set(),
        four={"rope-parameters-unread", "rotations-read-otherwise"},
        says="transformers 5",
    ),
    "theta-unread": Planted(
        SIZES
        | {"model_type": "llama", "max_position_embeddings": 64}
        | {"rope_scaling": YARN | {"rope_theta": 500.0}},
        set(),
        four={"theta-unread", "rotations-read-otherwise"},
        says="500",
    ),
    "two-thetas": Planted(
        scaled(YARN | {"rope_theta": 600.0}),
        {"two-thetas"},
        four={"theta-unread", "rotations-read-otherwise"},
        says="rope_theta 500 and, in rope_scaling, rope_theta 600",
    ),
    "original-misplaced": Planted(
        scaled(LONGROPE | ABOVE),
        set(),
        four={"original-misplaced", "rotations-read-otherwise"},
    ),
    "rotations-read-otherwise": Planted(
        LLAMA | {"partial_rotary_factor": 0.5},
        {"key-of-another-model-type"},
        five={"rotations-read-otherwise"},
        says="it turns 4 pairs of channels where config.json states 2",
    ),
    "theta-under-another-name": Planted(
        NEOX | {"rope_theta": 700.0}, {"theta-under-another-name", "rotations-read-otherwise"}, says="700.0"
    ),
    # keys
    "unknown-key": Planted(scaled(YARN | {"beta_fats": 16.0}), {"unknown-key"}, says="beta_fats"),
    "key-of-another-scaling": Planted(
        scaled({"rope_type": "linear", "factor": 4.0, "beta_fast": 16.0}), {"key-of-another-scaling"}, says="beta_fast"
    ),
    "misspelt-key": Planted(
        {**SIZES, "model_type": "llama", "max_position_embeddings": 64, "rope_tetha": 500.0},
        {"misspelt-key"},
        says="rope_tetha",
    ),
    "key-of-another-model-type": Planted(
        LLAMA | {"sliding_window": 16}, {"key-of-another-model-type"}, says="sliding_window 16"
    ),
    "two-types": Planted(
        scaled({"type": "linear", "rope_type": "dynamic", "factor": 2.0}),
        {"two-types", "dynamic-keeps-state"},
        four={"rotations-read-otherwise"},
        says="'linear'",
    ),
    "two-scalings": Planted(
        scaled({"rope_type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "linear", "factor": 4.0}),
        {"two-scalings"},
        says="factor",
    ),
    # numbers of a scaling
    "factor-one": Planted(scaled({"rope_type": "linear", "factor": 1.0}), {"factor-one"}, says="linear"),
    "longrope-without-effect": Planted(
        scaled(LONGROPE | ABOVE | {"short_factor": [2.0] * 4, "long_factor": [2.0] * 4}, **ABOVE),
        {"longrope-without-effect"},
        says="are equal",
    ),
    "attention-factor-cancelled": Planted(
        scaled(YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}), {"attention-factor-cancelled"}, says="mscale 1"
    ),
    "mscale-alone": Planted(scaled(YARN | {"mscale": 0.7}), {"mscale-alone"}, says="mscale_all_dim"),
    "original-missing": Planted(
        scaled({"rope_type": "yarn", "factor": 4.0}), {"original-missing"}, says="takes the stated length, 64,"
    ),
    "factor-contradicts-length": Planted(
        scaled(YARN | {"factor": 32.0}), {"factor-contradicts-length"}, says="which makes 512"
    ),
    "length-raised-without-scaling": Planted(
        LLAMA | ABOVE, {"length-raised-without-scaling"}, says="64 tokens and original_max_position_embeddings 16"
    ),
    "length-not-raised": Planted(
        scaled(LLAMA3 | {"original_max_position_embeddings": 64}), {"length-not-raised"}, says="64"
    ),
    "length-not-raised-for-yarn": Planted(
        scaled(YARN | {"original_max_position_embeddings": 64}), {"length-not-raised-for-yarn"}, says="by 4"
    ),
    "dynamic-keeps-state": Planted(
        scaled({"rope_type": "dynamic", "factor": 2.0}), {"dynamic-keeps-state"}, says="the longest text so far"
    ),
    "local-layers-scaled": Planted(
        GEMMA
        | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
            }
        },
        {"local-layers-scaled"},
        four={"rope-parameters-unread", "rotations-read-otherwise"},
        says="linear on the layers with a window",
    ),
    "parameters-of-no-layer": Planted(
        GEMMA | {"layer_types": ["full_attention"] * 2, "rope_local_base_freq": 100.0}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
        {"parameters-of-no-layer", "window-switched-off"},
        says="no layer is of type sliding_attention",
    ),
    "scaling-without-rotations": Planted(
        scaled(YARN, FALCON | {"alibi": True}),
        {"scaling-without-rotations", "alibi-in-bfloat16"},
        says="no layer of this model has rotations",
    ),
    # windows and lists
    "window-never-cuts": Planted(
        LLAMA | {"model_type": "mistral", "sliding_window": 64}, {"window-never-cuts"}, says="64"
    ),
    "window-switched-off": Planted(QWEN | {"sliding_window": 16}, {"window-switched-off"}, says="sliding_window 16"),
    "window-missing": Planted(
        QWEN | {"layer_types": ["full_attention", "sliding_attention"]}, {"window-missing"}, says="1 layers"
    ),
    "layer-list-too-long": Planted(SMOL | {"no_rope_layers": [1, 0, 1]}, {"layer-list-too-long"}, says="3 entries"),
    # lengths
    "tokenizer-shorter": Planted(LLAMA, {"tokenizer-shorter"}, limit=32, says="model_max_length 32"),
    "tokenizer-longer": Planted(LLAMA, {"tokenizer-longer"}, limit=640, says="10 times"),
    # model types
    "alibi-all-the-same": Planted(
        MPT | {"attn_config": {"alibi": False}}, {"alibi-all-the-same", "alibi-ends-at-length"}, says="alibi false"
    ),
    "alibi-slopes-unread": Planted(
        MPT | {"attn_config": {"alibi_bias_max": 4}}, {"alibi-slopes-unread", "alibi-ends-at-length"}, says="4"
    ),
    "alibi-ends-at-length": Planted(MPT, {"alibi-ends-at-length"}, says="64"),
    "alibi-in-bfloat16": Planted(
        FALCON | {"alibi": True, "max_position_embeddings": 2048}, {"alibi-in-bfloat16"}, says="multiples of 8"
    ),
}  # fmt: skip
UNREACHABLE = {"windows-read-otherwise", "layers-read-otherwise"}  # tested with a reading of transformers made up below


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_and_nothing_else(name: str, tmp_path: Path) -> None:
    planted = PLANTED[name]
    card = read_card(write(tmp_path, planted.config, planted.limit))
    assert {fault.name for fault in card.faults} == planted.expected, card.faults
    for fault in card.faults:
        if fault.name == name:
            assert planted.says in fault.wrong


def test_every_check_has_a_planted_fault() -> None:
    found = {name for planted in PLANTED.values() for name in planted.names | planted.four | planted.five}
    assert found | UNREACHABLE == {rule.name for rule in FAULTS}


HEALTHY = {
    "llama": LLAMA,
    "linear": scaled({"rope_type": "linear", "factor": 4.0}),
    "yarn": scaled(YARN),
    "yarn of version 3": scaled({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    "llama3": scaled(LLAMA3),
    "longrope": scaled(LONGROPE, **ABOVE),
    "neox": NEOX,
    "gemma": GEMMA,
    "smollm3": SMOL,
    "smollm3 with a window": SMOL | {"use_sliding_window": True, "sliding_window": 16},
    "qwen2 with a window": QWEN | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    "qwen2 with a list": QWEN
    | {"use_sliding_window": True, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "falcon": FALCON,
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": 16},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_configurations_raise_nothing(name: str, tmp_path: Path) -> None:
    assert read_card(write(tmp_path, HEALTHY[name], 64)).faults == ()


NOTED = {
    "Qwen2.5-7B-Instruct with YaRN, as its page tells": ["length-not-raised-for-yarn"],
    "Phi-3-mini-128k-instruct": ["window-never-cuts"],
    "mpt-7b": ["alibi-ends-at-length"],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_have_no_faults(name: str, tmp_path: Path) -> None:
    config, limit = PUBLISHED[name]
    card: Card = read_card(write(tmp_path, config, limit))
    assert card.grave == ()
    assert [note.name for note in card.faults] == NOTED.get(name, [])


# On either side of every bound: a fault's name, a configuration and the tokenizer's limit, and whether it is named.
def longrope(kind: str, **changes: Any) -> dict[str, Any]:
    return LONGROPE | {"rope_type": kind} | changes


BOUNDS: list[tuple[str, dict[str, Any], int | None, bool]] = [
    ("tokenizer-shorter", LLAMA, 63, True),
    ("tokenizer-shorter", LLAMA, 64, False),
    ("tokenizer-longer", LLAMA, 257, True),
    ("tokenizer-longer", LLAMA, 256, False),
    ("tokenizer-longer", LLAMA, 10**15, False),  # as transformers writes that there is no limit
    ("tokenizer-longer", scaled({"rope_type": "linear", "factor": 2.0}), 512, False),
    ("tokenizer-longer", scaled({"rope_type": "linear", "factor": 2.0}), 513, True),
    ("factor-contradicts-length", scaled(YARN | {"factor": 8.0}), None, False),
    ("factor-contradicts-length", scaled(YARN | {"factor": 8.1}), None, True),
    ("factor-contradicts-length", scaled(YARN | {"factor": 2.0}), None, False),
    ("factor-contradicts-length", scaled(YARN | {"factor": 1.9}), None, True),
    ("factor-contradicts-length", scaled(longrope("su", factor=8.1) | ABOVE, **ABOVE), None, True),
    ("factor-one", scaled({"rope_type": "dynamic", "factor": 1.1}), None, False),
    ("factor-one", scaled(YARN | {"factor": 1}), None, True),
    ("factor-one", scaled(LLAMA3 | {"factor": 1.0}), None, True),
    ("window-never-cuts", LLAMA | {"model_type": "mistral", "sliding_window": 63}, None, False),
    ("window-never-cuts", LLAMA | {"model_type": "mistral", "sliding_window": 65}, None, True),
    ("window-switched-off", QWEN | {"sliding_window": 63}, None, True),
    ("window-switched-off", QWEN | {"sliding_window": 64}, None, False),
    ("attention-factor-cancelled", scaled(YARN | {"attention_factor": 1.0}), None, True),
    ("attention-factor-cancelled", scaled(YARN | {"attention_factor": 1.1}), None, False),
    ("attention-factor-cancelled", scaled(YARN | {"attention_factor": 1.0, "factor": 1.0}), None, False),
    ("attention-factor-cancelled", scaled({**YARN, "factor": None, "attention_factor": 1.0}), None, True),
    ("attention-factor-cancelled", scaled(YARN | {"mscale": 0.7, "mscale_all_dim": 0.5}), None, False),
    ("mscale-alone", scaled(YARN | {"mscale": 0.7, "attention_factor": 1.2}), None, False),
    ("mscale-alone", scaled(YARN | {"mscale_all_dim": 0.7}), None, True),
    ("mscale-alone", scaled(YARN | {"mscale": 0.7, "mscale_all_dim": 0.5}), None, False),
    ("original-missing", scaled(LLAMA3 | {"original_max_position_embeddings": None}), None, True),
    ("original-missing", scaled(longrope("longrope")), None, True),
    ("original-missing", scaled(longrope("su")), None, True),
    ("original-missing", scaled(longrope("longrope"), **ABOVE), None, False),
    ("length-raised-without-scaling", scaled(YARN, **ABOVE), None, False),
    ("length-raised-without-scaling", LLAMA | {"original_max_position_embeddings": 64}, None, False),
    ("length-not-raised", scaled(longrope("longrope"), original_max_position_embeddings=64), None, True),
    ("length-not-raised", scaled(longrope("su"), original_max_position_embeddings=64), None, True),
    ("length-not-raised", scaled(LLAMA3 | {"original_max_position_embeddings": 128}), None, False),
    ("length-not-raised", scaled(LLAMA3 | {"original_max_position_embeddings": 63}), None, False),
    ("length-not-raised-for-yarn", scaled(YARN | {"original_max_position_embeddings": 63}), None, False),
    ("longrope-without-effect", scaled(longrope("su", long_factor=LONGROPE["short_factor"]) | ABOVE), None, True),
    ("two-types", scaled(longrope("longrope", type="su") | ABOVE), None, False),
    ("two-types", scaled(YARN | {"type": "yarn"}), None, False),
    ("theta-under-another-name", NEOX | {"rope_theta": 500}, None, False),
    ("theta-under-another-name", {**NEOX, "rotary_emb_base": 10000, "rope_theta": 10000}, None, False),
    ("theta-under-another-name", {k: v for k, v in NEOX.items() if k != "rotary_emb_base"} | {"rope_theta": 10000.0},
     None, False),
    ("theta-under-another-name", LLAMA | {"rotary_emb_base": 10000}, None, False),
    ("misspelt-key", LLAMA | {"rope_tetha": 500.0}, None, False),  # the right one is there too
    ("misspelt-key", QWEN | {"use_sliding_window": False}, None, False),
    ("key-of-another-model-type", LLAMA | {"sliding_window": None, "alibi": False}, None, False),
    ("key-of-another-model-type", QWEN | {"sliding_window": 16}, None, False),
    ("key-of-another-model-type", LLAMA | {"model_type": "phi", "partial_rotary_factor": 0.5}, None, False),
    ("key-of-another-model-type", LLAMA | {"model_type": "phi3", "partial_rotary_factor": 0.5}, None, False),
    ("key-of-another-model-type", LLAMA | {"alibi": True}, None, True),
    ("key-of-another-model-type", LLAMA | {"layer_types": ["sliding_attention"] * 2}, None, True),
    ("key-of-another-model-type", LLAMA | {"layer_types": ["full_attention"] * 2}, None, False),
    ("window-missing", QWEN | {"layer_types": ["full_attention"] * 2}, None, False),
    ("layer-list-too-long", SMOL | {"no_rope_layers": [1, 0]}, None, False),
    ("two-thetas", scaled(YARN | {"rope_theta": 500.0}), None, False),
    ("two-scalings", scaled({"rope_type": "linear", "factor": 4.0}, rope_parameters={"rope_type": "yarn"}), None, True),
    ("two-scalings", scaled({"type": "linear", "factor": 4.0},
                            rope_parameters={"rope_type": "linear", "factor": 4.0}), None, False),
    ("parameters-of-no-layer", {key: value for key, value in GEMMA.items() if key != "layer_types"}
     | {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500.0}}}, None, False),
    ("scaling-without-rotations", scaled({"rope_type": "default"}, FALCON | {"alibi": True}), None, False),
    ("alibi-slopes-unread", MPT | {"attn_config": {"alibi_bias_max": 8}}, None, False),
    ("alibi-all-the-same", MPT | {"attn_config": {"alibi": True}}, None, False),
    ("alibi-in-bfloat16", FALCON | {"alibi": False}, None, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "limit", "named"), BOUNDS)
def test_a_fault_is_named_from_its_bound_on(
    name: str, config: dict[str, Any], limit: int | None, named: bool, tmp_path: Path
) -> None:
    found = {fault.name for fault in read_card(write(tmp_path, config, limit)).faults}
    assert (name in found) is named, found


@pytest.mark.parametrize(("length", "step"), [(64, 1), (256, 1), (512, 2), (1024, 4), (4096, 16)])
def test_the_step_of_positions_in_bfloat16_is_that_of_the_format(length: int, step: int, tmp_path: Path) -> None:
    last = torch.arange(length - 2 * step, length, dtype=torch.float64).bfloat16().double()
    assert int(last.unique().diff().max()) == step
    card = read_card(write(tmp_path, FALCON | {"alibi": True, "max_position_embeddings": length}))
    (note,) = card.faults
    assert f"at {length} to multiples of {step}." in note.wrong


def test_a_refusal_without_a_message_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, LLAMA)

    def refuse(*_: object, **__: object) -> None:
        raise ValueError

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    assert stock_reading(folder, 64).refusal == "ValueError: no message"
