"""Models whose layers lie in several places: on several GPUs, or with weights that are fetched as layers compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from checkpoints import LENGTH, make
from torch import Tensor, nn

from poscli.attention import ENGINES
from poscli.checkpoints import checkpoint_model
from poscli.checkpoints.architecture import architecture
from poscli.checkpoints.checkpoint_model import converted, load_checked, trunk_of
from poscli.checkpoints.models import checkpoint_at
from poscli.checkpoints.source import config_in
from poscli.checkpoints.spread import placement
from poscli.config.size import evaluation_bytes, weight_bytes
from poscli.estimate import unaffordable_window
from poscli.evaluation.posthoc import with_encoding
from poscli.model.cache import Cache
from poscli.system.errors import UsageError

CPU, META = torch.device("cpu"), torch.device("meta")
TOKENS = torch.arange(2 * LENGTH)[None] % 61


def fetched(folder: Path) -> dict[str, str]:
    """A place for each module of a model: all layers but the first, and learned positions, are fetched from disk."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prefix, places = model.base_model_prefix, {}
    for name, child in model.base_model.named_children():
        if isinstance(child, nn.ModuleList):
            places |= {f"{prefix}.{name}.{n}": "disk" if n else "cpu" for n in range(len(child))}
        else:
            places[f"{prefix}.{name}"] = "disk" if name == "wpe" else "cpu"
    return places | {name: "cpu" for name, _ in model.named_children() if name != prefix}


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss"])
def test_weights_that_are_fetched_when_a_layer_computes_give_the_same_logits(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(family, tmp_path / family)
    known = architecture(config_in(folder), None)
    whole = load_checked(folder, known, CPU, torch.float32)
    places = {"device_map": fetched(folder), "offload_folder": str(tmp_path / "offloaded")}
    monkeypatch.setattr(checkpoint_model, "placement", lambda *_: places)
    spread = load_checked(folder, known, CPU, torch.float32)
    assert any(weight.is_meta for weight in spread.parameters())
    tokens = TOKENS[:, : known.length]
    with torch.inference_mode():
        assert torch.equal(spread(tokens), whole(tokens))
        under = [with_encoding(model, "alibi", known.spec) for model in (whole, spread)]
        assert torch.equal(under[1](tokens), under[0](tokens))


@pytest.mark.parametrize(
    ("gpus", "free", "device", "spread"),
    [(2, 1000, "cuda", True), (1, 1000, "cuda", False), (2, 1000, "cuda:1", False), (2, 10**9, "cuda", False)],
)
def test_a_model_is_spread_where_one_gpu_is_too_small_and_any_will_do(
    gpus: int, free: int, device: str, spread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make("llama", tmp_path / "llama")
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("poscli.checkpoints.spread.free_memory", lambda at: free if at.type == "cuda" else 2000)
    most = {0: 800, 1: 800, "cpu": 1600}
    asked = {"device_map": "auto", "max_memory": most} if spread else {}
    assert placement(folder, torch.bfloat16, torch.device(device)) == asked


@pytest.mark.parametrize(
    ("gpus", "share", "refused"), [(2, 0.5, False), (1, 0.5, True), (2, 0.25, True), (1, 1.2, False), (12, 0.1, False)]
)
def test_a_model_must_fit_all_places_where_its_layers_may_lie(
    gpus: int, share: float, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each GPU, and main memory, has a share of what the weights take, nine tenths of which may be used."""
    folder = make("llama", tmp_path / "llama")
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("poscli.system.memory.free_memory", lambda _: share * weights)
    monkeypatch.setattr("poscli.checkpoints.spread.free_memory", lambda _: share * weights)
    assert bool(placement(folder, torch.float32, torch.device("cuda"))) == (gpus > 1)
    if refused:
        with pytest.raises(UsageError, match="use a larger machine"):
            checkpoint_at(str(folder), torch.device("cuda"), precision="float32")
        return
    read = checkpoint_at(str(folder), torch.device("cuda"), precision="float32")
    assert unaffordable_window(read.run, LENGTH, torch.device("cuda")) == ""


def test_the_memory_of_weights_that_are_loaded_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checkpoint_at(str(make("llama", tmp_path / "llama")), CPU, precision="float32").run
    rest = evaluation_bytes(run, CPU, batch=1, length=8) - weight_bytes(run)
    monkeypatch.setattr("poscli.system.memory.free_memory", lambda _: rest / 2)  # the estimate is rough
    assert "needs about" in unaffordable_window(run, 8, CPU)
    assert unaffordable_window(run, 8, CPU, loaded=True) == ""


class Moved:
    """A layer that computes on another device, to which it takes what it is given, as accelerate has it."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        module.to(device)
        module._hf_hook = SimpleNamespace(execution_device=device)  # type: ignore[assignment]
        module.register_forward_pre_hook(self, with_kwargs=True)
        self.device = device

    def __call__(self, module: nn.Module, given: Any, named: Any) -> Any:
        return self.moved(given), self.moved(named)

    def moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.device)
        if isinstance(value, dict):
            return {name: self.moved(each) for name, each in value.items()}
        return type(value)(map(self.moved, value)) if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss", "bloom", "gpt_neox"])
@pytest.mark.parametrize("target", ["", "kerple-log", "alibi+window(8)"])
def test_every_layer_has_its_encoding_on_its_own_device(family: str, target: str, tmp_path: Path) -> None:
    """No GPU is needed: torch refuses to compute with tensors of the CPU and of the device `meta` together."""
    folder = make(family, tmp_path / family)
    known = architecture(config_in(folder), None)
    stock = checkpoint_model.stock_model(folder, torch.float32, CPU)
    trunk = trunk_of(stock)
    *_, last = next(getattr(trunk, name) for name in ("layers", "h") if hasattr(trunk, name))
    model = converted(stock, known)
    Moved(last, META)
    Moved(next(getattr(trunk, name) for name in ("norm", "ln_f", "final_layer_norm") if hasattr(trunk, name)), META)
    Moved(stock.get_output_embeddings(), META)
    model = with_encoding(model, target, known.spec) if target else model.under(model.encodings)
    model = model.under(model.encodings, replace(ENGINES["reference"], devices=("cpu", "meta")))
    cache, half = Cache(), known.length // 2
    for tokens, past in ((TOKENS[:, :half], cache), (TOKENS[:, half : 2 * half], cache), (TOKENS[:, : 2 * half], None)):
        logits = model(tokens, cache=past)
        assert logits.is_meta
        assert logits.shape == (*tokens.shape, known.vocab)
