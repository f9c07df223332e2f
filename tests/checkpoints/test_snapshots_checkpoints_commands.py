"""Whole pages, documents and errors of `card`, `advise` and `extrapolate --model`, and what small models compute."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoint_cases import READ, Config, llama, of, scaled, sizes
from checkpoints import LENGTH, make, write_corpus
from cli_runner import Result, cli, document
from fake_results import Shape, results, units_of
from lines import outline
from published_configs import write

from poscli.checkpoints import matrix
from poscli.checkpoints.card import read_subject
from poscli.checkpoints.checkpoint_model import quiet, stock_model
from poscli.checkpoints.models import checkpoint_at
from poscli.checkpoints.probe import passage, probe_model
from poscli.checkpoints.source import CheckpointSource, find
from poscli.runs.results import Tables
from poscli.system import memory
from poscli.system.errors import PoscliError

Snapshot = Callable[..., None]
CPU = torch.device("cpu")
# What the versions of safetensors and transformers say, and differences that are rounding and nothing else.
OF_LIBRARIES = (
    r"\(Error while deserializing header[^)]*\)",
    r"(?<='lama' of DIR: )did you mean [^;]*",
    r"\d(\.\d+)?e-(0[5-9]|[1-9]\d)",
    r"(?<=by |nd )0(?= of| at| in)",
)


def masked(text: str, folder: Path) -> str:
    """A text without what depends on where and with which version of transformers it was made."""
    text = text.replace(str(folder), "DIR").replace(transformers.__version__, "VERSION").replace(COMMIT, "COMMIT")
    return re.sub("|".join(OF_LIBRARIES), "(...)", text)


# Files of a checkpoint.


def tensors(**shapes: tuple[str, list[int]]) -> bytes:
    """A file of weights in the format of safetensors, whose content is not even."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        begin, end = end, end + {"F32": 4, "BF16": 2, "F16": 2, "F64": 8}[dtype] * torch.Size(shape).numel()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return framed(json.dumps(header).encode()) + bytes(n % 251 for n in range(end))


def framed(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


def changed(content: bytes, place: int) -> bytes:
    """The same bytes, but for one, counted from the end."""
    return content[: len(content) - place] + b"\xff" + content[len(content) - place + 1 :]


CONFIG = json.dumps(llama()).encode()
WEIGHTS = tensors(a=("F32", [40, 25]), b=("BF16", [10, 7]))
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHOLE = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "tokenizer.json": b"{}"}
INDEX = "model.safetensors.index.json"


def index(*names: object) -> bytes:
    return json.dumps({"weight_map": {str(n): name for n, name in enumerate(names)}}).encode()


def shards(*names: str, **files: bytes) -> dict[str, bytes]:
    """A checkpoint whose list of weights has these names, and which has these files."""
    named = {f"{name}.safetensors": content for name, content in files.items()}
    return {"config.json": CONFIG, "tokenizer.json": b"{}", INDEX: index(*names), **named}


def less(name: str, **others: bytes) -> dict[str, bytes]:
    """The whole checkpoint without one file, and with others, whose names have two lines for a dot."""
    named = {other.replace("__", "."): content for other, content in others.items()}
    return {key: content for key, content in WHOLE.items() if key != name} | named


def weights(content: bytes) -> dict[str, bytes]:
    return WHOLE | {"model.safetensors": content}


def config(**keys: Any) -> dict[str, bytes]:
    return WHOLE | {"config.json": json.dumps(llama(**keys)).encode()}


FOLDERS: dict[str, dict[str, bytes]] = {
    "whole": WHOLE,
    "with more files": WHOLE | {"README.md": b"a", "other.safetensors": b"b", "pytorch_model.bin": b"c"},
    "with a tokenizer in two files": less("tokenizer.json", vocab__json=b"{}", merges__txt=b"a b"),
    "with its limit": WHOLE | {"tokenizer_config.json": b'{"model_max_length": 64}'},
    "with another limit": WHOLE | {"tokenizer_config.json": b'{"model_max_length": 65}'},
    "another byte in the middle of a tensor": weights(changed(WEIGHTS, 2140)),
    "another byte at its end, which is not looked at": weights(changed(WEIGHTS, 150)),
    "another byte of a short tensor": weights(changed(WEIGHTS, 1)),
    "another name of a tensor": weights(tensors(a=("F32", [40, 25]), c=("BF16", [10, 7]))),
    "without tensors": weights(tensors()),
    "several files": shards("x.safetensors", "y.safetensors", "x.safetensors", x=WEIGHTS, y=tensors(c=("F16", [9]))),
    "both a file and a list": shards("x.safetensors", x=WEIGHTS) | {"model.safetensors": WEIGHTS},
    "no config": less("config.json"),
    "an adapter": less("config.json", adapter_config__json=b"{}"),
    "no JSON": WHOLE | {"config.json": b"{"},
    "no object": WHOLE | {"config.json": b"[1]"},
    "no model type": config(model_type=None),
    "an unknown model type": config(model_type="lama"),
    "code of its own": config(model_type="own", auto_map={"AutoModel": "own.Model"}),
    "no tokenizer": less("tokenizer.json"),
    "no weights": less("model.safetensors"),
    "pickled weights": less("model.safetensors", z__pt=b"", pytorch_model__bin=b"", model__pkl=b""),
    "weights under another name": less("model.safetensors", b__safetensors=b"", a__safetensors=b""),
    "a list of nothing": shards(),
    "a list that leaves the folder": shards("../model.safetensors"),
    "a list of an empty name": shards(""),
    "a list of numbers": shards() | {INDEX: index(3)},
    "a missing file": shards("x.safetensors", "y.safetensors", "z.safetensors", x=WEIGHTS),
    "a truncated file": weights(WEIGHTS[:-3]),
    "a longer file": weights(WEIGHTS + b"1"),
    "less than a header": weights(WEIGHTS[:7]),
    "part of a header": weights(WEIGHTS[:30]),
    "a header that is no JSON": weights(framed(b"{")),
    "a header that is a list": weights(framed(b"[]")),
    "a tensor without a place": weights(framed(b'{"a": {}}')),
    "a cache of the hub": {"snapshots/0123abc/config.json": b"{}", "refs/main": b"0123abc"},
    "a tensor that ends before it begins": weights(framed(b'{"a": {"data_offsets": [4, 2]}}')),
}


def test_files_of_a_checkpoint(tmp_path: Path, snapshot: Snapshot) -> None:
    lines = []
    for n, (name, files) in enumerate(FOLDERS.items()):
        folder = filled(tmp_path / str(n), files)
        lines += [f"## {name}", *(masked(found(folder, config_only), folder) for config_only in (False, True))]
    for spec in ("nowhere", "org/name", "org/name@main", "0/config.json", "hf:", "hf:a/b/c", "hf:a b/c"):
        lines += [f"## {spec!r}", masked(found(spec), tmp_path)]
    snapshot("\n".join(lines))


def filled(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def found(spec: Path | str, config_only: bool = False) -> str:
    """What a source is, or the error."""
    try:
        source: CheckpointSource = find(str(spec), config_only=config_only)
    except PoscliError as error:
        return f"{type(error).__name__}: {error}"
    words = (source.spec, source.tokenizer, source.revision or "no revision", source.digest[:12], *source.weights)
    return " ".join(map(str, words))


# Runs of checkpoints.

WISHES: dict[str, tuple[Config, bytes, dict[str, Any]]] = {
    "as it is": (llama(), WEIGHTS, {}),
    "mostly in half precision": (llama(), tensors(a=("BF16", [500]), b=("F32", [40])), {}),
    "in float16": (llama(), tensors(a=("F16", [500])), {}),
    "in a format of its own": (llama(), tensors(a=("F64", [50])), {}),
    "without weights": (llama(), tensors(), {}),
    "in a precision": (llama(), WEIGHTS, {"precision": "float16"}),
    "trained on fewer tokens": (scaled("yarn", factor=4.0), WEIGHTS, {"length": 48, "corpus": "random"}),
    "with a hidden width": (llama(intermediate_size=77, head_dim=20), WEIGHTS, {}),
    "bloom": (sizes("bloom") | {"seq_length": 72, "n_inner": 88}, WEIGHTS, {}),
    "falcon": (of("falcon", alibi=True, ffn_hidden_size=66), WEIGHTS, {}),
    "opt": (of("opt", ffn_dim=55), WEIGHTS, {}),
    "gemma3": (READ["gemma3 with types"], WEIGHTS, {}),
    "quantised": (llama(quantization_config={"quant_method": "awq", "bits": 4}), WEIGHTS, {}),
    "the shortest": (llama(max_position_embeddings=8), WEIGHTS, {}),
    "too short": (llama(max_position_embeddings=7), WEIGHTS, {}),
    "too long": (llama(max_position_embeddings=2**30), WEIGHTS, {}),
    "too short as it is said": (llama(), WEIGHTS, {"length": 4}),
    "in no precision": (llama(), WEIGHTS, {"precision": "float61"}),
    "a header that contradicts itself": (llama(), tensors(a=("F32", [3])).replace(b"[3]", b"[4]"), {}),
    "a width of nothing": (llama(intermediate_size=0), WEIGHTS, {}),
}


def test_runs_of_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot) -> None:
    lines = []
    for name, (keys, content, wish) in WISHES.items():
        files = {"config.json": json.dumps(keys).encode(), "model.safetensors": content, "tokenizer.json": b"{}"}
        folder = filled(tmp_path / name.replace(" ", "-"), files)
        lines += [f"## {name}", masked(configured(folder, **wish), folder)]
    monkeypatch.setattr(memory, "free_memory", lambda _: 3000.0)
    lines += ["## too large", masked(configured(tmp_path / "as-it-is"), tmp_path)]
    snapshot("\n".join(lines))


def configured(folder: Path, **wish: Any) -> str:
    """The configuration of a checkpoint's run and the tokens that the model knows, or the error."""
    try:
        read = checkpoint_at(str(folder), CPU, **wish)
    except PoscliError as error:
        return f"{type(error).__name__}: {error}"
    run, rows = read.run, read.architecture.vocab
    assert run.checkpoint is not None
    known = run.checkpoint.model_dump(exclude={"digest"}, exclude_defaults=True)
    shape = run.model.model_dump(include={"layers", "width", "heads", "mlp"})
    words = [run.encoding, run.corpus, run.tokenizer, run.length, run.batch, run.tokens, run.precision, rows]
    return f"{json.dumps(words)} {json.dumps(shape)} {json.dumps(known)}"


# Cards.

CARDS: dict[str, tuple[Config, int | None]] = {
    "plain": (llama(), 96),
    "yarn": (READ["yarn with its ramp"], None),
    "gemma3": (READ["gemma3 scaled"], 10**15),
    "smollm3": (READ["smollm3"] | {"pad_token_id": None}, 64),
    "bloom": (READ["bloom with all sizes"], None),
    "mpt": (READ["mpt with its bias"], 720),
    "two faults": (scaled("linear", factor=1.0, beta_fast=3), None),
    "one head": (sizes("gpt2") | {"n_head": 1, "n_layer": 1, "n_positions": 72}, 72),
}


@pytest.mark.parametrize("name", CARDS)
def test_the_page_of_a_card(name: str, tmp_path: Path, snapshot: Snapshot) -> None:
    asked, limit = CARDS[name]
    found = cli("card", write(tmp_path, asked, limit))
    snapshot(page(found, tmp_path), f"card-{name.replace(' ', '-')}", rounded=True)


def test_the_document_of_a_card(tmp_path: Path, snapshot: Snapshot) -> None:
    asked, limit = CARDS["gemma3"]
    found = cli("card", write(tmp_path, asked | {"no_rope_layers": [1]}, limit), "--json")
    snapshot(masked("\n".join(outline(found.json)), tmp_path), rounded=True)


def page(found: Result, folder: Path) -> str:
    """Both streams of a command and its exit code, without what whichever comes first says: it prepares the corpus."""
    lines = [line.rstrip() for line in masked(found.out, folder).splitlines()]
    notes = [line for line in masked(found.err, folder).split("\n") if not line.startswith("preparing the corpus ")]
    return "\n".join([*lines, *notes, f"exit code {found.code}"])


# Small models: what a probe finds, and what the commands measure.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some models and a corpus of sixteen documents."""
    folder = tmp_path_factory.mktemp("place")
    changes: dict[str, dict[str, Any]] = {"llama": {}, "gpt2": {}, "bloom-6": {}, "gemma3": {}}
    with quiet():
        for family, keys in changes.items():
            make(family, folder / family, **keys)
        make("llama", folder / "dynamic", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    write(folder / "config", llama())
    write_corpus(folder / "text.jsonl")
    return folder


def another_theta(stock: Any) -> None:
    stock.model.rotary_emb.inv_freq = 10000.0 ** -(torch.arange(4) / 4)


def sharper(stock: Any) -> None:
    stock.model.rotary_emb.attention_scaling = 1.1


def absolute(stock: Any) -> None:
    """Rotations of positions that are rounded down to a multiple of 50."""
    plain = stock.model.rotary_emb.forward
    stock.model.rotary_emb.forward = lambda x, position_ids: plain(x, position_ids // 50 * 50)


def nothing(stock: Any) -> None:
    pass


PROBED: dict[str, tuple[str, Callable[[Any], None]]] = {
    "another theta": ("llama", another_theta),
    "another factor on cos and sin": ("llama", sharper),
    "positions in steps": ("llama", absolute),
    "bloom": ("bloom-6", nothing),
    "gpt2": ("gpt2", nothing),
    "gemma3": ("gemma3", nothing),
}


def test_what_a_probe_finds(place: Path, snapshot: Snapshot) -> None:
    lines = []
    for name, (family, plant) in PROBED.items():
        subject = read_subject(place / family)
        ids_BT, words = passage(place / family, subject.architecture)
        with quiet():
            stock = stock_model(place / family, None, CPU)
            plant(stock)
            probed = probe_model(stock, place / family, subject, ids_BT, words)
        losses = ", ".join(f"{loss:.3f} at {start}" for start, loss in probed.losses.items())
        lines += [f"## {name}: {probed.passage}, {probed.dtype}, {losses}"]
        lines += [masked(f"{'fault ' * each.fault}{each.name}: {each.said}", place) for each in probed.findings]
    snapshot("\n".join(lines), rounded=True)


def test_the_page_of_a_probe(place: Path, snapshot: Snapshot) -> None:
    text = page(cli("card", place / "dynamic", "--probe"), place)
    # Lines end elsewhere where a masked number has more digits.
    snapshot(re.sub(r"(?<=^    )(\S.*)\n    (?=\S)", r"\1 ", text, flags=re.MULTILINE), rounded=True)


COLUMNS = ("encoding", "length", "protocol", "variant", "status", "reason", "tokens", "bytes", "documents")
LOSSES = ("nll", "bpb", "unigram", "gain", "gain_low", "gain_high")


def corpus(place: Path, out: Path) -> tuple[object, ...]:
    return ("--corpus", f"jsonl:{place / 'text.jsonl'}", "--out", out)


def test_what_extrapolate_measures(place: Path, tmp_path: Path, snapshot: Snapshot) -> None:
    budget = ("--max-len", "2x", "--tokens", 64, "--stride", 16, *corpus(place, tmp_path / "results"))
    asked = ("--as", "yarn(factor=2)", "--baseline", "sink(2)+window(24)", "--length", 32)
    rows = document("extrapolate", "--model", place / "llama", *budget, *asked)
    lines = []
    for row in (each for each in rows if each["protocol"] != "fixed"):  # which scores the same windows here
        numbers = ["-" if row[name] is None else f"{round(row[name], 4) + 0.0:.4f}" for name in LOSSES]
        lines.append(" ".join([*(str(row[name]) for name in COLUMNS), *numbers]))
    snapshot(masked("\n".join(lines), place), rounded=True)


REFUSALS: tuple[tuple[object, ...], ...] = (
    ("extrapolate", "--model", "nowhere"),
    ("extrapolate", "--corpus", "stdlib"),
    ("extrapolate", "--precision", "float16"),
    ("extrapolate", "--length", 9),
    ("extrapolate", "--model", "{}/llama", "--enc", "rope"),
    ("extrapolate", "--model", "{}/llama", "--run", "0123"),
    ("extrapolate", "--model", "{}/llama", "--as", "alibi"),
    ("extrapolate", "--model", "{}/llama", "--as", "learned"),
    ("extrapolate", "--model", "{}/bloom-6", "--as", "yarn"),
    ("extrapolate", "--model", "{}/llama", "--max-len", "x"),
    ("extrapolate", "--model", "{}/llama", "--as", "none", "--recalibrate", "1k"),
    ("extrapolate", "--model", "{}/llama", "--length", 7),
    ("extrapolate", "--model", "{}/llama", "--precision", "half"),
    ("advise", "{}/llama", "--target", "long"),
    ("advise", "{}/llama", "--target", "1x"),
    ("advise", "{}/llama", "--target", "0.5x"),
    ("advise", "{}/llama", "--target", "1.01x"),
    ("advise", "{}/llama", "--target", "9999999999"),
    ("advise", "{}/llama", "--target", "2x", "--tokens", "some"),
    ("advise", "{}/llama", "--target", "2x", "--runtime", "vlm"),
    ("advise", "{}/llama", "--target", "2x", "--as", "alibi"),
    ("advise", "{}/gpt2", "--target", "2x", "--as", "yarn"),
    ("card", "{}/text.jsonl"),
    ("card", "{}/config", "--probe"),
)


def test_what_commands_refuse(place: Path, tmp_path: Path, snapshot: Snapshot) -> None:
    lines = []
    for words in REFUSALS:
        found = cli(*(str(word).replace("{}", str(place)) for word in words))
        lines.append(masked(f"{' '.join(map(str, words))} -> {found.code}: {found.err.strip()}", place))
    assert not list(tmp_path.iterdir())  # a refused command writes nothing
    snapshot("\n".join(lines))


# By name: the loss at the trained length, and the gain at the target by its octaves; and the options of the command.
ADVISED: dict[str, tuple[dict[str, Shape], tuple[object, ...]]] = {
    "a scaling": (
        {
            "own": (1.3, lambda octaves: -0.5 * octaves),
            "yarn(factor=2.0, base=5000.0)": (1.31, lambda octaves: 0.2 * octaves),
            "rope-linear(factor=2.0, base=5000.0)": (1.4, lambda octaves: 0.05 * octaves),
        },
        ("--runtime", "vllm", "--runtime", "transformers"),
    ),
    "no key": (
        {
            "own": (1.3, lambda octaves: -0.5 * octaves),
            "rerope(base=5000.0)": (1.3, lambda octaves: 0.3 * octaves),
            "rope-ntk(factor=2.0, base=5000.0)": (1.3, lambda octaves: 0.1 * octaves),
        },
        ("--runtime", "llama.cpp"),
    ),
    "the last tokens": ({"own": (1.3, lambda octaves: -0.5 * octaves), "none": (1.3, None)}, ()),
    "as it is": ({"own": (1.3, lambda octaves: 0.2 * octaves), "none": (1.4, lambda octaves: -octaves)}, ()),
}


@pytest.mark.parametrize("name", ADVISED)
def test_the_page_of_advice(
    name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    behaviours, options = ADVISED[name]
    names = {"llama" if each == "own" else f"llama as {each}": shape for each, shape in behaviours.items()}
    rows, _ = results(names, train_length=LENGTH, lengths=(LENGTH, 2 * LENGTH))
    monkeypatch.setattr(matrix, "measured", lambda _: Tables(rows, rows, {"units": units_of(rows, documents=16)}))
    asked = [word for each in behaviours if each != "own" for word in ("--as", each)]
    found = cli("advise", place / "llama", "--target", "2x", *asked, *options, *corpus(place, tmp_path / "results"))
    parts = page(found, place).split("\n\n")
    kept = [part for part in parts if not part.startswith("gain: ")]  # what the columns mean is for tests of reports
    snapshot("\n\n".join(kept), f"advice-{name.replace(' ', '-')}", rounded=True)


def test_the_jobs_of_advice(place: Path, tmp_path: Path, snapshot: Snapshot) -> None:
    """All encodings that need no training, with the factor for a target of three times the trained length."""
    lines = []
    for family in ("llama", "gpt2", "bloom-6"):
        plan = document("advise", place / family, "--target", "3x", "--dry-run", *corpus(place, tmp_path / "results"))
        lines += [f"## {family}", *(job["encoding"] for job in plan["jobs"])]
    assert not (tmp_path / "results").exists()
    snapshot("\n".join(lines), rounded=True)
