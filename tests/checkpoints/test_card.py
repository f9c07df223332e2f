"""`poscli card`: its numbers, what the installed transformers reads, and the claims about it on which faults stand.

The faults of every key, with what they say, are in test_snapshots_checkpoints.py. No weights here: a card reads
config.json and tokenizer_config.json only. The tests run under transformers 4 and under 5.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import assert_refused, cli
from published_configs import PUBLISHED, spaced, write

transformers = pytest.importorskip("transformers")

from poscli.checkpoints.architecture import architecture  # noqa: E402
from poscli.checkpoints.card import Card, card_of, read_subject  # noqa: E402
from poscli.checkpoints.fault_places import EVERYWHERE, KNOWN, READ  # noqa: E402
from poscli.checkpoints.readings import Stock, Turns, stock_reading  # noqa: E402

FOUR = int(transformers.__version__.split(".")[0]) < 5
ORIGINAL = "original_max_position_embeddings"
LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 2, "vocab_size": 99, "max_position_embeddings": 256, "rope_theta": 500.0}


def read_card(folder: Path) -> Card:
    return card_of(read_subject(folder))


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_pairs_that_never_turn_are_counted_within_the_trained_length(factor: float, tmp_path: Path) -> None:
    """Four pairs of theta 1000 in 64 tokens: 64, 11.4, 2.02 and 0.36 radians, of which a turn is 6.28."""
    config = LLAMA | {"hidden_size": 16, "rope_theta": 1000.0, "max_position_embeddings": 64}
    scaling = {"rope_type": "linear", "factor": factor}
    (group,) = read_card(write(tmp_path, config | {"rope_scaling": scaling})).groups
    radians = [64 / factor * 1000 ** (-m / 4) for m in range(4)]
    assert group.never_turning == sum(angle < 2 * math.pi for angle in radians)
    assert group.slowest_wavelength == pytest.approx(2 * math.pi * factor * 1000**0.75)


def test_dynamic_scaling_is_compared_in_a_text_of_four_lengths(tmp_path: Path) -> None:
    """Beyond L, theta grows by (f T / L - f + 1)^(D / (D - 2)) (bloc97, 2023): here by (3 * 4 - 2)^(32 / 30)."""
    folder = write(tmp_path, LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}})
    subject = read_subject(folder)
    for theta, text in ((500.0, "short"), (500.0 * 10 ** (32 / 30), "long")):
        expected = pytest.approx([theta ** (-m / 16) for m in range(16)])
        assert list(getattr(subject.layers[0].measured, text).speeds) == expected
        assert list(getattr(subject.stock.layers[0], text).speeds) == expected
    wrong = replace(subject.stock.layers[0], long=subject.stock.layers[0].short)
    said = {fault.name: fault.wrong for fault in card_of(replace(subject, stock=Stock("9.9", (wrong,) * 2))).grave}
    assert (
        "layers 0-1 otherwise: in a text of 1024 tokens, a pair of channels turns 10 times as fast"
        in said["rotations-read-otherwise"]
    )


@pytest.mark.parametrize(("factor", "differs"), [(1 + 1e-7, False), (1 - 1e-4, True), (1 + 1e-4, True)])
def test_speeds_are_compared_beyond_rounding(factor: float, differs: bool) -> None:
    turns = Turns((1.0, 0.1, 0.01))
    assert bool(turns.difference(Turns((1.0, 0.1, 0.01 * factor)), 64)) is differs
    assert bool(turns.difference(Turns((1.0, 0.1, 0.01), amplitude=factor), 64)) is differs
    assert turns.difference(Turns((1.0, 0.1)), 64)


NOTED = {
    "Qwen2.5-7B-Instruct with YaRN, as its page tells": ["length-not-raised-for-yarn"],
    "Qwen3-8B with YaRN, as its page tells": ["length-not-raised-for-yarn"],
    "AFM-4.5B": ["length-not-raised-for-yarn"],
    "Phi-3-mini-128k-instruct": ["window-never-cuts"],
    "mpt-7b": ["alibi-ends-at-length"],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_have_no_faults(name: str, tmp_path: Path) -> None:
    config, limit = PUBLISHED[name]
    card = read_card(write(tmp_path, config, limit))
    assert card.grave == ()
    assert [note.name for note in card.faults] == NOTED.get(name, [])


def test_command_r_has_the_length_of_its_training_and_not_the_shorter_one_beside_it(tmp_path: Path) -> None:
    config = SMALL | {"model_type": "cohere", "model_max_length": 1024}
    assert read_card(write(tmp_path / "cohere", config)).length == 1024
    assert read_card(write(tmp_path / "llama", config | {"model_type": "llama"})).length == 64


def test_a_factor_on_cos_and_sin_that_is_yarns_own_follows_another_factor() -> None:
    """OLMo 3 writes 0.1 ln 8 + 1 out."""
    for attention, stays in ((0.1 * math.log(8) + 1, False), (1.3, True)):
        scaling = {"rope_type": "yarn", "factor": 8.0, ORIGINAL: 8, "attention_factor": attention}
        spec = architecture(SMALL | {"rope_scaling": scaling}).spec
        assert ("attention" in spec) is stays


# What the installed version refuses, does not read, or reads otherwise.

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
BARE = SIZES | {"model_type": "llama", "max_position_embeddings": 64}
SMALL = BARE | {"rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 16}
LONGROPE = {"rope_type": "longrope", "factor": 4.0, "short_factor": spaced(1, 1.2, 4), "long_factor": spaced(1, 4, 4)}
NEOX = SIZES | {"model_type": "gpt_neox", "max_position_embeddings": 64, "rotary_emb_base": 500, "rotary_pct": 0.5}
GEMMA = SMALL | {"model_type": "gemma3_text", "head_dim": 8, "num_key_value_heads": 1, "sliding_window": 16}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    "sliding_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
}

# A configuration, its faults in any version, those in version 4 only and in version 5 only, and words of one of them.
PLANTED: list[tuple[dict[str, Any], set[str], set[str], set[str], str]] = [
    (SMALL | {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, ORIGINAL: 16}}, {"refused"}, set(), set(),
     "low_freq_factor"),
    (BARE | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, set(),
     {"rope-parameters-unread", "rotations-read-otherwise"}, set(), "transformers 5"),
    (BARE | {"rope_scaling": YARN | {"rope_theta": 500.0}}, set(), {"theta-unread", "rotations-read-otherwise"}, set(),
     "500"),
    (SMALL | {"rope_scaling": YARN | {"rope_theta": 600.0}}, {"two-thetas"},
     {"theta-unread", "rotations-read-otherwise"}, set(), "rope_theta 500 and, in rope_scaling, rope_theta 600"),
    (SMALL | {"rope_scaling": LONGROPE | {ORIGINAL: 16}}, set(), {"original-misplaced", "rotations-read-otherwise"},
     set(), ""),
    (SMALL | {"partial_rotary_factor": 0.5}, {"key-of-another-model-type"}, set(), {"rotations-read-otherwise"},
     "partial_rotary_factor 0.5, which models of type llama have no use for"),
    (SMALL | {"partial_rotary_factor": 1.0, "rotary_pct": 1}, set(), set(), set(), ""),
    (NEOX | {"rope_theta": 700.0}, {"theta-under-another-name", "rotations-read-otherwise"}, set(), set(), "700.0"),
    (SMALL | {"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}},
     {"two-types", "dynamic-keeps-state"}, {"rotations-read-otherwise"}, set(), "'linear'"),
    (GEMMA | {"rope_parameters": LINEAR}, {"local-layers-scaled"},
     {"rope-parameters-unread", "rotations-read-otherwise"}, set(), "linear on the layers with a window"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "always", "in_four", "in_five", "words"), PLANTED)
def test_what_the_installed_transformers_reads_otherwise_is_named_and_nothing_else(
    config: dict[str, Any], always: set[str], in_four: set[str], in_five: set[str], words: str, tmp_path: Path
) -> None:
    card = read_card(write(tmp_path, config))
    assert {fault.name for fault in card.faults} == always | (in_four if FOUR else in_five), card.faults
    assert not card.faults or any(words in fault.wrong for fault in card.faults)


def test_a_refusal_without_a_message_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    assert stock_reading(write(tmp_path, LLAMA), 64).refusal == "ValueError: no message"


# A key of a scaling is read if the reading changes with its value.

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, ORIGINAL: 64, "mscale": 0.7, "mscale_all_dim": 0.4},
    "llama3": {"factor": 4.0, ORIGINAL: 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {"factor": 4.0, ORIGINAL: 64, "short_factor": spaced(1, 1.2, 16), "long_factor": spaced(1, 4, 16)},
}
OTHER: dict[str, Any] = {
    "factor": 3.0, ORIGINAL: 32, "attention_factor": 1.3, "beta_fast": 4.0, "beta_slow": 2.0, "mscale": 0.5,
    "mscale_all_dim": 0.6, "truncate": False, "low_freq_factor": 1.5, "high_freq_factor": 3.0,
    "short_factor": spaced(1, 1.4, 16), "long_factor": spaced(1, 5, 16),
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALINGS)
def test_the_keys_of_a_scaling_are_those_that_transformers_reads(kind: str, tmp_path: Path) -> None:
    def reading(**changes: Any) -> tuple[Any, ...]:
        scaling = {"rope_type": kind, **SCALINGS[kind], **changes}
        stock = stock_reading(write(tmp_path, LLAMA | {"rope_scaling": scaling}), 256)
        assert not stock.refusal
        return stock.layers

    assert set(OTHER) == KNOWN - EVERYWHERE
    before = reading()
    changing = {key for key, value in OTHER.items() if reading(**{key: value}) != before}
    unread = {ORIGINAL} if FOUR and kind == "longrope" else set()  # version 4 reads it at the top of the file
    assert changing == READ[kind] - unread


# ALiBi of Falcon in bfloat16.


def test_alibi_of_falcon_in_transformers_is_computed_in_bfloat16() -> None:
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    mask_BT = torch.ones(1, 2048, dtype=torch.long)  # as the model makes it where it is given none
    bias_T = build_alibi_tensor(mask_BT, 8, torch.float64)[0, 0] / 0.5  # of head 1, whose slope is 1/2
    assert bias_T[:257].tolist() == list(range(257))
    assert sorted(set(bias_T[1024:].diff().tolist())) == [0, 8]


@pytest.mark.parametrize(("length", "step"), [(64, 1), (256, 1), (512, 2), (1024, 4), (4096, 16)])
def test_the_step_of_positions_in_bfloat16_is_that_of_the_format_and_no_step_is_no_note(
    length: int, step: int, tmp_path: Path
) -> None:
    last = torch.arange(length - 2 * step, length, dtype=torch.float64).bfloat16().double()
    assert int(last.unique().diff().max()) == step
    falcon = SIZES | {"model_type": "falcon", "alibi": True, "max_position_embeddings": length}
    notes = {note.name: note.wrong for note in read_card(write(tmp_path, falcon)).faults}
    assert ("alibi-in-bfloat16" in notes) is (step > 1)
    assert step == 1 or f"at {length} to multiples of {step}." in notes["alibi-in-bfloat16"]


def test_values_that_llama_does_not_read_may_be_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    odd: tuple[dict[str, Any], ...] = (
        {"layer_types": [[1]]},
        {"layer_types": -1},
        {"no_rope_layers": "all"},
        {"sliding_window": [1]},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, ORIGINAL: 64, 7: None}, ORIGINAL: None},
        {"transformers_version": {}},
    )
    for each in odd:
        assert cli("card", write(tmp_path, LLAMA | each)).code in (0, 1), each


ON = {"use_sliding_window": True, "sliding_window": 16}
BAD: tuple[tuple[dict[str, Any], str], ...] = (
    (SMALL | ON | {"model_type": "qwen2", "max_window_layers": "1"}, "max_window_layers = '1'"),
    (SMALL | ON | {"model_type": "qwen2_moe", "max_window_layers": 1.5}, "max_window_layers = 1.5"),
    (SMALL | ON | {"model_type": "dots1", "max_window_layers": "1"}, "max_window_layers = '1'"),
    (SMALL | {"rope_theta": "500", "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 400.0}},
     "rope_theta = '500'"),
    (SMALL | {"rope_scaling": LONGROPE | {ORIGINAL: 1}},
     f"{ORIGINAL} = 1, and it must be a whole number of at least 2"),
)  # fmt: skip


@pytest.mark.parametrize(("config", "words"), BAD)
def test_values_that_make_no_model_are_refused_in_one_line(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert_refused(("card", write(tmp_path, config)), 4, words)


def test_a_window_may_begin_at_the_first_layer_or_where_transformers_lets_it_by_default(tmp_path: Path) -> None:
    for first, windows in ((0, 16), (2, None), (None, None)):
        config = SMALL | ON | {"model_type": "qwen2", "max_window_layers": first}
        assert read_card(write(tmp_path, config)).groups[0].window == windows


def test_a_type_that_is_a_list_is_named(tmp_path: Path) -> None:
    config = SMALL | {"rope_scaling": {"rope_type": "linear", "type": ["linear"], "factor": 2.0}}
    assert "two-types" in {fault.name for fault in read_card(write(tmp_path, config)).faults}


def test_the_longest_promised_text_is_the_same_number_in_the_card_and_in_its_faults(tmp_path: Path) -> None:
    config = LLAMA | {"max_position_embeddings": 100, "rope_scaling": {"rope_type": "linear", "factor": 2.3}}
    card = read_card(write(tmp_path, config, 2000))
    (fault,) = [fault for fault in card.faults if "model_max_length" in fault.fix]
    assert card.promised == 230
    assert "230" in fault.fix


def test_only_a_probe_says_what_transformers_computes(tmp_path: Path) -> None:
    for config in (SMALL, SIZES | {"model_type": "gpt2", "n_positions": 64}):
        said = " ".join(cli("card", write(tmp_path, config)).out.split())
        assert "No faults in config.json" in said
        assert "--probe compares what" in said


def test_a_device_is_for_the_probe(tmp_path: Path) -> None:
    assert_refused(("card", write(tmp_path, SMALL), "--device", "auto"), 2, "--device auto is for --probe")
