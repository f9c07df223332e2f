"""A checkpoint that does not fit together is refused, and one that does is loaded once for all its encodings."""

from __future__ import annotations

import gc
import json
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import make
from cli_runner import assert_refused
from safetensors.torch import load_file, save_file

from poscli.checkpoints.architecture import architecture
from poscli.checkpoints.checkpoint_model import load_checked
from poscli.checkpoints.models import ReadCheckpoint, checkpoint_at, checkpoint_run, load_checkpoint
from poscli.config.run import RunConfig
from poscli.equation import Unsupported
from poscli.model.held import held
from poscli.system.errors import DataError
from poscli.tasks import open_task

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals must write nothing to the current folder, which others do not write to either if it is an empty one."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("corpus") / "text.jsonl"
    texts = [" ".join(f"{n} ships and {n * first} gulls" for n in range(first, first + 400)) for first in range(8)]
    file.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    open_task("language", f"whole:jsonl:{file}", f"hf:{make('llama', file.parent / 'llama')}")  # said once
    return f"jsonl:{file}"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return make("llama", tmp_path / "llama")


def config_of(folder: Path, corpus: str) -> RunConfig:
    return checkpoint_at(str(folder), CPU, corpus=corpus).run


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_weights(folder: Path, change: Callable[[Tensors], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a layer more": (
        lambda folder: change_config(folder, num_hidden_layers=4, layer_types=None),
        "lack 9 of the tensors of the model that config.json describes, such as model.layers.3.",
    ),
    "a tensor less": (
        lambda folder: change_weights(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight")),
        "lack 1 of the tensors",
    ),
    "one logit is not a number": (
        lambda folder: change_weights(folder, lambda tensors: tensors["lm_head.weight"][3].fill_(torch.nan)),
        "has logits that are no finite numbers: its weights are damaged; fetch them again",
    ),
    "text for a number": (lambda folder: change_config(folder, rms_norm_eps="small"), "cannot use"),
    "other sizes": (
        lambda folder: change_config(folder, num_key_value_heads=4),
        "have other shapes than config.json describes, such as model.layers.0.self_attn.k_proj.weight:",
    ),
    "a list for an object": (lambda folder: (folder / "generation_config.json").write_text("[]"), "cannot use"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_does_not_fit_together_is_refused_and_leaves_no_run(
    llama: Path, corpus: str, tmp_path: Path, name: str
) -> None:
    damage, message = DAMAGES[name]
    damage(llama)
    results = tmp_path / "results"
    options = ("--corpus", corpus, "--max-len", "1x", "--tokens", 64, "--out", results)
    assert_refused(("extrapolate", "--model", llama, *options), 4, message)
    assert not results.exists()


def test_another_number_of_layers_than_transformers_makes_is_refused(corpus: str, tmp_path: Path) -> None:
    """Its default of 32 stands where config.json has the number under a key of other types only."""
    folder = make("llama", tmp_path / "llama", num_hidden_layers=32)
    config = json.loads((folder / "config.json").read_text()) | {"n_layer": 4}
    del config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    said = "states 4 layers, and transformers makes 32; keep one key for the number of layers"
    options = ("--corpus", corpus, "--max-len", "1x", "--tokens", 64, "--out", tmp_path / "results")
    assert_refused(("extrapolate", "--model", folder, *options), 4, said)
    assert_refused(("card", folder, "--probe"), 4, said)


def test_a_tokenizer_has_at_most_the_tokens_that_the_model_knows(llama: Path, corpus: str, tmp_path: Path) -> None:
    read = checkpoint_at(str(llama), CPU, corpus=corpus)
    _, task = checkpoint_run(read, tmp_path, CPU)

    def knowing(rows: int) -> ReadCheckpoint:
        return replace(read, architecture=replace(read.architecture, vocab=rows))

    for rows in (task.vocab, task.vocab - 1):  # Gemma 3's tokenizer names an image token that has no row
        checkpoint_run(knowing(rows), tmp_path, CPU)
    with pytest.raises(DataError, match=f"has {task.vocab} tokens, and the model knows {task.vocab - 2}: they do not"):
        checkpoint_run(knowing(task.vocab - 2), tmp_path, CPU)
    assert not (tmp_path / "runs").exists()


def test_tensors_that_the_model_has_no_use_for_are_announced(
    llama: Path, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change_config(llama, num_hidden_layers=2, layer_types=None)
    load_checkpoint(config_of(llama, corpus), CPU)
    assert "has no use for 9 of the tensors in the weight files" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("family", ["gpt_neox", "bloom"])
def test_a_held_checkpoint_is_loaded_once_and_freed_afterwards(
    tmp_path: Path, corpus: str, family: str, request: pytest.FixtureRequest
) -> None:
    """Without the collector, which would free what lies in cycles at a time of its own choice."""
    gc.collect()
    gc.disable()
    request.addfinalizer(gc.enable)
    config = config_of(make(family, tmp_path / family), corpus)
    with held():
        first = load_checkpoint(config, CPU)
        assert load_checkpoint(config, CPU).stock is first.stock
        other = load_checkpoint(config.model_copy(update={"precision": "bfloat16"}), CPU)
        assert next(other.stock.parameters()).dtype == torch.bfloat16
        alive = [weakref.ref(p) for p in other.stock.parameters()]
        del first, other
        with held():  # which ends with the outer block
            assert load_checkpoint(config.model_copy(update={"precision": "bfloat16"}), CPU) is not None
        assert all(p() is not None for p in alive)
    assert not any(p() is not None for p in alive)
    assert load_checkpoint(config, CPU).stock is not load_checkpoint(config, CPU).stock


# The configuration of a run: sizes and number formats are those of the files.


@pytest.mark.parametrize(
    "wrong",
    [
        {"rope_theta": 5100.0},
        {"sliding_window": 22, "model_type": "mistral"},
        {"partial_rotary_factor": 0.5},
        {"rope_scaling": {"type": "linear", "factor": 1.02}},
    ],
)
def test_positions_that_differ_a_little_from_the_stock_models_are_noticed(llama: Path, wrong: dict[str, Any]) -> None:
    config = json.loads((llama / "config.json").read_text())
    load_checked(llama, architecture(config), CPU, None)
    with pytest.raises(DataError, match="the logits differ from those of transformers") as refused:
        load_checked(llama, architecture(config | wrong), CPU, None)
    off = re.search(r"by (\S+) of their spread, where rounding explains 0\.001;", str(refused.value))
    assert off is not None
    assert float(off[1]) > 0.001


HALVES = [
    ("llama", torch.bfloat16),
    ("gemma3", torch.float16),
    ("falcon-alibi", torch.bfloat16),
    ("gpt2", torch.float16),
]


@pytest.mark.parametrize(("family", "dtype"), HALVES)
def test_half_precision_is_within_its_rounding(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    folder = make(family, tmp_path / family)
    config = json.loads((folder / "config.json").read_text())
    model = load_checked(folder, architecture(config), CPU, dtype)
    exact = load_checked(folder, architecture(config), CPU, torch.float32)
    ids_BT = torch.arange(64)[None] * 37 % 320
    assert next(model.stock.parameters()).dtype == dtype
    with torch.inference_mode():
        found, expected = model(ids_BT).float(), exact(ids_BT)
    assert (found - expected).square().mean().sqrt() < 0.1 * expected.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_without_a_number_format_the_one_of_the_weights_is_kept(llama: Path, dtype: torch.dtype) -> None:
    change_weights(llama, lambda tensors: tensors.update({name: x.to(dtype) for name, x in tensors.items()}))
    change_config(llama, dtype=str(dtype).removeprefix("torch."), torch_dtype=str(dtype).removeprefix("torch."))
    config = json.loads((llama / "config.json").read_text())
    assert next(load_checked(llama, architecture(config), CPU, None).stock.parameters()).dtype == dtype


def test_a_held_checkpoint_is_loaded_again_where_its_length_or_its_weights_differ(tmp_path: Path, corpus: str) -> None:
    folder = make("gpt2", tmp_path / "gpt2")
    config = config_of(folder, corpus)
    with held():
        first = load_checkpoint(config, CPU)
        shorter = load_checkpoint(config.model_copy(update={"length": 32}), CPU)
        assert (first.shape.length, shorter.shape.length) == (64, 32)
        with pytest.raises(Unsupported, match="32 positions"):
            shorter(torch.zeros(1, 33, dtype=torch.long))
        change_weights(folder, lambda tensors: tensors["transformer.wte.weight"].mul_(2.0))
        changed = load_checkpoint(config_of(folder, corpus), CPU)
        assert not torch.equal(changed.stock.transformer.wte.weight, first.stock.transformer.wte.weight)


@pytest.mark.parametrize(
    ("family", "key", "length"),
    [("gpt2", "n_positions", 8), ("opt", "max_position_embeddings", 47), ("mpt", "max_seq_len", 8)],
)
def test_a_model_of_few_positions_can_be_loaded(
    tmp_path: Path, corpus: str, family: str, key: str, length: int
) -> None:
    config = config_of(make(family, tmp_path / family, **{key: length}), corpus)
    assert load_checkpoint(config, CPU).shape.length == length
