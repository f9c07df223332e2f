"""What errors of the hub's client mean, and what to do about them: shared by corpora and checkpoints of the hub."""

from __future__ import annotations

import importlib
import importlib.util

LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may read it"
ADVICE = {  # HTTP status -> what to do about it
    401: LOGIN,
    403: LOGIN,
    429: "wait a few minutes, then run it again; with a login (`hf auth login`, or HF_TOKEN) the hub allows more",
    **dict.fromkeys(range(500, 600), "the hub has a fault: run it again later"),
}


def client_failures() -> tuple[type[Exception], ...]:
    """The errors of the hub's client: OSErrors of requests or, in newer versions, httpx' errors."""
    failures: tuple[type[Exception], ...] = (OSError, ValueError, EOFError)
    for name in ("httpx", "httpx2"):
        if importlib.util.find_spec(name):
            failures += (importlib.import_module(name).HTTPError,)
    return failures


def chain(error: BaseException) -> list[BaseException]:
    """An error and its causes, outermost first."""
    found = [error]
    while (inner := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = inner
        found.append(error)
    return found


def status(error: BaseException) -> int:
    """The HTTP status behind an error; 0 if there is none."""
    responses = [getattr(error, "response", None) for error in chain(error)]
    return next((response.status_code for response in responses if response is not None), 0)


def reason(error: BaseException) -> str:
    """The first line of the first error in a chain of causes, such as 'Connection refused'."""
    error = chain(error)[-1]
    return str(error).strip().split("\n")[0] or type(error).__name__
