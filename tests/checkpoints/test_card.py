"""`poscli card`: the numbers of the page, and the claims about transformers on which its faults stand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import FAMILIES, make
from cli_runner import assert_refused, cli
from published_configs import PUBLISHED, spaced, write

transformers = pytest.importorskip("transformers")

from poscli.checkpoints.card import card_of, read_card, read_subject  # noqa: E402
from poscli.checkpoints.faults import EVERYWHERE, KNOWN, READ  # noqa: E402
from poscli.checkpoints.readings import (  # noqa: E402
    Stock,
    Turns,
    stock_reading,
)
from poscli.checkpoints.stock import quiet  # noqa: E402

FOUR = int(transformers.__version__.split(".")[0]) < 5
LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 2, "vocab_size": 99, "max_position_embeddings": 256, "rope_theta": 500.0}


def made(family: str, folder: Path, **changes: Any) -> Path:
    with quiet():
        return make(family, folder, **changes)


def published(name: str, folder: Path) -> Path:
    return write(folder, *PUBLISHED[name])


# The numbers of the page.


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals must write nothing to the current folder, which is quicker to see in an empty one."""
    monkeypatch.chdir(tmp_path)


def test_the_numbers_of_rope(tmp_path: Path) -> None:
    """Theta 500000 and 128 channels: theta_m = 500000^(-m/64), and L = 8192."""
    (group,) = read_card(published("Meta-Llama-3-8B", tmp_path)).groups
    speeds = [500000 ** (-m / 64) for m in range(64)]
    assert (group.layers, group.theta, group.pairs, group.window) == ((0, 1), 500000.0, 64, None)
    assert group.slowest_wavelength == pytest.approx(2 * math.pi / speeds[-1])
    assert group.never_turning == sum(speed * 8192 < 2 * math.pi for speed in speeds)
    assert 0 < group.never_turning < 64
    assert (group.factor, group.original, group.amplitude) == (None, None, 1.0)


def test_the_numbers_of_a_scaling(tmp_path: Path) -> None:
    card = read_card(published("Qwen2.5-7B-Instruct with YaRN, as its page tells", tmp_path))
    (group,) = card.groups
    assert (card.length, card.length_from, card.promised) == (32768, "max_position_embeddings", 131072)
    assert (group.factor, group.original) == (4.0, 32768)
    assert group.amplitude == pytest.approx(0.1 * math.log(4) + 1)
    assert card.tokenizer_limit == 131072


def test_layers_are_grouped_by_their_positions(tmp_path: Path) -> None:
    local, everywhere = read_card(published("gemma-3-1b-it", tmp_path)).groups
    assert everywhere.layers == (5, 11, 17, 23)
    assert sorted(local.layers + everywhere.layers) == list(range(26))
    assert (local.theta, local.window) == (10000.0, 512)
    assert (everywhere.theta, everywhere.window) == (1000000.0, None)


# By the name on the hub: heads, heads of keys, width of a head, length, the key that states it, promised length.
SIZES_ON_THE_PAGE = {
    "Llama-2-7b-hf": (32, 32, 128, 4096, "max_position_embeddings", 4096),
    "Llama-3.1-8B": (32, 8, 128, 131072, "max_position_embeddings", 131072),
    "Qwen2.5-7B-Instruct with YaRN, as its page tells": (28, 4, 128, 32768, "max_position_embeddings", 131072),
    "pythia-160m": (12, 12, 64, 2048, "max_position_embeddings", 2048),
    "gemma-3-1b-it": (4, 1, 256, 32768, "max_position_embeddings", 32768),
    "Phi-3-mini-128k-instruct": (32, 32, 96, 131072, "max_position_embeddings", 131072),
    "Mistral-7B-v0.1": (32, 8, 128, 32768, "max_position_embeddings", 32768),
    "bloom-560m": (16, 16, 64, 2048, "seq_length", 2048),
    "mpt-7b": (32, 32, 128, 2048, "max_seq_len", 2048),
    "falcon-7b": (71, 1, 64, 2048, "the default of falcon", 2048),
    "gpt2": (12, 12, 64, 1024, "n_positions", 1024),
}


@pytest.mark.parametrize("name", SIZES_ON_THE_PAGE)
def test_the_sizes_of_published_models(name: str, tmp_path: Path) -> None:
    card = read_card(published(name, tmp_path))
    sizes = (card.heads, card.kv_heads, card.head_width)
    assert (*sizes, card.length, card.length_from, card.promised) == SIZES_ON_THE_PAGE[name]


@pytest.mark.parametrize(
    ("scaling", "promised"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 1024),  # of the stated length
        ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}, 512),  # of the length before
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}, 256),  # less than is stated
    ],
)
def test_a_scaling_promises_its_factor_times_the_length_before_it(
    scaling: dict[str, Any], promised: int, tmp_path: Path
) -> None:
    assert read_card(write(tmp_path, LLAMA | {"rope_scaling": scaling})).promised == promised


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
    for theta, layers in ((500.0, "short"), (500.0 * 10 ** (32 / 30), "long")):
        expected = pytest.approx([theta ** (-m / 16) for m in range(16)])
        assert list(getattr(subject.layers[0].measured, layers).speeds) == expected
        assert list(getattr(subject.stock.layers[0], layers).speeds) == expected
    wrong = replace(subject.stock.layers[0], long=subject.stock.layers[0].short)
    said = {fault.name: fault.wrong for fault in card_of(replace(subject, stock=Stock("9.9", (wrong,) * 2))).grave}
    assert (
        "layers 0-1 otherwise: in a text of 1024 tokens, a pair of channels turns 10 times as fast"
        in said["rotations-read-otherwise"]
    )


def test_layers_without_rotations_have_no_numbers_of_them(tmp_path: Path) -> None:
    rotated, bare = read_card(published("SmolLM3-3B", tmp_path)).groups
    assert (rotated.layers, bare.layers) == ((0, 1, 2), (3,))
    assert (bare.spec, bare.theta, bare.pairs, bare.never_turning) == ("none", None, 0, 0)
    assert bare.slowest_wavelength is None
    assert (rotated.theta, rotated.pairs) == (5000000.0, 64)


def test_a_length_that_config_json_does_not_state_is_named_as_a_default(tmp_path: Path) -> None:
    card = read_card(published("falcon-7b", tmp_path))
    assert (card.length, card.length_from) == (2048, "the default of falcon")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_has_no_faults(family: str, tmp_path: Path) -> None:
    assert read_card(made(family, tmp_path)).grave == ()


# Readings of transformers that no configuration leads to.


def test_other_windows_and_other_numbers_of_layers_are_named(tmp_path: Path) -> None:
    subject = read_subject(published("Mistral-7B-v0.1", tmp_path))
    first, second = subject.stock.layers
    wider = Stock("9.9", (replace(first, window=None), second))
    (fault,) = card_of(replace(subject, stock=wider)).grave
    assert fault.name == "windows-read-otherwise"
    assert "a window of 4096 tokens for layers 0, and transformers 9.9 gives them no window" in fault.wrong
    (fault,) = card_of(replace(subject, stock=Stock("9.9", (first,)))).grave
    assert fault.name == "layers-read-otherwise"


@pytest.mark.parametrize(("factor", "differs"), [(1 + 1e-7, False), (1 - 1e-4, True), (1 + 1e-4, True)])
def test_speeds_are_compared_beyond_rounding(factor: float, differs: bool) -> None:
    own = Turns((1.0, 0.1, 0.01))
    assert own.differs(Turns((1.0, 0.1, 0.01 * factor))) is differs
    assert own.differs(Turns((1.0, 0.1, 0.01), amplitude=factor)) is differs
    assert own.differs(Turns((1.0, 0.1)))


# What transformers reads: a key is read if the reading changes with its value.

ORIGINAL = "original_max_position_embeddings"
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


def test_mpt_in_transformers_reads_neither_the_switch_of_alibi_nor_its_smallest_slope(tmp_path: Path) -> None:
    ids_BT = torch.arange(24)[None]
    changes: tuple[dict[str, Any], ...] = ({}, {"alibi": False}, {"alibi_bias_max": 4})
    with quiet(), torch.inference_mode():
        logits = [stock(made("mpt", tmp_path / str(n), attn_config=c))(ids_BT).logits for n, c in enumerate(changes)]
        longer = torch.arange(65)[None]
        with pytest.raises(RuntimeError):
            stock(tmp_path / "0")(longer)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


def test_alibi_of_falcon_in_transformers_is_computed_in_bfloat16() -> None:
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    mask_BT = torch.ones(1, 2048, dtype=torch.long)  # as the model makes it where it is given none
    bias_T = build_alibi_tensor(mask_BT, 8, torch.float64)[0, 0] / 0.5  # of head 1, whose slope is 1/2
    assert bias_T[:257].tolist() == list(range(257))
    assert sorted(set(bias_T[1024:].diff().tolist())) == [0, 8]


def stock(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


# The command.


ODD: tuple[dict[str, Any], ...] = (
    {"layer_types": [[1]]},
    {"layer_types": -1},
    {"no_rope_layers": "all"},
    {"sliding_window": [1]},
    {"rope_scaling": {"type": "yarn", "factor": 4.0, ORIGINAL: 64, 7: None}, ORIGINAL: None},
    {"transformers_version": {}},
)


@pytest.mark.parametrize("odd", ODD)
def test_values_that_llama_does_not_read_may_be_anything(odd: dict[str, Any], tmp_path: Path) -> None:
    assert cli("card", write(tmp_path, LLAMA | odd)).code in (0, 1)


def test_a_folder_without_config_json_is_no_checkpoint(tmp_path: Path) -> None:
    assert_refused(("card", tmp_path), 4, "no config.json")
    assert_refused(("card", tmp_path / "none"), 4, "there is no folder")


def test_a_probe_needs_the_weights(tmp_path: Path) -> None:
    assert_refused(("card", published("gpt2", tmp_path), "--probe"), 4, "holds no weights")
