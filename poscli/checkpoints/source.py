"""Where checkpoints come from: a folder, or the Hugging Face hub.

    DIR                        a folder written by save_pretrained: config.json, safetensors, a tokenizer
    FILE.gguf                  a file of llama.cpp, or a folder with one; gguf.py makes a checkpoint of it
    hf:ORG/NAME[@REVISION]     a repository of the hub; data/hub.py has the grammar

Of a repository only the configuration, the tokenizer and the weights as safetensors are downloaded. Nothing of a
checkpoint is run: pickled weights and code of a repository are refused.

The weight files are not read, but for a digest of their content. A safetensors file begins with the length of its
header (8 bytes), then the header: the name, type, shape and place of every tensor, as JSON. The tensors follow, and end
where the file does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from poscli.checkpoints import gguf
from poscli.data.hub import GRAMMAR, HubModel, open_repository
from poscli.data.tokenizer_json import TOKENIZER_FILES, holds_tokenizer
from poscli.system.errors import CorruptError, DataError, UsageError
from poscli.system.files import read_object
from poscli.system.text import printable

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"  # one file, or the list of several
FETCH = "delete it and fetch it again"  # the hub's client keeps a file that arrived damaged
LARGEST_HEADER_BYTES = 100_000_000  # the format's own limit
SAMPLE_BYTES = 1024  # read of every tensor for the digest
CONFIG, GENERATION = "config.json", "generation_config.json"
ADAPTER = "adapter_config.json"  # what peft writes in the place of config.json
HASHED = {CONFIG, INDEX, *TOKENIZER_FILES}
FORMS = f"DIR, FILE.gguf or {GRAMMAR}"

_PICKLED = re.compile(r".*\.(bin|pt|pth|ckpt|pkl)")


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint on disk.

    `digest` identifies its content: a SHA-256 over config.json, the tokenizer's files, and of each weight file its
    size, its header and a sample of every tensor, so that gigabytes are not read. It does not depend on the place.
    """

    spec: str  # canonical: an absolute path of a folder or a GGUF file, or hf:ORG/NAME@COMMIT
    folder: Path
    revision: str  # the commit, 40 hex digits; "" for a folder
    digest: str  # 64 hex digits; with `config_only` it is of the files of JSON only
    weights: tuple[str, ...]  # names of the weight files, in the folder; () with `config_only`

    @property
    def tokenizer(self) -> str:
        """The spec of the checkpoint's own tokenizer."""
        return self.spec if self.revision else f"hf:{self.folder}"


def find(spec: str, *, config_only: bool = False) -> CheckpointSource:
    """The checkpoint that a spec names, downloaded if need be.

    `config_only` fetches and asks for files of JSON only, no weights. Raises UsageError for a spec of another form and
    where transformers is missing or too old, DataError for what is not a checkpoint or cannot be had, CorruptError for
    damaged files.
    """
    if spec.startswith("hf:"):
        return _of_hub(HubModel.parse(spec.removeprefix("hf:")), config_only)
    return _of_folder(spec, config_only)


def config_in(folder: Path) -> dict[str, Any]:
    """The content of a checkpoint's config.json; CorruptError if it is not an object of JSON."""
    return read_object(folder / CONFIG, FETCH)


def _of_folder(spec: str, config_only: bool) -> CheckpointSource:
    try:
        given = Path(spec).expanduser()
        # The hub's cache has links whose names end so, to files whose names do not.
        named = folder = given.parent.resolve() / given.name if given.suffix == gguf.SUFFIX else given.resolve()
        if (packed := gguf.file_in(folder)) is not None:
            named, folder = packed, gguf.unpacked(packed, config_only=config_only)
        if not folder.is_dir():
            if Path(spec).is_file():
                raise DataError(f"{printable(spec)!r} is neither a folder nor a file of GGUF; give {FORMS}")
            hint = f"; for a model of the hub write hf:{spec}" if re.fullmatch(r"[\w.-]+/[\w.-]+(@\S+)?", spec) else ""
            kind = "file" if folder.suffix == gguf.SUFFIX else "folder"
            raise DataError(f"there is no {kind} {printable(spec)!r}; give {FORMS}{hint}")
        files = {path.name for path in folder.iterdir() if path.is_file()}
        kept = sorted((folder / "snapshots").glob(f"*/{CONFIG}"))
        if CONFIG not in files and kept:
            raise DataError(
                f"{printable(folder)} is where the hub's cache keeps a model; name one of its snapshots, such as "
                f"{printable(kept[-1].parent)}"
            )
    except (OSError, RuntimeError, ValueError) as error:  # no permission, links that form a loop, a NUL
        raise DataError(f"the checkpoint {printable(spec)} cannot be read: {error}; give {FORMS}") from error
    _refuse_incomplete(str(named), files, config_only)
    if not config_only:
        _refuse_unknown(str(named), config_in(folder))
    weights = () if config_only else weight_files(folder, files)
    return CheckpointSource(str(named), folder, "", digest_of(folder, files, weights), weights)


def _of_hub(name: HubModel, config_only: bool) -> CheckpointSource:
    repository = open_repository(name)
    spec, files = str(repository.name), repository.files
    _refuse_incomplete(spec, files, config_only)
    wanted = {CONFIG, GENERATION, INDEX, *TOKENIZER_FILES} & files
    folder = repository.fetch(file for file in wanted if file.endswith(".json") or not config_only)
    weights: tuple[str, ...] = ()
    if not config_only:
        _refuse_unknown(spec, config_in(folder))
        weights = weight_files(folder, files)
        folder = repository.fetch(weights)
    return CheckpointSource(spec, folder, repository.name.revision, digest_of(folder, files, weights), weights)


def _refuse_incomplete(spec: str, files: Collection[str], config_only: bool) -> None:
    """DataError if these files are not a checkpoint that poscli can read."""
    if CONFIG not in files:
        what = f"no {CONFIG}: name a folder that save_pretrained of transformers wrote"
        if ADAPTER in files:
            what = f"only an adapter ({ADAPTER}): merge it into its model (merge_and_unload of peft), and save that"
        raise DataError(f"{spec} holds {what}")
    if config_only:
        return
    if not {WHOLE, INDEX} & set(files):
        raise DataError(f"{spec} {_without_weights(files)}")
    if not holds_tokenizer(files):
        raise DataError(f"{spec} holds no tokenizer (tokenizer.json); copy that of the model it was made from into it")


def _without_weights(files: Collection[str]) -> str:
    ordered = sorted(files, key=lambda file: ("/" in file, file))  # those in folders last
    pickled = [file for file in ordered if _PICKLED.fullmatch(file)]
    others = [file for file in ordered if file.endswith(".safetensors")]
    if pickled:
        return (
            f"holds its weights only as pickled files ({pickled[0]}), which can run code when they are read: load it "
            "with transformers and save it with save_pretrained, or name a revision with safetensors, such as "
            "hf:ORG/NAME@refs/pr/1"
        )
    if others:
        return f"holds {others[0]}, but neither {WHOLE} nor {INDEX}: save it with save_pretrained of transformers"
    return f"holds no weights ({WHOLE}, or {INDEX} and its files): fetch the whole checkpoint"


def _refuse_unknown(spec: str, config: dict[str, Any]) -> None:
    """UsageError if the installed transformers cannot run the model, or none is installed."""
    if importlib.util.find_spec("transformers") is None:
        raise UsageError(f"{spec} needs transformers: pip install 'poscli[hf]'")
    import transformers

    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise DataError(f"config.json of {spec} has no model_type, so transformers cannot tell which model it is")
    known = list(transformers.CONFIG_MAPPING.keys())
    if kind in known:
        return
    version = f"transformers {transformers.__version__}"
    if config.get("auto_map"):
        raise UsageError(
            f"{spec} comes with code of its own (auto_map in config.json), which poscli does not run, and {version} "
            f"does not know its model_type {kind!r}; use a checkpoint that transformers knows, or a newer transformers"
        )
    raise UsageError(
        f"{version} does not know model_type {kind!r} of {spec}; a newer one may: pip install -U transformers"
    )


def weight_files(folder: Path, files: Collection[str]) -> tuple[str, ...]:
    """The names of the weight files that transformers would read; CorruptError if the list of them is damaged.

    `files` are the names of all files of the checkpoint. Other weights in it, such as a second copy in another format,
    are not read.
    """
    if WHOLE in files:
        return (WHOLE,)
    names = read_object(folder / INDEX, FETCH).get("weight_map")
    if not isinstance(names, dict) or not names or not all(_is_file_name(name) for name in names.values()):
        raise CorruptError(f"{printable(folder / INDEX)} lists no weight files of its own folder; {FETCH}")
    weights = tuple(sorted(set(names.values())))
    missing = [name for name in weights if name not in files]
    if missing:
        raise DataError(
            f"{printable(folder)} lacks {len(missing)} of its {len(weights)} weight files, such as {missing[0]}; "
            "fetch what is missing"
        )
    return weights


def _is_file_name(name: object) -> bool:
    """Whether this is the name of a file in the folder itself, which no list of weights may leave."""
    return isinstance(name, str) and name != "" and Path(name).name == name


def add_to(digest: Any, path: Path) -> None:
    """Hash the size and the header of a weight file, and 1 KiB from the middle of each of its tensors.

    So the digests of two checkpoints of one architecture differ, and 15 GB are told apart by reading some hundred
    kilobytes. CorruptError if the file is truncated or is not a safetensors file.
    """
    try:
        with path.open("rb") as file:
            start, header, tensors = _header(file, path)
            digest.update(json.dumps([path.name, path.stat().st_size]).encode())
            digest.update(header)
            for begin, end in sorted(tensors):
                file.seek(start + max(begin, (begin + end - SAMPLE_BYTES) // 2))
                digest.update(file.read(min(SAMPLE_BYTES, end - begin)))
    except OSError as error:
        raise DataError(f"{printable(path)} cannot be read ({error.strerror or error}); check it") from error


def _header(file: BinaryIO, path: Path) -> tuple[int, bytes, list[tuple[int, int]]]:
    """Where the tensors begin, the header, and for each tensor its first byte and the byte after its last.

    Both are counted from where the tensors begin. CorruptError for a damaged header, or one of another file size.
    """
    length = int.from_bytes(file.read(8), "little")
    size = path.stat().st_size
    if size < 8 or length > min(size - 8, LARGEST_HEADER_BYTES):
        raise CorruptError(f"{printable(path)} is truncated or no safetensors file; {FETCH}")
    header = file.read(length)
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        tensors = [(int(begin), int(end)) for begin, end in (entry["data_offsets"] for entry in entries.values())]
        if not all(0 <= begin <= end for begin, end in tensors):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptError(f"{printable(path)} has a damaged header; {FETCH}") from error
    expected = 8 + length + max((end for _, end in tensors), default=0)
    if size != expected:
        raise CorruptError(f"{printable(path)} has {size} bytes, and its header describes {expected}; {FETCH}")
    return 8 + length, header, tensors


def digest_of(folder: Path, files: Collection[str], weights: Collection[str]) -> str:
    """A SHA-256, 64 hex digits, of a checkpoint with these files.

    It is of the whole content of config.json and of the tokenizer's files, and of weights what `add_to` reads. Without
    weights it is of files of JSON only.
    """
    digest = hashlib.sha256()
    for name in sorted(HASHED & set(files)):
        if weights or name.endswith(".json"):
            content = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            digest.update(json.dumps([name, content]).encode())
    for name in weights:
        add_to(digest, folder / name)
    return digest.hexdigest()
