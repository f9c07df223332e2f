"""Checkpoints in GGUF, the files of llama.cpp: dequantised and written as a checkpoint of transformers, once.

The numbers are those of the file, in float32, in which every quantised number is exact. transformers reads the sizes,
the weights and the tokenizer. It drops scalings of rope, so a file that has one is refused.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from poscli.system.console import note
from poscli.system.errors import CorruptError, DataError, UsageError
from poscli.system.files import cache_folder, make_in_cache
from poscli.system.memory import unaffordable
from poscli.system.text import printable

SUFFIX = ".gguf"
FIRST_BYTES = b"GGUF"
# Version of what is kept. The first one held random weights where a file lacked tensors, the second one files whose
# scaling of rope has no type, the third one tokenizers that put a token in front of every text, and thetas of 10000.
UNPACKED = 4
PART = re.compile(r"-\d{5}-of-(?!00001)\d{5}$")  # how the name of one of several files of a model ends
SAMPLES, PIECE_BYTES = 64, 2**16  # read of a file, evenly spaced, to identify it
LONG_LISTS = ("tokens", "scores", "token_type", "merges")  # of the tokenizer
# Ways to split texts for which llama.cpp opens a text with a token where the file does not say it.
OPENING = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")
# How byte-level tokenizers split a text first, by llama.cpp's names: as GPT-2 or as Qwen 2 does, as transformers reads
# it, and as GPT-2 does after each digit was split off. transformers takes all others for GPT-2's.
AS_GPT2, OF_DIGITS = (None, "default", "gpt-2", "qwen2"), ("smollm", "starcoder", "command-r")
WITHOUT_THETA = ("starcoder2", "stablelm")  # model types whose theta transformers leaves in the file
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # tensors that scale rope


def file_in(path: Path) -> Path | None:
    """The GGUF file that a path names: itself, or the only one in a folder without config.json; None if there is none.

    DataError if a folder holds several, UsageError for a part of a model.
    """
    if path.is_file():
        files = [path] if path.suffix == SUFFIX else []
    else:
        files = [] if (path / "config.json").is_file() else sorted(path.glob(f"*{SUFFIX}"))
    whole = [file for file in files if not PART.search(file.stem)]
    if files and not whole:
        raise UsageError(
            f"{printable(files[0])} is one part of a model; join them with llama.cpp's `llama-gguf-split --merge FIRST "
            "JOINED`, and name the joined file"
        )
    if len(whole) > 1:
        raise DataError(f"{printable(path)} holds {len(whole)} GGUF files; name one, such as {printable(whole[0])}")
    return whole[0] if whole else None


def unpacked(path: Path, *, config_only: bool = False) -> Path:
    """The folder in the cache that holds a GGUF file as a checkpoint of transformers; it is made if it is not there.

    With `config_only` it holds config.json and nothing else; otherwise a note says that it is made.

    UsageError if a package is missing or the model or its scaling is one that transformers cannot read from such a
    file, CorruptError if it is damaged, DataError if it lacks tensors.
    """
    for package in ("transformers", "gguf", *(() if config_only else ("accelerate",))):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{printable(path)} needs the package {package} to be read: pip install 'poscli[gguf]'")
    try:
        root = cache_folder() / "gguf"
        folder = root / f"{path.stem}-{_mark(path)}-{UNPACKED}{'-config' * config_only}"
        make_in_cache(root)
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():
                content = _check(path)
                if not config_only:
                    _refuse_unreadable(path, content)
                    note(f"unpacking {printable(path)}, once; it is kept in {folder}")
                made = root / f".{folder.name}.partial"
                shutil.rmtree(made, ignore_errors=True)  # what a killed process left
                made.mkdir()
                try:
                    _unpack(path, content, made, config_only)
                    made.rename(folder)
                finally:
                    shutil.rmtree(made, ignore_errors=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{printable(path)} cannot be unpacked: {getattr(error, 'strerror', None) or error}; check the file and "
            "the free space of the disk, or set POSCLI_CACHE to a folder with more"
        ) from error
    return folder


def _mark(path: Path) -> str:
    """Twelve hex digits of a hash over the size of a file, the time when it was written, and samples of its content.

    Whole tensors lie between the samples, and where each one lies is known only from all of the metadata, which takes
    seconds to read. So a file that was written again is unpacked again, even if nothing in it has changed.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(f"{size} {path.stat().st_mtime_ns}".encode())
    with path.open("rb") as file:
        for n in range(SAMPLES):
            file.seek(n * max(0, size - PIECE_BYTES) // (SAMPLES - 1), os.SEEK_SET)
            digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Content:
    """What a file says beside its weights."""

    fields: Mapping[str, Any]  # the metadata, without long lists
    special: Mapping[str, str]  # by name, bos and eos, the token that stands for it
    numbers: int  # in its tensors, without those of an output layer of its own

    def value(self, key: str) -> Any:
        """The value whose name ends so; None if there is none."""
        return next((value for name, value in self.fields.items() if name.endswith(f".{key}")), None)

    @property
    def opens(self) -> bool:
        """Whether a token stands in front of every text."""
        said = self.value("ggml.add_bos_token")
        usual = self.value("ggml.model") == "llama" or self.value("ggml.pre") in OPENING
        return usual if said is None else bool(said)


def _check(path: Path) -> Content:
    """The content of a file; CorruptError for one that is damaged or is not in GGUF.

    UsageError for one that scales rope, and for numbers that the package gguf does not know.
    """
    from gguf import GGUFReader

    with path.open("rb") as file:
        if file.read(len(FIRST_BYTES)) != FIRST_BYTES:
            raise CorruptError(f"{printable(path)} is no GGUF file: it does not begin with {FIRST_BYTES.decode()}")
    try:
        reader = GGUFReader(path)
        short = {key: field for key, field in reader.fields.items() if key.rpartition(".")[2] not in LONG_LISTS}
        fields: Mapping[str, Any] = {key: field.contents() for key, field in short.items()}
        ids = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        words = reader.fields.get("tokenizer.ggml.tokens")
        special = {name: words.contents(n) for name, n in ids.items() if words is not None and n is not None}
        tensors = {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    except Exception as error:  # what a damaged file makes the package raise can be anything
        if "is not a valid GGMLQuantizationType" in str(error) or "version" in str(error):
            raise UsageError(
                f"the package gguf cannot read {printable(path)} ({error}); take another quantisation of the model"
            ) from error
        raise CorruptError(f"{printable(path)} is damaged ({type(error).__name__}); fetch it again") from error
    if kind := _scaling(fields) or ("by factors" if tensors.keys() & set(FACTORS) else ""):
        raise UsageError(
            f"{printable(path)} scales rope ({kind}), which transformers does not read from a GGUF file; name the "
            "checkpoint that it was converted from"
        )
    return Content(fields, special, sum(count for name, count in tensors.items() if name != "output.weight"))


def _refuse_unreadable(path: Path, content: Content) -> None:
    """UsageError for a file whose splitting of texts transformers does not know, or that does not fit the memory."""
    splits = content.value("ggml.pre")
    if content.value("ggml.model") == "gpt2" and splits not in (*AS_GPT2, *OF_DIGITS):
        raise UsageError(
            f"{printable(path)} splits texts as {printable(str(splits))} does, which transformers does not read from a "
            "GGUF file; name the checkpoint that it was converted from"
        )
    if why := unaffordable(4 * content.numbers, torch.device("cpu")):
        raise UsageError(f"{printable(path)} {why} to be unpacked; use a larger machine")


def _scaling(fields: Mapping[str, Any]) -> str:
    """How the metadata of a file scale rope, such as "yarn"; "" if they do not."""

    def value(key: str) -> Any:
        return next((value for name, value in fields.items() if name.endswith(f".rope.{key}")), None)

    kind = value("scaling.type") or "linear"  # which llama.cpp takes where there is no type
    factor = value("scaling.factor") or value("scale_linear") or 1.0  # the second one is the older name
    if kind == "none" or (kind == "linear" and factor == 1):
        return ""
    return str(kind)


def _unpack(path: Path, content: Content, folder: Path, config_only: bool) -> None:
    import transformers

    from poscli.checkpoints.checkpoint_model import quiet

    try:
        with quiet():
            if config_only:
                config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
                _complete(config, content)
                config.save_pretrained(folder)
                return
            tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            # Newer versions keep quantised weights as they are unless they are told.
            config_of: Any = getattr(transformers, "GgufConfig", None)
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=torch.float32,
                output_loading_info=True,
                **({"quantization_config": config_of(dequantize=True)} if config_of else {}),
            )
            model, report = loaded
            if missing := report["missing_keys"]:  # which transformers has drawn at random
                raise DataError(
                    f"{printable(path)} lacks {len(missing)} of the tensors of its model, such as {min(missing)}; "
                    "fetch it again"
                )
            read = sum(each.numel() for name, each in model.named_parameters() if not name.startswith("lm_head."))
            if read != content.numbers:
                raise ValueError(f"it reads {read} of its {content.numbers} numbers")
            _complete(model.config, content)
            model.save_pretrained(folder)
            _save_tokenizer(tokenizer, content, folder)
    except (OSError, DataError):
        raise
    except Exception as error:  # transformers checks little
        said = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise UsageError(
            f"transformers {transformers.__version__} cannot read {printable(path)}: {said}; name the checkpoint that "
            "it was converted from"
        ) from error


def _complete(config: Any, content: Content) -> None:
    """Write into a configuration what transformers has left in the file."""
    theta = content.value("rope.freq_base")
    if theta is not None and config.model_type in WITHOUT_THETA:
        if getattr(config, "rope_parameters", None):  # from version 5 on
            config.rope_parameters["rope_theta"] = theta
        else:
            config.rope_theta = theta
    if config.model_type == "qwen3_moe":
        config.norm_topk_prob = True  # as llama.cpp has it; version 4 leaves the default, false


def _save_tokenizer(tokenizer: Any, content: Content, folder: Path) -> None:
    """Write a tokenizer that splits texts, opens and ends them as the file says; transformers reads little of that."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    if content.value("ggml.model") == "gpt2" and content.value("ggml.pre") in OF_DIGITS:
        words = ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), words])
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings |= {f"{name}_token": token for name, token in content.special.items()}
    path.write_text(json.dumps(settings | {"add_bos_token": content.opens}), encoding="utf-8")
