"""`hf:...`: data sets of the Hugging Face hub, downloaded or streamed with `datasets`.


    hf:REPO[:CONFIG][@TRAIN[,VALID]][#COLUMN][?bytes=50M]

    hf:wikitext                        Salesforce/wikitext, wikitext-103-raw-v1, with its own validation split
    hf:wikitext:wikitext-2-raw-v1      another configuration of it
    hf:pg19?bytes=50M                  the first 50 MB of emozilla/pg19, streamed: the rest is not downloaded
    hf:org/set@train                   held-out documents are taken from the split `train`, a third of the bytes
    hf:org/set@train,test#content      held-out documents are the split `test`; the text is in the column `content`

Without @, the split `train` is for training and the split `validation`, if there is one, is held out. Documents for
tuning are cut from TRAIN, so that VALID stays whole. COLUMN is `text` by default. `bytes` takes a number with K, M or G
(powers of 1000): nine tenths are read from TRAIN and one tenth from VALID, each up to the end of the document that
reaches its share.

The first request returns the revision from which everything is then read. Offline mode (HF_HUB_OFFLINE=1) reads what
`datasets` has downloaded before.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from poscli.data.corpora import CORPORA, Kind
from poscli.data.filesets import DEFAULT_FIELD, field_bytes
from poscli.data.hub import chain, explaining, set_up_client
from poscli.data.source import Document, Part, Reading, Source
from poscli.system.console import err
from poscli.system.errors import DataError, UsageError, near

GRAMMAR = "hf:REPO[:CONFIG][@TRAIN[,VALID]][#COLUMN][?bytes=50M]"
ALIASES = {"wikitext": "Salesforce/wikitext", "pg19": "emozilla/pg19"}
CONFIGS = {"Salesforce/wikitext": "wikitext-103-raw-v1"}  # the default
USUAL_SPLITS = ("train", "validation")  # the second one only where there is one

_SPEC = re.compile(
    r"(?P<repo>[^:@#?]+)(:(?P<config>[^@#?]+))?(@(?P<splits>[^,#?]+(,[^,#?]+)?))?(#(?P<column>[^?]+))?"
    r"(\?bytes=(?P<number>\d+)(?P<unit>[KMG]?))?"
)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
WIKITEXT = "Salesforce/wikitext"
_TITLE = re.compile(rb" = (?!= ).* = \n")  # ' = Title = '; headings of sections have more signs: ' = = Section = = '
STREAM_ATTEMPTS = 1  # the hub's client repeats requests itself; the default of 20 on top of that takes ten minutes
FROM_CACHE = "datasets.packaged_modules.cache.cache"  # what `datasets` falls back on when the hub fails


@dataclass(frozen=True)
class HubSpec:
    """One data set of the hub.

    >>> spec = HubSpec.parse("wikitext@train?bytes=2M")
    >>> str(spec), spec.budget
    ('hf:Salesforce/wikitext:wikitext-103-raw-v1@train?bytes=2000000', 2000000)
    """

    repo: str
    config: str | None = None  # None: the only one there is
    splits: tuple[str, ...] = ()  # (train,) or (train, valid); () for the usual ones
    column: str = DEFAULT_FIELD
    budget: int | None = None  # bytes to stream; None: download all of it

    @classmethod
    def parse(cls, text: str) -> HubSpec:
        """What follows `hf:`; UsageError if the grammar does not allow it."""
        match = _SPEC.fullmatch(text)
        if match is None or (match["number"] and not int(match["number"])):
            raise UsageError(f"'hf:{text}' is not of the form {GRAMMAR}")
        repo = ALIASES.get(match["repo"], match["repo"])
        return cls(
            repo,
            match["config"] or CONFIGS.get(repo),
            tuple(match["splits"].split(",")) if match["splits"] else (),
            match["column"] or DEFAULT_FIELD,
            int(match["number"]) * _UNITS[match["unit"]] if match["number"] else None,
        )

    @property
    def made_of(self) -> frozenset[str]:
        """The splits that are read, however much of them; a configuration without a name is the one called default."""
        splits = self.splits or USUAL_SPLITS
        return frozenset(f"hf:{self.repo}:{self.config or 'default'}@{split}" for split in splits)

    def __str__(self) -> str:
        return (
            f"hf:{self.repo}"
            + (f":{self.config}" if self.config else "")
            + (f"@{','.join(self.splits)}" if self.splits else "")
            + (f"#{self.column}" if self.column != DEFAULT_FIELD else "")
            + (f"?bytes={self.budget}" if self.budget else "")
        )


def source(argument: str) -> Source:
    """The corpus `hf:...`. It has no stamp, so that a cached corpus loads without a network."""
    spec = HubSpec.parse(argument)
    return Source(str(spec), None, lambda: _read(spec), made_of=spec.made_of)


def available() -> str:
    """Why hub corpora cannot be used, and what to install; "" if `datasets` is installed."""
    if importlib.util.find_spec("datasets"):
        return ""
    return "hf: corpora need the package datasets, which is not installed: pip install datasets"


def _read(spec: HubSpec) -> Reading:
    fault = available()
    if fault:
        raise DataError(fault)
    if os.path.isdir(spec.repo):  # noqa: PTH112 - unlike Path.is_dir, it takes any string
        raise DataError(
            f"the folder {spec.repo!r} here hides the hub's {spec.repo} from datasets; run elsewhere, or rename it"
        )
    import datasets

    settings = datasets.config
    settings.STREAMING_OPEN_MAX_RETRIES = settings.STREAMING_READ_MAX_RETRIES = STREAM_ATTEMPTS
    # It sleeps after the last attempt too: a minute, by default, where the hub asks for fewer requests.
    settings.STREAMING_OPEN_RETRY_INTERVAL = settings.STREAMING_READ_RETRY_INTERVAL = 0
    settings.STREAMING_READ_SERVER_UNAVAILABLE_RETRY_INTERVAL = settings.STREAMING_READ_RATE_LIMIT_RETRY_INTERVAL = 0
    if not err.is_terminal:
        datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    set_up_client()
    if datasets.config.HF_HUB_OFFLINE:
        return Reading(_documents(spec, _splits(spec, spec.config, None)), {})
    revision = _revision(spec.repo)
    splits = _splits(spec, _config(spec, revision), revision)
    return Reading(_documents(spec, splits), {"revision": revision})


def _splits(spec: HubSpec, config: str | None, revision: str | None) -> Any:
    """The splits of a data set, by name, downloaded unless the corpus is streamed."""
    import datasets

    with explaining(spec.repo, f"cannot load {spec}", of_data=True):
        builder = datasets.load_dataset_builder(spec.repo, config, revision=revision)
        if revision and type(builder).__module__ == FROM_CACHE:
            raise DataError(f"cannot load {spec}: the hub has stopped answering; run it again later")
        if spec.budget is not None:
            return builder.as_streaming_dataset()
        try:
            builder.download_and_prepare()
        except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
            if revision is None or any(isinstance(cause, OSError) for cause in chain(error)):
                raise  # offline, or the network or the disk failed
        else:
            return builder.as_dataset()
        # The hub's client keeps a file that arrived damaged and would serve it for ever: fetch it once more. Not in the
        # `except`, so that the first error is not taken for the cause of a second one.
        builder.download_and_prepare(download_mode="force_redownload")
        return builder.as_dataset()


def _revision(repo: str) -> str:
    """The newest commit of a repository; an error if the repository does not exist or the hub cannot be reached."""
    from huggingface_hub import HfApi

    advice = "check the network, or use a corpus that needs none: stdlib or text:PATH"
    with explaining(repo, f"cannot reach the hub for {repo}", of_data=True, advice=advice):
        return str(HfApi().dataset_info(repo).sha)


def _config(spec: HubSpec, revision: str) -> str | None:
    """The configuration to load (None: the only one); DataError if it is ambiguous or does not exist."""
    import datasets

    with explaining(spec.repo, f"cannot load {spec}", of_data=True):
        names = datasets.get_dataset_config_names(spec.repo, revision=revision)
    if spec.config in names:
        return spec.config
    if spec.config is not None:
        raise DataError(f"{spec.repo} has no configuration {spec.config!r}: {near(spec.config, names)}")
    if len(names) > 1 and "default" not in names:
        raise DataError(f"{spec.repo} has several configurations, name one as hf:{spec.repo}:CONFIG; {near('', names)}")
    return None


def _documents(spec: HubSpec, splits: Any) -> Iterator[Document]:
    """The documents of the training split, then those of the held-out split if there is one."""
    train, *valid = _split_names(spec, list(splits))
    parts: list[tuple[str, Part | None, int]] = [(train, None, 10)]  # split, part, tenths of the budget
    if valid:
        parts = [(train, "train", 9), (valid[0], "valid", 1)]
    for name, part, tenths in parts:
        budget = spec.budget and spec.budget * tenths // 10
        for content in _contents(spec, splits[name], f"{spec} split {name}", budget):
            yield Document(content, part)


def _split_names(spec: HubSpec, names: Sequence[str]) -> Sequence[str]:
    """The names of the training split and, if there is one, of the held-out split."""
    chosen = spec.splits or (USUAL_SPLITS if "validation" in names else USUAL_SPLITS[:1])
    for name in chosen:
        if name not in names:
            raise DataError(f"{spec.repo} has no split {name!r}: {near(name, names)}; name one as @TRAIN[,VALID]")
    return chosen


def _contents(spec: HubSpec, split: Any, where: str, budget: int | None) -> Iterator[bytes]:
    """The documents of one split, up to and including the one that reaches the budget in bytes."""
    left, half_read = budget, True
    if spec.column in (split.column_names or ()):  # columns of pictures and sound would be decoded
        split = split.select_columns([spec.column])
    try:
        with explaining(spec.repo, f"cannot load {spec}", of_data=True), closing(iter(split)) as rows:
            texts: Iterable[bytes] = (
                field_bytes(row, spec.column, f"{where} row {n}") for n, row in enumerate(rows, 1)
            )
            for content in articles(texts) if spec.repo == WIKITEXT else texts:
                yield content
                if left is not None:
                    left -= len(content)
                    if left <= 0:
                        break
            else:
                half_read = False
    finally:
        if half_read:
            gc.collect()  # a half-read parquet file would abort the interpreter at exit (apache/arrow#45214)


def articles(rows: Iterable[bytes]) -> Iterator[bytes]:
    r"""Join lines to articles. An article begins at a top-level heading that follows a blank line.

    >>> rows = [b"", b" = A = \n", b"", b" text \n", b"", b" = = B = = \n", b"", b" = C = \n", b""]
    >>> list(articles(rows))
    [b' = A = \n\n text \n\n = = B = = \n\n', b' = C = \n\n']
    """
    lines: list[bytes] = []
    blank = True
    for row in rows:
        line = row.rstrip(b"\n") + b"\n"  # the hub stores blank lines as empty strings
        if blank and lines and _TITLE.fullmatch(line):
            yield b"".join(lines)
            lines = []
        if lines or line.strip():  # skip blank lines before the first title
            lines.append(line)
        blank = not line.strip()
    if lines:
        yield b"".join(lines)


CORPORA.add(
    "hf",
    Kind(
        GRAMMAR,
        "a data set of the Hugging Face hub; streamed with ?bytes=",
        source,
        available,
        examples=tuple(f"hf:{alias}" for alias in ALIASES),
    ),
)
