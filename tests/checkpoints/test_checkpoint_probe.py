"""The probe of a checkpoint's positions: planted faults of the arithmetic are named, healthy models have none."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from checkpoints import LENGTH, make

from poscli.checkpoints.card import read_subject
from poscli.checkpoints.probe import Probe, passage, probe, probe_model
from poscli.checkpoints.stock import quiet, stock_model
from poscli.system.errors import DataError

CPU = torch.device("cpu")
LONGROPE = {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0, 1.1, 1.2, 1.3]}
LONGROPE |= {"long_factor": [1.0, 1.5, 3.0, 6.0], "original_max_position_embeddings": LENGTH}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def made(family: str, folder: Path, **changes: Any) -> Path:
    with quiet():
        return make(family, folder, **changes)


def probed(folder: Path, plant: Callable[[Any], None], dtype: torch.dtype | None = None) -> Probe:
    """Load a checkpoint, plant a fault in the model, and probe it."""
    subject = read_subject(folder)
    with quiet():
        stock = stock_model(folder, dtype, CPU)
    plant(stock)
    ids_BT, words = passage(folder, subject.architecture)
    with quiet():
        return probe_model(stock, subject, ids_BT, words)


def faults(found: Probe) -> set[str]:
    return {finding.name for finding in found.faults}


def rotary(stock: Any) -> Any:
    return stock.model.rotary_emb


def frequencies_in_bfloat16(stock: Any) -> None:
    """As `model.bfloat16()` does with the buffers of a model in float32."""
    rotary(stock).inv_freq = rotary(stock).inv_freq.bfloat16()


def angles_in_bfloat16(stock: Any) -> None:
    """The product of position and frequency rounded to 8 digits: beyond 256, positions fall together."""

    def forward(self: Any, x: Any, position_ids: Any) -> tuple[Any, Any]:
        angles = (position_ids[..., None].bfloat16() * self.inv_freq.bfloat16()).float()
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    rotary(stock).forward = types.MethodType(forward, rotary(stock))


def another_theta(stock: Any) -> None:
    pairs = torch.arange(4) / 4
    rotary(stock).inv_freq = 10000.0**-pairs


def sharper(stock: Any) -> None:
    rotary(stock).attention_scaling = 1.1


def nothing(stock: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("plant", "expected", "says"),
    [
        (frequencies_in_bfloat16, {"frequencies-differ"}, "layers 0-2"),
        (angles_in_bfloat16, {"positions-not-relative", "logits-differ"}, "at 256"),
        (
            another_theta,  # 10000 for 5000: pair 1 is off by 64 (0.1189 - 0.1) radians, pair 3 by 1 - 2^(-3/4)
            {"frequencies-differ", "logits-differ"},
            "they differ by up to 40.54%, so that angles are off by 1.21 radians at 64",
        ),
        (sharper, {"frequencies-differ", "logits-differ"}, "multiplied by 1.1 in place of 1"),
    ],
)
def test_planted_faults_of_the_arithmetic_are_named(
    plant: Callable[[Any], None], expected: set[str], says: str, tmp_path: Path
) -> None:
    found = probed(made("llama", tmp_path), plant)
    assert expected <= faults(found)
    assert any(says in fault.said for fault in found.faults)
    assert faults(found) <= expected | {"logits-differ"}  # rounded frequencies may or may not move logits that far


def test_dynamic_scaling_keeps_state_between_texts(tmp_path: Path) -> None:
    folder = made("llama", tmp_path, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert faults(probe(folder, read_subject(folder), CPU)) == {"state-between-texts"}


def test_slopes_that_transformers_does_not_read_change_the_logits(tmp_path: Path) -> None:
    folder = made("mpt", tmp_path, attn_config={"alibi_bias_max": 4})
    assert faults(probe(folder, read_subject(folder), CPU)) == {"logits-differ"}


def test_transformers_adds_alibi_to_mpt_all_the_same(tmp_path: Path) -> None:
    """Which is what `alibi-all-the-same` says: under poscli's ALiBi the logits are those of a model without it."""
    folder = made("mpt", tmp_path, attn_config={"alibi": False})
    assert faults(probe(folder, read_subject(folder), CPU)) == set()


HEALTHY: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("llama", {}, "positions-relative"),
    "yarn": ("llama", {"rope_scaling": YARN}, "positions-relative"),
    "longrope": (
        "llama",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": LENGTH, "max_position_embeddings": 4 * LENGTH},
        "position-dependent",
    ),
    "gemma3": ("gemma3", {}, "positions-relative"),
    "smollm3": ("smollm3", {}, "positions-relative"),
    "bloom": ("bloom-6", {}, "positions-relative"),
    "falcon with ALiBi": ("falcon-alibi", {}, "positions-relative"),
    "gpt2": ("gpt2", {}, "position-dependent"),
    "opt": ("opt", {}, "position-dependent"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_raise_nothing(name: str, tmp_path: Path) -> None:
    family, changes, shift = HEALTHY[name]
    folder = made(family, tmp_path, **changes)
    found = probe(folder, read_subject(folder), CPU)
    assert faults(found) == set(), found.faults
    assert shift in {finding.name for finding in found.findings}
    if shift == "positions-relative":
        assert max(found.losses.values()) - min(found.losses.values()) < 1e-3
    else:
        assert max(found.losses.values()) - min(found.losses.values()) > 1e-2


def test_angles_far_from_the_start_may_be_as_rough_as_float32_is(tmp_path: Path) -> None:
    """Position 2^19 has angles that float32 holds to 0.03 radians, which moves logits by more than other rounding."""
    folder = made("llama", tmp_path, max_position_embeddings=2**17)
    found = probe(folder, read_subject(folder), CPU)
    assert list(found.losses) == [0, 2**17, 2**18, 2**19]
    assert faults(found) == set(), found.faults


def test_a_healthy_model_in_bfloat16_raises_nothing(tmp_path: Path) -> None:
    """Its weights and states are rounded to 8 digits, its frequencies and angles are not."""
    found = probed(made("llama", tmp_path), nothing, torch.bfloat16)
    assert found.dtype == "bfloat16"
    assert faults(found) == set(), found.faults


def test_bfloat16_angles_are_found_in_a_model_in_bfloat16_too(tmp_path: Path) -> None:
    found = probed(made("llama", tmp_path), angles_in_bfloat16, torch.bfloat16)
    assert "positions-not-relative" in faults(found)


def test_the_loss_is_that_of_the_passage_under_the_stock_model(tmp_path: Path) -> None:
    folder = made("llama", tmp_path)
    subject = read_subject(folder)
    ids_BT, words = passage(folder, subject.architecture)
    assert words == f"{LENGTH // 2} tokens of English"
    with quiet(), torch.inference_mode():
        logits_TV = stock_model(folder, None, CPU)(input_ids=ids_BT).logits[0].double()
    chosen = logits_TV.log_softmax(dim=-1)[:-1].gather(1, ids_BT[0, 1:, None])
    assert probe(folder, subject, CPU).losses[0] == pytest.approx(-float(chosen.mean()), abs=1e-5)


def test_without_a_tokenizer_tokens_are_spread_over_the_vocabulary(tmp_path: Path) -> None:
    folder = made("llama", tmp_path)
    (folder / "tokenizer.json").unlink()
    architecture = read_subject(folder).architecture
    ids_BT, words = passage(folder, architecture)
    assert words == f"{LENGTH // 2} tokens spread over the vocabulary"
    assert 0 <= ids_BT.min() <= ids_BT.max() < architecture.vocab
    assert len(ids_BT.unique()) == LENGTH // 2


@pytest.mark.parametrize(("content", "words"), [("{", "is no tokenizer"), (None, "a vocabulary of 40")])
def test_a_tokenizer_that_does_not_belong_to_the_model_is_refused(
    content: str | None, words: str, tmp_path: Path
) -> None:
    folder = made("llama", tmp_path, vocab_size=320 if content else 40)
    if content:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=words):
        passage(folder, read_subject(folder).architecture)
