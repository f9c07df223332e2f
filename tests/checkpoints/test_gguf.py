"""Files of llama.cpp as checkpoints: the weights, positions and tokens of the checkpoint that they were made of."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import make
from cli_runner import cli
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from poscli.checkpoints.models import checkpoint_at, load_checkpoint
from poscli.checkpoints.source import find
from poscli.data import tokenizers
from poscli.system.errors import CORRUPT, DATA, USAGE

CPU = torch.device("cpu")


PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    folder: Path, path: Path, more: Mapping[str, str | float] | None = None, *, opens: bool = True, extra: bool = False
) -> Path:
    """Write the Llama in a folder to a GGUF file, in float32; `more` are further texts and numbers of its metadata.

    `opens` says whether a token stands in front of every text; with `extra` there is a tensor that no Llama has.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    for key, value in (more or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_float32(key, value)
    words = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3 if word.startswith("<|") else 1 for word in words])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(opens)
    if extra:
        writer.add_tensor("blk.0.attn_q.bias", np.zeros(config["hidden_size"], np.float32))
    for name, weight in load_file(folder / "model.safetensors").items():
        tensor = weight.numpy()
        stem, kind = name.rsplit(".", 1)
        if stem in OTHERS:
            writer.add_tensor(f"{OTHERS[stem]}.{kind}", tensor)
            continue
        _, _, layer, part = stem.split(".", 3)
        turned = {"attn_q": heads, "attn_k": kv_heads}.get(PARTS[part])
        writer.add_tensor(f"blk.{layer}.{PARTS[part]}.{kind}", neighbours(tensor, turned) if turned else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def neighbours(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """The rows of a projection with the two channels of each rotated pair side by side, as llama.cpp has them."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture
def file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path / "cache"))
    return write_gguf(folder, tmp_path / "tiny.gguf")


def test_a_file_has_the_logits_the_positions_and_the_tokens_of_the_checkpoint(folder: Path, file: Path) -> None:
    text = "The keeper counted the ships.\nThey had not arrived, and the harbour was dark."
    found = {}
    for name in (folder, file, file.parent):
        config = checkpoint_at(str(name), CPU).run
        model = load_checkpoint(config, CPU)
        with torch.inference_mode():
            logits = torch.cat([part for _, part in model.logits_in_slices(torch.arange(60)[None])], dim=1)
        found[name] = config.encoding, logits, tokenizers.tokenizer(config.tokenizer).encode(text.encode())
    encoding, logits, tokens = found[folder]
    for name in (file, file.parent):
        assert found[name][0] == encoding
        torch.testing.assert_close(found[name][1], logits, rtol=0, atol=1e-5 * float(logits.std()))
        assert list(found[name][2]) == list(tokens)
    assert checkpoint_at(str(file), CPU).name == "tiny"


def test_a_file_is_unpacked_once_and_its_card_needs_no_weights(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = cli("card", file)
    assert card.code == 0
    assert "No faults" in card.out
    assert not list((file.parent / "cache").rglob("*.safetensors"))
    first = find(str(file))
    assert "unpacking" in capsys.readouterr().err
    assert find(str(file)) == first
    assert capsys.readouterr().err == ""
    assert first.spec == str(file)


def test_a_file_that_changed_anywhere_is_unpacked_again(file: Path, tmp_path: Path) -> None:
    wide = write_gguf(make("llama", tmp_path / "wide", intermediate_size=8192), file)
    before = find(str(wide), config_only=True).folder
    content = bytearray(wide.read_bytes())
    content[100_000] ^= 1  # between the first two samples
    wide.write_bytes(content)
    assert find(str(wide), config_only=True).folder != before


def test_what_cannot_be_read_is_refused_in_one_line(folder: Path, file: Path) -> None:
    split = write_gguf(folder, file.with_name("split.gguf"), {"tokenizer.ggml.pre": "llama-bpe"})
    biased = write_gguf(folder, file.with_name("biased.gguf"), extra=True)
    scaled = write_gguf(folder, file.with_name("scaled.gguf"), {"llama.rope.scaling.type": "yarn"})
    unknown, damaged = file.with_name("unknown.gguf"), file.with_name("damaged.gguf")
    unknown.write_bytes(file.read_bytes().replace(b"llama", b"lambo"))
    damaged.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    other = file.with_name("other.gguf")
    other.write_text("no model")
    for path, code, said in (
        (file.parent, DATA, "holds 7 GGUF files; name one"),
        (scaled, USAGE, "scales rope (yarn), which transformers does not read from a GGUF file"),
        (unknown, USAGE, "lambo"),
        (damaged, CORRUPT, "is damaged"),
        (other, CORRUPT, "is no GGUF file"),
    ):
        for command in (("card",), ("extrapolate", "--model")):
            result = cli(*command, path)
            assert (result.code, result.out) == (code, ""), (path, result.err)
            assert said in result.err
            assert [line.split(":")[0] for line in result.err.splitlines() if not line.startswith("unpacking")] == [
                "error"
            ]

    for path, said in (  # a card reads neither weights nor texts
        (split, r"splits texts as llama-bpe does, which transformers does not read from a GGUF file"),
        (biased, r"cannot read .*biased.gguf: it reads \d+ of its \d+ numbers"),
    ):
        result = cli("extrapolate", "--model", path)
        assert result.code == USAGE
        assert re.search(said, result.err)
        assert cli("card", path).code == 0


@pytest.mark.parametrize("opens", [True, False])
def test_texts_are_opened_and_split_as_the_file_says(opens: bool, folder: Path, file: Path) -> None:
    path = write_gguf(folder, file.with_name("said.gguf"), {"tokenizer.ggml.pre": "smollm"}, opens=opens)
    tokenizer = tokenizers.tokenizer(checkpoint_at(str(path), CPU).run.tokenizer)
    assert tokenizer.opens is opens
    assert tokenizer.end == (0 if opens else 1)
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode(b"in 1987")]
    assert pieces[-4:] == [b"1", b"9", b"8", b"7"]


def test_a_link_to_a_file_of_another_name_is_read_as_the_hub_keeps_it(file: Path) -> None:
    blob = file.rename(file.with_name("0123abcd"))
    file.symlink_to(blob)
    assert checkpoint_at(str(file), CPU).name == "tiny"


@pytest.mark.parametrize("key", ["llama.rope.scaling.factor", "llama.rope.scale_linear"])
def test_a_factor_without_a_type_is_linear_scaling_as_llama_cpp_reads_it(key: str, folder: Path, file: Path) -> None:
    assert cli("card", write_gguf(folder, file, {key: 1.0})).code == 0
    result = cli("card", write_gguf(folder, file, {key: 4.0}))
    assert (result.code, result.out) == (USAGE, "")
    assert "scales rope (linear), which transformers does not read from a GGUF file" in result.err
    assert cli("card", write_gguf(folder, file, {key: 4.0, "llama.rope.scaling.type": "none"})).code == 0


def test_a_file_that_lacks_tensors_is_refused_and_nothing_of_it_is_kept(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing transformers draws at random. A head that is the table of embeddings is not missing."""
    short = shutil.copytree(folder, file.with_name("short"))
    tensors = load_file(short / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if ".layers.2." not in name}
    save_file(kept, short / "model.safetensors", metadata={"format": "pt"})
    result = cli("extrapolate", "--model", write_gguf(short, file.with_name("short.gguf")))
    assert (result.code, result.out) == (DATA, "")
    assert "short.gguf lacks 9 of the tensors of its model, such as model.layers.2." in result.err
    assert not [path for path in (file.parent / "cache" / "gguf").iterdir() if path.is_dir()]
    left = file.parent / "cache" / "gguf"
    with monkeypatch.context() as killed:  # so that nothing is tidied up
        killed.setattr("poscli.checkpoints.gguf.shutil.rmtree", lambda *_, **__: None)
        cli("extrapolate", "--model", file.with_name("short.gguf"))
    cli("extrapolate", "--model", file.with_name("short.gguf"))
    assert not [path for path in left.iterdir() if path.is_dir()]
    tied = make("llama", file.with_name("tied"), tie_word_embeddings=True)
    assert find(str(write_gguf(tied, file.with_name("tied.gguf")))).weights


def test_a_part_of_a_model_is_refused_by_its_name_and_what_is_whole_is_taken(file: Path) -> None:
    parts = file.with_name("parts")
    parts.mkdir()
    for n in (1, 2):
        shutil.copy(file, parts / f"tiny-0000{n}-of-00002.gguf")
    for path in (parts, parts / "tiny-00001-of-00002.gguf"):
        result = cli("card", path)
        assert result.code == USAGE
        assert "tiny-00001-of-00002.gguf is one part of a model; join them" in result.err
        assert "llama-gguf-split --merge" in result.err
    whole = shutil.copy(file, parts / "tiny-00001-of-00001.gguf")
    assert find(str(parts), config_only=True).spec == str(whole)
