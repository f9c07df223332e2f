"""A model behind an HTTP server: the log-probabilities that it gives to the tokens of a prompt.

Two kinds of server are known. Those with the completions of OpenAI's API return the log-probabilities of the prompt
itself (`echo` with `logprobs`: vLLM, SGLang and others). The server of llama.cpp gives them only for tokens that it
generates, but takes a bias on the scores, which decides what it generates and leaves the log-probabilities as they are:
so it is made to generate the tokens of the text. Of each request it computes only what it has not read before.

A key is read from POSCLI_API_KEY, or for servers of OpenAI from OPENAI_API_KEY, and never shown.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import requests
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import HTTPError

from poscli.system.errors import DataError, UsageError
from poscli.system.text import printable

KEYS = ("POSCLI_API_KEY", "OPENAI_API_KEY")
LONGEST_PAUSE = 60.0  # seconds before a retry
LARGEST_ANSWER = 2**30  # bytes; a million tokens with their log-probabilities take a fifth of it


class Patience(Retry):
    """Retries that wait no longer than LONGEST_PAUSE each, however long a server asks for."""

    def get_retry_after(self, response: Any) -> float | None:
        seconds = super().get_retry_after(response)
        return seconds and min(seconds, LONGEST_PAUSE)


RETRIES = Patience(
    total=6,
    connect=1,
    read=False,  # what takes too long once would take as long again
    backoff_factor=0.5,  # none before the first retry, then 1, 2, 4, ... seconds, or what the server asks for
    status_forcelist=(429, 502, 503, 504),  # not 500: a server that such a prompt has killed would be killed again
    allowed_methods=None,
    raise_on_status=False,
)
TIMEOUT = (10, 600)  # seconds: to connect, and for an answer, which may have to read many thousand tokens first
MOST_SAID = 200  # characters of a server's own message
FORCED = 1e4  # added to the score of a token that must be generated
TOO_LONG = re.compile(r"context|too long|maximum|max_model_len|exceed|n_ctx", re.IGNORECASE)


class TooLongError(DataError):
    """A server does not read a prompt because of its length."""


class ListedMeta(BaseModel):
    """What llama.cpp says of a model."""

    n_ctx: int | None = None


class Listed(BaseModel):
    """A model in the list of a server. llama.cpp states its context in `meta`, vLLM in `max_model_len`."""

    id: str
    owned_by: str = ""
    meta: ListedMeta | None = None
    max_model_len: int | None = None


class Models(BaseModel):
    """The answer to GET /v1/models."""

    data: list[Listed]


class LogProbs(BaseModel):
    """Log-probabilities of the tokens of a prompt, the first of which has none, and of the answer."""

    token_logprobs: list[float | None] | None = None


class Completion(BaseModel):
    """One of the answers of OpenAI's completions."""

    logprobs: LogProbs | None = None


class Usage(BaseModel):
    """How many tokens were read."""

    prompt_tokens: int | None = None


class Made(BaseModel):
    """A token that llama.cpp has generated."""

    id: int
    logprob: float


class ServerAnswer(BaseModel):
    """What is read of an answer to POST: the first fields of both kinds of server, then those of each."""

    model: str | None = None
    system_fingerprint: str | None = None
    choices: list[Completion] = []
    usage: Usage | None = None
    tokens_evaluated: int | None = None
    completion_probabilities: list[Made] = []


M = TypeVar("M", bound=BaseModel)


class Server(ABC):
    """A server, and the model that it serves."""

    program: str  # what people call it

    def __init__(self, url: str, session: requests.Session, model: str, context: int | None) -> None:
        self.url, self.model, self.context = url, model, context  # context: tokens, None if the server does not say
        self._session = session
        self._served: tuple[str | None, str | None] | None = None  # what answers call the model

    @abstractmethod
    def log_probs(self, tokens: Sequence[int], last: int) -> NDArray[np.float64]:
        """The log-probabilities, in nats, of the last `last` tokens of a prompt, each given all that precede it.

        TooLongError if the server refuses so many tokens; DataError if it gives no log-probabilities, reads another
        number of tokens than it was sent, serves another model than before, or fails.
        """

    def _ask(self, path: str, request: dict[str, Any]) -> ServerAnswer:
        answer = asked(ServerAnswer, self._session, "POST", f"{self.url}{path}", request)
        served = answer.model, answer.system_fingerprint
        if self._served is None:
            self._served = served
        elif self._served != served:
            before, now = (printable(" ".join(filter(None, each))) for each in (self._served, served))
            raise DataError(
                f"{self.url} answered as {before} and now as {now}: it changed its model; audit one at a time"
            )
        return answer

    def _check_read(self, sent: int, read: int | None) -> None:
        if read is None or read == sent:
            return
        said = f"{self.url} was sent {sent} tokens and read {read}"
        if read < sent:
            raise TooLongError(said)
        raise DataError(f"{said}: it adds tokens to the prompt; switch that off, and audit again")


class OpenAI(Server):
    """A server with the completions of OpenAI's API that returns the log-probabilities of a prompt."""

    program = "a server with OpenAI's completions"

    def log_probs(self, tokens: Sequence[int], last: int) -> NDArray[np.float64]:
        request = {"model": self.model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0, "logprobs": 1}
        answer = self._ask("/v1/completions", request | {"echo": True})
        self._check_read(len(tokens), answer.usage.prompt_tokens if answer.usage else None)
        logprobs = answer.choices[0].logprobs if answer.choices else None
        log_probs: Sequence[float | None] = (logprobs and logprobs.token_logprobs) or []
        if len(log_probs) < len(tokens):
            raise DataError(
                f"{self.url} returns no log-probabilities of the prompt (echo with logprobs); audit a server that "
                "does, such as vLLM, SGLang or llama.cpp"
            )
        return _finite(log_probs[len(tokens) - last : len(tokens)], self.url)


class LlamaCpp(Server):
    """The server of llama.cpp."""

    program = "llama.cpp"

    def log_probs(self, tokens: Sequence[int], last: int) -> NDArray[np.float64]:
        log_probs = []
        for end in range(len(tokens) - last, len(tokens)):
            request = {
                "model": self.model,
                "prompt": list(tokens[:end]),
                "n_predict": 1,
                "n_probs": 1,
                "temperature": 0,
                "cache_prompt": True,
            }
            answer = self._ask("/completion", request | {"logit_bias": [[tokens[end], FORCED]]})
            self._check_read(end, answer.tokens_evaluated)
            made = answer.completion_probabilities
            if not made or made[0].id != tokens[end]:
                raise DataError(f"{self.url} returns no log-probability of a token that it is made to generate")
            log_probs.append(made[0].logprob)
        return _finite(log_probs, self.url)


def _finite(values: Sequence[float | None], url: str) -> NDArray[np.float64]:
    """Log-probabilities as an array; DataError if one of them is missing, not finite or above 0."""
    numbers = np.array([np.nan if value is None else value for value in values], np.float64)
    if not np.isfinite(numbers).all() or (numbers > 0).any():
        raise DataError(
            f"{url} returns log-probabilities that are none: each must be a number of at most 0 (vLLM returns logits "
            "if it was started with --logprobs-mode raw_logits)"
        )
    return numbers


def connect(url: str, model: str | None = None) -> Server:
    """The server at a URL, such as http://localhost:8000, and the model that it serves, or the one that is named.

    UsageError for what is not a URL, for a key that cannot be sent, and for a name that the server does not know;
    DataError if it does not answer, or refuses the key.
    """
    secret = {*"@?#"} & {*url}  # what is beside them may be a password or a key
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets without an end, a port above 65535
        valid = False
    if not valid:
        what = "the address" if secret else printable(url)
        raise UsageError(f"{what} is no URL of a server; write http://HOST:PORT or https://HOST")
    if secret:
        raise UsageError(
            f"the URL holds a password, a query or a fragment: leave it out, and set {KEYS[0]} to the server's key"
        )
    root = url.rstrip("/").removesuffix("/v1")
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=RETRIES))
    of_openai = parts.scheme == "https" and f".{parts.hostname}".endswith(".openai.com")
    for name in reversed(KEYS if of_openai else KEYS[:1]):
        if key := os.environ.get(name, "").strip():
            if not (key.isascii() and key.isprintable()):
                raise UsageError(f"{name} holds a character that no key has; set it to the key alone, in plain ASCII")
            session.headers["Authorization"] = f"Bearer {key}"
            session.auth = lambda request: request  # else what ~/.netrc holds would be sent in place of the key
    listed = {each.id: each for each in asked(Models, session, "GET", f"{root}/v1/models").data}
    names = printable(", ".join(listed) or "none")
    if model is not None and model not in listed:
        raise UsageError(f"{root} serves no {printable(model)}; it serves {names}")
    if model is None and len(listed) != 1:
        raise UsageError(f"{root} serves {len(listed)} models: {names}; name one with --served")
    entry = listed[model or next(iter(listed))]
    if entry.owned_by == "llamacpp":
        return LlamaCpp(root, session, entry.id, entry.meta.n_ctx if entry.meta else None)
    return OpenAI(root, session, entry.id, entry.max_model_len)


def asked(kind: type[M], session: requests.Session, method: str, url: str, request: dict[str, Any] | None = None) -> M:
    """What a server answers, of this kind; DataError, in one line, if it answers something else or not at all."""
    try:
        with session.request(method, url, json=request, timeout=TIMEOUT, stream=True) as response:
            content = _content(response, url)
    except (requests.RequestException, HTTPError) as error:  # the latter: a host that no name can be
        what = "takes too long" if isinstance(error, requests.Timeout) else "does not answer"
        raise DataError(f"{url} {what} ({type(error).__name__}); is the server running, and the URL right?") from error
    said = "" if response.ok else " ".join(content.decode(errors="replace").split())[:MOST_SAID]
    if response.status_code in (401, 403):
        raise DataError(f"{url} refuses the key ({response.status_code}); set {KEYS[0]} to one that it takes")
    if response.status_code == 429:
        raise DataError(f"{url} takes no more requests for now (429); wait, and run it again")
    if response.status_code in (400, 413, 422) and TOO_LONG.search(said):
        raise TooLongError(f"{url} refuses the prompt: {printable(said)}")
    if response.status_code == 500 and request is not None:
        said += "; it may be unable to give the log-probabilities of a prompt, or lack memory for them"
    if not response.ok:
        raise DataError(f"{url} fails with status {response.status_code}: {printable(said) or 'it says no more'}")
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{url} answers otherwise than a server of a language model ({printable(where + ': ' if where else '')}"
            f"{printable(first['msg'])}); is the URL right?"
        ) from error


def _content(response: requests.Response, url: str) -> bytes:
    """The body of an answer; DataError if it is longer than any answer is: a stream has no end."""
    content = bytearray()
    for part in response.iter_content(2**20):
        content += part
        if len(content) > LARGEST_ANSWER:
            raise DataError(f"{url} answers with more than {LARGEST_ANSWER} bytes; is the URL right?")
    return bytes(content)
