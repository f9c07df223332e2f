"""The probe of a checkpoint's positions: planted faults of the arithmetic are named, healthy models have none."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from checkpoints import LENGTH, make
from cli_runner import assert_refused
from tokenizers import Tokenizer, models

from poscli.checkpoints.card import read_subject
from poscli.checkpoints.checkpoint_model import quiet, stock_model
from poscli.checkpoints.probe import Probe, passage, probe, probe_model
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
        return probe_model(stock, folder, subject, ids_BT, words)


def faults(report: Probe) -> set[str]:
    return {finding.name for finding in report.faults}


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


def positions_end_at_the_length(stock: Any) -> None:
    """As in a table of angles that ends there: nothing differs within the trained length."""
    original = rotary(stock).forward
    rotary(stock).forward = lambda x, position_ids: original(x, position_ids.clamp(max=LENGTH))


@pytest.mark.parametrize(
    ("plant", "expected", "says"),
    [
        (frequencies_in_bfloat16, {"frequencies-differ"}, "layers 0-2"),
        (angles_in_bfloat16, {"positions-not-relative", "logits-differ"}, "at 256"),
        (positions_end_at_the_length, {"positions-not-relative", "logits-differ"}, "at position 256"),
    ],
)
def test_planted_faults_of_the_arithmetic_are_named(
    plant: Callable[[Any], None], expected: set[str], says: str, tmp_path: Path
) -> None:
    report = probed(made("llama", tmp_path), plant)
    assert expected <= faults(report)
    assert any(says in fault.said for fault in report.faults)
    assert faults(report) <= expected | {"logits-differ"}  # rounded frequencies may or may not move logits that far


def test_mpt_in_transformers_reads_neither_the_slopes_nor_the_switch_of_alibi_and_ends_at_its_length(
    tmp_path: Path,
) -> None:
    """Which the faults `alibi-slopes-unread`, `alibi-all-the-same` and `alibi-ends-at-length` say."""
    for name, keys, named in (
        ("slopes", {"alibi_bias_max": 4}, {"logits-differ"}),
        ("switch", {"alibi": False}, set()),
    ):
        folder = made("mpt", tmp_path / name, attn_config=keys)
        assert faults(probe(folder, read_subject(folder), CPU)) == named
    with quiet(), torch.inference_mode(), pytest.raises(RuntimeError):
        stock_model(folder, None, CPU)(torch.arange(LENGTH + 1)[None])


HEALTHY: dict[str, tuple[str, dict[str, Any], str]] = {
    "yarn": ("llama", {"rope_scaling": YARN}, "positions-relative"),
    "longrope": (
        "llama",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": LENGTH, "max_position_embeddings": 4 * LENGTH},
        "position-dependent",
    ),
    "smollm3": ("smollm3", {}, "positions-relative"),
    "falcon with ALiBi": ("falcon-alibi", {}, "positions-relative"),
    "opt": ("opt", {}, "position-dependent"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_raise_nothing(name: str, tmp_path: Path) -> None:
    family, changes, shift = HEALTHY[name]
    folder = made(family, tmp_path, **changes)
    report = probe(folder, read_subject(folder), CPU)
    assert faults(report) == set(), report.faults
    assert shift in {finding.name for finding in report.findings}
    if shift == "positions-relative":
        assert max(report.losses.values()) - min(report.losses.values()) < 1e-3
    else:
        assert max(report.losses.values()) - min(report.losses.values()) > 1e-2


def test_a_longrope_whose_passage_already_takes_the_long_list_has_no_fault(tmp_path: Path) -> None:
    """Transformers keeps the frequencies of the last text, which are not those that the model was loaded with."""
    lists = {each: LONGROPE[each] for each in ("short_factor", "long_factor")}
    scaling = {"type": "longrope", **lists}
    folder = made("phi3", tmp_path, rope_scaling=scaling, original_max_position_embeddings=LENGTH // 4)
    report = probe(folder, read_subject(folder), CPU)
    assert faults(report) == set(), report.faults
    assert "frequencies" in {finding.name for finding in report.findings}


@pytest.mark.parametrize("family", ["llama", "smollm3"])  # all layers turn, and some do
def test_angles_far_from_the_start_may_be_as_rough_as_float32_is(family: str, tmp_path: Path) -> None:
    """Position 2^19 has angles that float32 holds to 0.03 radians, which moves logits by more than other rounding."""
    folder = made(family, tmp_path, max_position_embeddings=2**17)
    report = probe(folder, read_subject(folder), CPU)
    assert list(report.losses) == [0, 2**17, 2**18, 2**19]
    assert faults(report) == set(), report.faults


def test_in_bfloat16_rounded_angles_are_faults_and_rounded_weights_and_states_are_not(tmp_path: Path) -> None:
    folder = made("llama", tmp_path)
    healthy = probed(folder, lambda _: None, torch.bfloat16)
    assert healthy.dtype == "bfloat16"
    assert faults(healthy) == set(), healthy.faults
    assert "positions-not-relative" in faults(probed(folder, angles_in_bfloat16, torch.bfloat16))


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


def test_a_tokenizer_without_tokens_for_english_is_as_none(tmp_path: Path) -> None:
    folder = made("llama", tmp_path)
    letters = {letter: n for n, letter in enumerate("абвгдежзик")}
    for known in (letters, letters | {":": len(letters)}):  # which the passage has once
        Tokenizer(models.BPE(vocab=known, merges=[])).save(str(folder / "tokenizer.json"))
        report = probe(folder, read_subject(folder), CPU)
        assert report.passage == f"{LENGTH // 2} tokens spread over the vocabulary"
        assert all(math.isfinite(loss) for loss in report.losses.values())
        assert faults(report) == set(), report.faults


def test_quantised_weights_are_refused_as_they_are_elsewhere(tmp_path: Path) -> None:
    folder = made("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    quantised = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config | quantised))
    said = "are quantised (gptq, 4 bits), which poscli does not run"
    for command in (("card", folder, "--probe"), ("extrapolate", "--model", folder)):
        assert_refused(command, 2, said)


@pytest.mark.parametrize(("content", "words"), [("{", "is no tokenizer"), (None, "a vocabulary of 40")])
def test_a_tokenizer_that_does_not_belong_to_the_model_is_refused(
    content: str | None, words: str, tmp_path: Path
) -> None:
    folder = made("llama", tmp_path, vocab_size=320 if content else 40)
    if content:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=words):
        passage(folder, read_subject(folder).architecture)
