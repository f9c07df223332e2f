"""The Hugging Face hub: the settings of its client, what its errors mean, and files of a repository of a model.

    ORG/NAME               the current commit of the repository
    ORG/NAME@REVISION      a branch, a tag, a commit, or a pull request such as refs/pr/1

The revision is resolved to a commit first, and everything is read from that commit. Files arrive in the cache of the
hub's client (HF_HOME). Offline mode (HF_HUB_OFFLINE=1) reads what is there. corpora/hub.py has data sets of the hub.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poscli.system.console import err
from poscli.system.errors import DataError, UsageError, near

GRAMMAR = "hf:ORG/NAME[@REVISION]"
NETWORK = "check the network and the free disk space, or set HF_HUB_OFFLINE=1 to use what was downloaded before"
OFFLINE = "HF_HUB_OFFLINE is set: unset it to download what is missing"
LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may read it"
ADVICE = {  # HTTP status -> what to do about it
    401: LOGIN,
    403: LOGIN,
    429: "wait a few minutes, then run it again; with a login (`hf auth login`, or HF_TOKEN) the hub allows more",
    **dict.fromkeys(range(500, 600), "the hub has a fault: run it again later"),
}

_NAME = re.compile(r"(?P<repo>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[^@\s]+))?", re.ASCII)


def set_up_client() -> None:
    """Set the hub's client up: it prints nothing, and waits for an answer as long as HF_HUB_DOWNLOAD_TIMEOUT says.

    That is 10 seconds unless the environment says otherwise; on its own, the client waits for some answers without
    limit. It repeats most requests that fail, for about half a minute. Files that the hub keeps as Xet come through
    the package hf_xet, which has limits of its own.
    """
    import huggingface_hub
    from huggingface_hub import constants

    utils: Any = huggingface_hub.utils
    utils.logging.set_verbosity_error()  # what fails is reported once, by poscli
    if not err.is_terminal:
        utils.disable_progress_bars()
    if constants.HF_HUB_OFFLINE:
        return
    longest = constants.HF_HUB_DOWNLOAD_TIMEOUT
    if not hasattr(huggingface_hub, "configure_http_backend"):  # from version 1 on

        def limit(request: Any) -> None:  # some calls of the client ask for no limit
            given = request.extensions.get("timeout") or {}
            parts = ("connect", "read", "write", "pool")
            request.extensions["timeout"] = {part: min(given.get(part) or longest, longest) for part in parts}

        utils.get_session().event_hooks["request"].append(limit)
        return
    import requests

    class Session(requests.Session):
        def request(self, *args: Any, **options: Any) -> requests.Response:
            return super().request(*args, **{**options, "timeout": min(options.get("timeout") or longest, longest)})

    huggingface_hub.configure_http_backend(Session)


def client_failures() -> tuple[type[Exception], ...]:
    """The errors of the hub's client, OSErrors of requests or, in newer versions, httpx' errors, and of `datasets`.

    hf_xet, which downloads for the client, and `datasets` raise plain RuntimeErrors, too.
    """
    failures: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, RuntimeError)
    if sys.modules.get("datasets"):
        failures += (importlib.import_module("datasets.exceptions").DatasetsError,)
    for name in ("httpx", "httpx2"):
        if importlib.util.find_spec(name):
            failures += (importlib.import_module(name).HTTPError,)
    return failures


def chain(error: BaseException) -> list[BaseException]:
    """An error and its causes, outermost first."""
    errors = [error]
    while (inner := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = inner
        errors.append(error)
    return errors


def status(error: BaseException) -> int:
    """The HTTP status behind an error; 0 if there is none."""
    responses = [getattr(error, "response", None) for error in chain(error)]
    return next((response.status_code for response in responses if response is not None), 0)


def reason(error: BaseException) -> str:
    """The first line of what the hub said, or else of the first error in a chain of causes: 'Connection refused'."""
    errors = chain(error)
    said = next((text for each in errors if (text := getattr(each, "server_message", None))), str(errors[-1]))
    return said.strip().split("\n")[0] or type(errors[-1]).__name__


@dataclass(frozen=True)
class HubModel:
    """A repository and a revision of it, "" for the current one.

    >>> HubModel.parse("org/name@refs/pr/1")
    HubModel(repo='org/name', revision='refs/pr/1')
    >>> str(HubModel.parse("org/name"))
    'hf:org/name'
    """

    repo: str
    revision: str = ""

    @classmethod
    def parse(cls, text: str) -> HubModel:
        """What follows `hf:`; UsageError if it is not the name of a repository."""
        match = _NAME.fullmatch(text)
        if match is None:
            raise UsageError(f"'hf:{text}' is not of the form {GRAMMAR}")
        return cls(match["repo"], match["revision"] or "")

    def __str__(self) -> str:
        return f"hf:{self.repo}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class Repository:
    """A repository at one commit."""

    name: HubModel  # its revision is the commit
    files: frozenset[str]  # of the commit; offline, those that were downloaded
    asked: str = ""  # the revision that was asked for, "" for the current one
    cached: Path | None = None  # offline: the folder with the files

    def fetch(self, files: Iterable[str]) -> Path:
        """The folder that holds these files, downloaded unless they are there; DataError if that fails."""
        from huggingface_hub import snapshot_download

        wanted = sorted(files)
        folder = self.cached
        if folder is None:
            with explaining(self.name.repo, f"cannot download {self.name}", revision=self.name.revision):
                # By the revision, not by its commit, so that the client remembers for offline mode what it stood for.
                path = snapshot_download(self.name.repo, revision=self.asked or None, allow_patterns=wanted)
            folder = Path(path)
        if folder.name != self.name.revision:
            raise DataError(f"{self.name} changed at the hub, or the hub has stopped answering; run it again")
        # Where the network fails half-way, the client takes what it has for the whole.
        missing = [file for file in wanted if not (folder / file).is_file()]
        if missing:
            advice = OFFLINE if self.cached else "the hub has stopped answering: run it again later"
            raise DataError(f"{self.name} was downloaded without {missing[0]}; {advice}")
        return folder


def open_repository(name: HubModel) -> Repository:
    """The repository at the commit that its revision stands for; DataError if there is none or the hub fails."""
    from huggingface_hub import HfApi, constants

    set_up_client()
    if constants.HF_HUB_OFFLINE:
        return _downloaded(name)
    with explaining(name.repo, f"cannot reach the hub for {name}", revision=name.revision):
        info = HfApi().model_info(name.repo, revision=name.revision or None)
    files = frozenset(file.rfilename for file in info.siblings or [])
    return Repository(HubModel(name.repo, str(info.sha)), files, name.revision)


def _downloaded(name: HubModel) -> Repository:
    """What an earlier call has downloaded, for offline mode."""
    from huggingface_hub import snapshot_download

    with explaining(name.repo, f"{name} was not downloaded before", revision=name.revision):
        # Newer clients look whether everything is there that matches a pattern; here nothing in particular must be.
        path = snapshot_download(name.repo, revision=name.revision or None, local_files_only=True, allow_patterns=[])
    folder = Path(path)
    files = frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return Repository(HubModel(name.repo, folder.name), files, name.revision, folder)


@contextmanager
def explaining(
    repo: str, failure: str, *, revision: str = "", of_data: bool = False, advice: str = NETWORK
) -> Iterator[None]:
    """Turn an error of the hub's client, or of `datasets`, into one line, which begins with `failure` or says more.

    `repo` is a repository of a model, or with `of_data` of a data set. `advice` is for errors without a known cause.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except HFValidationError as error:
        raise UsageError(f"{repo!r} names no repository ({reason(error)}); write hf:ORG/NAME") from error
    except RevisionNotFoundError as error:
        fix = "name a branch, a tag, a commit or refs/pr/N"
        raise DataError(f"{repo} has no revision {revision!r}; {fix}") from error
    except client_failures() as error:
        gated = isinstance(error, GatedRepoError) or "is a gated dataset" in reason(error)  # `datasets` keeps the words
        if gated:
            page = f"{constants.ENDPOINT}/{'datasets/' * of_data}{repo}"
            raise DataError(f"{repo} is gated: accept its terms at {page}, then {LOGIN}") from error
        if isinstance(error, RepositoryNotFoundError):
            kind, search = ("data set", HfApi().list_datasets) if of_data else ("model", HfApi().list_models)
            hint = suggestion(repo, search)
            raise DataError(f"the hub has no {kind} {repo!r}, or it needs a login ({LOGIN}); {hint}") from error
        if "scripts are no longer supported" in reason(error):
            fix = "name a copy of it that holds parquet files"
            raise DataError(f"{repo} is a script, which `datasets` no longer runs; {fix}") from error
        advice = OFFLINE if constants.HF_HUB_OFFLINE else ADVICE.get(status(error), advice)
        raise DataError(f"{failure}: {reason(error)}; {advice}") from error


def suggestion(repo: str, search: Callable[..., Iterable[Any]]) -> str:
    """The end of an error message: what to write for a repository that does not exist, from a search of the client."""
    try:
        names = [each.id for each in search(search=repo.split("/")[-1], limit=5)]
    except client_failures():
        names = []  # a failed search must not hide the error that is being reported
    return near(repo, names) if names else "check its spelling at the hub"
