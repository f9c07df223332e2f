"""Where checkpoints come from: a folder, or the Hugging Face hub.

    DIR                        a folder written by save_pretrained: config.json, safetensors, a tokenizer
    hf:ORG/NAME[@REVISION]     a repository of the hub; data/hub.py has the grammar

Of a repository only the configuration, the tokenizer and the weights as safetensors are downloaded. Nothing of a
checkpoint is run: pickled weights and code of a repository are refused.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poscli.checkpoints.weights import FETCH, INDEX, WHOLE, digest_of, weight_files
from poscli.data.hub import GRAMMAR, HubModel, open_repository
from poscli.data.tokenizerfiles import TOKENIZER_FILES, holds_tokenizer
from poscli.system.errors import DataError, UsageError, near
from poscli.system.files import read_object
from poscli.system.text import printable

CONFIG, GENERATION = "config.json", "generation_config.json"
ADAPTER = "adapter_config.json"  # what peft writes in the place of config.json
HASHED = {CONFIG, INDEX, *TOKENIZER_FILES}
FORMS = f"DIR or {GRAMMAR}"
INSTALL = "pip install 'poscli[hf]'"

_PICKLED = re.compile(r".*\.(bin|pt|pth|ckpt|pkl)")


@dataclass(frozen=True)
class Source:
    """A checkpoint on disk.

    `digest` identifies its content: a SHA-256 over config.json, the tokenizer's files, and of each weight file its
    size, its header and a sample of every tensor, so that gigabytes are not read. It does not depend on the place.
    """

    spec: str  # canonical: an absolute path, or hf:ORG/NAME@COMMIT
    folder: Path
    revision: str  # the commit, 40 hex digits; "" for a folder
    digest: str  # 64 hex digits; with `config_only` it is of the files of JSON only
    weights: tuple[str, ...]  # names of the weight files, in the folder; () with `config_only`

    @property
    def tokenizer(self) -> str:
        """The spec of the checkpoint's own tokenizer."""
        return self.spec if self.revision else f"hf:{self.spec}"


def find(spec: str, *, config_only: bool = False) -> Source:
    """The checkpoint that a spec names, downloaded if need be.

    `config_only` fetches and asks for files of JSON only, no weights. Raises UsageError for a spec of another form and
    where transformers is missing or too old, DataError for what is no checkpoint or cannot be had, CorruptError for
    damaged files.
    """
    if spec.startswith("hf:"):
        return _of_hub(HubModel.parse(spec.removeprefix("hf:")), config_only)
    return _of_folder(spec, config_only)


def _of_folder(spec: str, config_only: bool) -> Source:
    try:
        folder = Path(spec).expanduser().resolve()
        if not folder.is_dir():
            raise DataError(_no_folder(spec))
        files = {path.name for path in folder.iterdir() if path.is_file()}
    except (OSError, RuntimeError, ValueError) as error:  # no permission, links that form a loop, a NUL
        raise DataError(f"the checkpoint {printable(spec)} cannot be read: {error}; give {FORMS}") from error
    _refuse_incomplete(str(folder), files, config_only)
    if not config_only:
        _refuse_unknown(str(folder), read_object(folder / CONFIG, FETCH))
    weights = () if config_only else weight_files(folder, files)
    return Source(str(folder), folder, "", digest_of(folder, _hashed(files, config_only), weights), weights)


def _of_hub(name: HubModel, config_only: bool) -> Source:
    repository = open_repository(name)
    spec, files = str(repository.name), repository.files
    _refuse_incomplete(spec, files, config_only)
    wanted = {CONFIG, GENERATION, INDEX, *TOKENIZER_FILES} & files
    folder = repository.fetch(file for file in wanted if file.endswith(".json") or not config_only)
    weights: tuple[str, ...] = ()
    if not config_only:
        _refuse_unknown(spec, read_object(folder / CONFIG, FETCH))
        weights = weight_files(folder, files)
        folder = repository.fetch(weights)
    digest = digest_of(folder, _hashed(files, config_only), weights)
    return Source(spec, folder, repository.name.revision, digest, weights)


def _hashed(files: Collection[str], config_only: bool) -> set[str]:
    """The files whose whole content is hashed."""
    return {file for file in HASHED & set(files) if file.endswith(".json") or not config_only}


def _no_folder(spec: str) -> str:
    """The message for a spec that is neither a folder nor of the hub."""
    if Path(spec).is_file():
        return f"{printable(spec)} is a file, and a checkpoint is a folder; give {FORMS}"
    hint = f"; for a model of the hub write hf:{spec}" if re.fullmatch(r"[\w.-]+/[\w.-]+(@\S+)?", spec) else ""
    return f"there is no folder {printable(spec)}; give {FORMS}{hint}"


def _refuse_incomplete(spec: str, files: Collection[str], config_only: bool) -> None:
    """DataError if these files are no checkpoint that poscli can read."""
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
    own = sorted(files, key=lambda file: ("/" in file, file))  # those in folders last
    pickled = [file for file in own if _PICKLED.fullmatch(file)]
    others = [file for file in own if file.endswith(".safetensors")]
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
        raise UsageError(f"--model needs transformers: {INSTALL}")
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
        f"{version} does not know model_type {kind!r} of {spec}: {near(kind, known)}; "
        "a newer one may: pip install -U transformers"
    )
