"""`hf:...`: data sets of the Hugging Face hub, through `datasets`, downloaded or streamed. See hubspec.py.

One request with a short timeout comes first. It resolves the revision, which pins everything read after it, and
finds in seconds what `datasets` retries for minutes: no network, no such repository. Nothing is ever replaced by
another corpus. Offline mode (HF_HUB_OFFLINE=1) uses what `datasets` has downloaded before.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from poscli.console import err
from poscli.data.hubspec import HubSpec
from poscli.data.rows import encode
from poscli.data.source import Document, Part, Reading, Source
from poscli.data.wikitext import REPO as WIKITEXT
from poscli.data.wikitext import articles
from poscli.errors import DataError, near

TIMEOUT = 10  # seconds for the first answer of the hub
ATTEMPTS = 1  # at a broken stream, each 23 s of retries by the hub's client; the usual 20 hang for ten minutes


def source(argument: str) -> Source:
    """The corpus `hf:...`. Its state is its name alone, so that a cached one loads without a network."""
    spec = HubSpec.parse(argument)
    return Source(str(spec), None, lambda: _read(spec))


def available() -> str:
    """'' if `datasets` is installed, else what to install."""
    if importlib.util.find_spec("datasets"):
        return ""
    return "hf: corpora need the package datasets, which is not installed: pip install datasets"


def _read(spec: HubSpec) -> Reading:
    fault = available()
    if fault:
        raise DataError(fault)
    if Path(spec.repo).is_dir():
        raise DataError(
            f"the folder {spec.repo!r} here hides the hub's {spec.repo} from datasets; run elsewhere, or rename it"
        )
    import datasets

    datasets.config.STREAMING_OPEN_MAX_RETRIES = datasets.config.STREAMING_READ_MAX_RETRIES = ATTEMPTS
    if not err.is_terminal:
        datasets.disable_progress_bars()
    revision = None if datasets.config.HF_HUB_OFFLINE else _revision(spec.repo)
    config = _config(spec, revision)
    with _explained(spec):
        splits = datasets.load_dataset(spec.repo, config, revision=revision, streaming=spec.budget is not None)
    return Reading(_documents(spec, splits), {"revision": revision} if revision else {})


def _revision(repo: str) -> str:
    """The commit at the head of a repository; DataError if there is none, or no way to the hub."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        return str(HfApi().dataset_info(repo, timeout=TIMEOUT).sha)
    except HFValidationError as error:
        raise DataError(f"{repo!r} is no name of a repository ({_reason(error)}); write hf:OWNER/NAME") from error
    except RepositoryNotFoundError as error:
        hint = _alike(repo) or "check its spelling at the hub"
        raise DataError(f"the hub has no data set {repo!r}, or it needs a login (hf auth login); {hint}") from error
    except _failures() as error:
        raise DataError(
            f"cannot reach the hub for {repo}: {_reason(error)}; check the network, or use a corpus that needs none, "
            "such as stdlib or text:PATH"
        ) from error


def _alike(repo: str) -> str:
    """What the hub finds under a similar name."""
    from huggingface_hub import HfApi

    try:
        names = [found.id for found in HfApi().list_datasets(search=repo.split("/")[-1], limit=5)]
    except _failures():
        return ""  # this is but a hint within an error message
    return near(repo, names) if names else ""


def _config(spec: HubSpec, revision: str | None) -> str | None:
    """The configuration that is meant; DataError naming those there are."""
    if revision is None:
        return spec.config  # offline, `datasets` knows only what it has downloaded
    import datasets

    with _explained(spec):
        names = datasets.get_dataset_config_names(spec.repo, revision=revision)
    if spec.config in names:
        return spec.config
    if spec.config is not None:
        raise DataError(f"{spec.repo} has no configuration {spec.config!r}: {near(spec.config, names)}")
    if len(names) > 1 and "default" not in names:
        raise DataError(f"{spec.repo} has several configurations, name one as hf:{spec.repo}:CONFIG; {near('', names)}")
    return None


def _documents(spec: HubSpec, splits: Any) -> Iterator[Document]:
    """The documents of the training split, then those of the held-out one where the data set has its own."""
    train, *valid = _wanted(spec, list(splits))
    parts: list[tuple[str, Part | None, int]] = [(train, None, 10)]  # split, part, tenths of the budget
    if valid:
        parts = [(train, "train", 9), (valid[0], "valid", 1)]
    for name, part, tenths in parts:
        budget = spec.budget and spec.budget * tenths // 10
        for content in _contents(spec, splits[name], f"{spec} split {name}", budget):
            yield Document(content, part)


def _wanted(spec: HubSpec, names: Sequence[str]) -> Sequence[str]:
    """The training split and, where there is one, the held-out split."""
    wanted = spec.splits or (("train", "validation") if "validation" in names else ("train",))
    for name in wanted:
        if name not in names:
            raise DataError(f"{spec.repo} has no split {name!r}: {near(name, names)}; name one as @TRAIN[,VALID]")
    return wanted


def _contents(spec: HubSpec, split: Any, where: str, budget: int | None) -> Iterator[bytes]:
    """The documents of one split, up to the one that reaches the budget, in bytes."""
    left = budget
    try:
        with _explained(spec), closing(iter(split)) as rows:
            texts: Iterable[bytes] = (encode(row, spec.column, f"{where} row {n}") for n, row in enumerate(rows, 1))
            for content in articles(texts) if spec.repo == WIKITEXT else texts:
                yield content
                if left is not None:
                    left -= len(content)
                    if left <= 0:
                        break
    finally:
        gc.collect()  # a half-read parquet file aborts the interpreter at exit (apache/arrow#45214)


@contextmanager
def _explained(spec: HubSpec) -> Iterator[None]:
    """Turn what `datasets` raises into one line."""
    try:
        yield
    except _failures() as error:
        raise DataError(
            f"cannot load {spec}: {_reason(error)}; check the network and the free disk space, then run it again"
        ) from error


def _failures() -> tuple[type[Exception], ...]:
    """What `datasets` and the hub's client raise: `requests` OSErrors, and newer clients httpx' own errors."""
    from datasets.exceptions import DatasetsError

    failures: tuple[type[Exception], ...] = (OSError, ValueError, DatasetsError)
    if importlib.util.find_spec("httpx"):
        import httpx

        failures += (httpx.HTTPError,)
    return failures


def _reason(error: BaseException) -> str:
    """The first line of the error at the root of a chain: 'Connection refused', not what was built around it."""
    while (inner := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = inner
    return str(error).strip().split("\n")[0] or type(error).__name__
