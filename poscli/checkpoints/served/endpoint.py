"""A model behind an HTTP server: the log-probabilities that it gives to the tokens of a prompt.

Two kinds of server are known. Those with the completions of OpenAI's API return the log-probabilities of the prompt
itself (`echo` with `logprobs`: vLLM, SGLang and others). The server of llama.cpp gives them only for tokens that it
generates, but takes a bias on the scores, which decides what it generates and leaves the log-probabilities as they are:
so it is made to generate the tokens of the text. Of each request it computes only what it has not read before.

A key is read from POSCLI_API_KEY or OPENAI_API_KEY, and never shown.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import requests
from numpy.typing import NDArray
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from poscli.system.errors import DataError, UsageError
from poscli.system.text import printable

KEYS = ("POSCLI_API_KEY", "OPENAI_API_KEY")
RETRIES = Retry(
    total=6,
    connect=1,
    backoff_factor=0.5,  # half a second, one, two, ... between them, or as long as the server asks for
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=None,
    raise_on_status=False,
)
TIMEOUT = (10, 600)  # seconds: to connect, and for an answer, which may have to read many thousand tokens first
MOST_SAID = 200  # characters of a server's own message
CERTAIN = 1e4  # added to the score of a token that must be generated
TOO_LONG = re.compile(r"context|too long|maximum|max_model_len|exceed|n_ctx", re.IGNORECASE)


class TooLongError(DataError):
    """A server refuses a prompt because of its length."""


class Server(ABC):
    """A server, and the model that it serves."""

    program: str  # what people call it

    def __init__(self, url: str, session: requests.Session, model: str, context: int | None) -> None:
        self.url, self.model, self.context = url, model, context  # context: tokens, None if the server does not say
        self._session = session
        self._served: tuple[Any, Any] | None = None  # what answers call the model

    @abstractmethod
    def log_probs(self, tokens: Sequence[int], last: int) -> NDArray[np.float64]:
        """The log-probabilities, in nats, of the last `last` tokens of a prompt, each given all that precede it.

        TooLongError if the server refuses so many tokens; DataError if it gives no log-probabilities, reads another
        number of tokens than it was sent, serves another model than before, or fails.
        """

    def _ask(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        answer = asked(self._session, "POST", f"{self.url}{path}", request)
        served = answer.get("model"), answer.get("system_fingerprint")
        if self._served is None:
            self._served = served
        elif self._served != served:
            before, now = (printable(" ".join(str(part) for part in each if part)) for each in (self._served, served))
            raise DataError(
                f"{self.url} answered as {before} and now as {now}: it changed its model; audit one at a time"
            )
        return answer

    def _check_read(self, sent: int, read: Any) -> None:
        if isinstance(read, int) and read != sent:
            raise TooLongError(f"{self.url} read {read} of {sent} tokens: it cuts prompts")


class OpenAI(Server):
    """A server with the completions of OpenAI's API that returns the log-probabilities of a prompt."""

    program = "a server with OpenAI's completions"

    def log_probs(self, tokens: Sequence[int], last: int) -> NDArray[np.float64]:
        request = {"model": self.model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0, "logprobs": 1}
        answer = self._ask("/v1/completions", request | {"echo": True})
        self._check_read(len(tokens), (answer.get("usage") or {}).get("prompt_tokens"))
        found = ((answer.get("choices") or [{}])[0].get("logprobs") or {}).get("token_logprobs")
        if not isinstance(found, list) or len(found) < len(tokens):
            raise DataError(
                f"{self.url} returns no log-probabilities of the prompt (echo with logprobs); audit a server that "
                "does, such as vLLM, SGLang or llama.cpp"
            )
        return _finite(found[len(tokens) - last : len(tokens)], self.url)


class LlamaCpp(Server):
    """The server of llama.cpp."""

    program = "llama.cpp"

    def log_probs(self, tokens: Sequence[int], last: int) -> NDArray[np.float64]:
        found = []
        for end in range(len(tokens) - last, len(tokens)):
            request = {
                "prompt": list(tokens[:end]),
                "n_predict": 1,
                "n_probs": 1,
                "temperature": 0,
                "cache_prompt": True,
            }
            answer = self._ask("/completion", request | {"logit_bias": [[tokens[end], CERTAIN]]})
            self._check_read(end, answer.get("tokens_evaluated"))
            made = (answer.get("completion_probabilities") or [{}])[0]
            if made.get("id") != tokens[end] or "logprob" not in made:
                raise DataError(f"{self.url} returns no log-probability of a token that it is made to generate")
            found.append(made["logprob"])
        return _finite(found, self.url)


def _finite(values: list[Any], url: str) -> NDArray[np.float64]:
    numbers = np.array([np.nan if value is None else value for value in values], np.float64)
    if not np.isfinite(numbers).all() or (numbers > 0).any():
        raise DataError(f"{url} returns log-probabilities that are none: each must be a number of at most 0")
    return numbers


def connect(url: str, model: str | None = None) -> Server:
    """The server at a URL, such as http://localhost:8000, and the model that it serves, or the one that is named.

    UsageError for what is no URL, and for a name that the server does not know; DataError if it does not answer, or
    refuses the key.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{printable(url)} is no URL of a server; write http://HOST:PORT or https://HOST")
    if parts.username or parts.password:
        raise UsageError(f"the URL holds a password: leave it out, and set {KEYS[0]} to the server's key")
    root = url.rstrip("/").removesuffix("/v1")
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=RETRIES))
    if key := next((os.environ[name] for name in KEYS if os.environ.get(name)), ""):
        session.headers["Authorization"] = f"Bearer {key}"
    listed = asked(session, "GET", f"{root}/v1/models").get("data") or [{}]
    names = [str(each.get("id")) for each in listed if isinstance(each, dict)]
    if model is not None and model not in names:
        raise UsageError(f"{root} serves no {printable(model)}; it serves {printable(', '.join(names))}")
    if model is None and len(names) != 1:
        raise UsageError(f"{root} serves {len(names)} models; give --served with one of {printable(', '.join(names))}")
    name = model or names[0]
    entry = listed[names.index(name)]
    if entry.get("owned_by") == "llamacpp":
        meta = entry.get("meta") or {}
        return LlamaCpp(root, session, name, meta.get("n_ctx"))
    return OpenAI(root, session, name, entry.get("max_model_len"))


def asked(session: requests.Session, method: str, url: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
    """The object of JSON that a server answers with; DataError, in one line, if there is none."""
    try:
        response = session.request(method, url, json=request, timeout=TIMEOUT)
    except requests.RequestException as error:
        what = "takes too long" if isinstance(error, requests.Timeout) else "does not answer"
        raise DataError(f"{url} {what} ({type(error).__name__}); is the server running, and the URL right?") from error
    said = " ".join(response.text.split())[:MOST_SAID]
    if response.status_code in (401, 403):
        raise DataError(f"{url} refuses the key ({response.status_code}); set {KEYS[0]} to one that it takes")
    if response.status_code == 429:
        raise DataError(f"{url} takes no more requests for now (429); wait, and run it again")
    if response.status_code in (400, 413, 422) and TOO_LONG.search(said):
        raise TooLongError(f"{url} refuses the prompt: {printable(said)}")
    if not response.ok:
        raise DataError(f"{url} fails with status {response.status_code}: {printable(said) or 'it says no more'}")
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise DataError(f"{url} answers with what is no object of JSON: it is no server of a language model")
    return content
