"""How long the hub's client waits: a hub that is silent, slow or failing is an error within half a minute.

By default the client of the hub waits without limit for some answers and repeats others for minutes. `limit_waiting`
bounds both: HF_HUB_DOWNLOAD_TIMEOUT, 10 seconds unless the environment says otherwise, is the longest silence, and a
failed request is repeated once. Versions of the client from 1 on only allow for less: there, requests whose connection
breaks are repeated for 23 seconds, and an answer that trickles is not noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import huggingface_hub
import requests
from huggingface_hub import constants
from huggingface_hub.utils import logging
from requests.adapters import HTTPAdapter

__all__ = ["HubGaveUp", "limit_waiting", "logging"]

SLOWEST_BYTES_PER_SECOND = 1000  # an answer that arrives more slowly than this has stalled
READ_BYTES = 2**16
FAILURES_IN_A_ROW = 2  # the client may repeat a failed request once
TOO_MANY_REQUESTS, FIRST_SERVER_ERROR = 429, 500


class HubGaveUp(OSError):
    """The hub has failed repeatedly. The hub's client repeats most errors, but not this one."""

    def __init__(self, reason: str, response: requests.Response | None = None) -> None:
        super().__init__(reason)
        self.response = response


def limit_waiting() -> None:
    """Bound how long this process waits for the hub; counts failures from zero."""
    adapter = _Adapter()
    if not hasattr(huggingface_hub, "configure_http_backend"):
        utils: Any = huggingface_hub.utils
        client = utils.get_session()
        hooks = client.event_hooks
        added = {"request": adapter.bounded, "response": adapter.answered}
        client.event_hooks = {**hooks, **{event: [*hooks.get(event, []), hook] for event, hook in added.items()}}
        client.timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        return

    def session() -> requests.Session:
        made = requests.Session()
        made.mount("http://", adapter)
        made.mount("https://", adapter)
        return made

    huggingface_hub.configure_http_backend(session)


class _Adapter(HTTPAdapter):
    """Sends the requests of one load."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0  # since the last complete answer

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        options["timeout"] = min(options.get("timeout") or float("inf"), constants.HF_HUB_DOWNLOAD_TIMEOUT)
        try:
            response = super().send(request, *args, **options)
        except requests.RequestException as error:
            self._count(str(error))
            raise
        if self._accepted(response) and hasattr(response.raw, "read1"):
            response.raw.stream = self._watched(response.raw.read1)
        return response

    def bounded(self, request: Any) -> None:
        """Bound the waiting of a request of a client that has hooks; it asks for some answers without a limit."""
        given = request.extensions.get("timeout", {})
        limit = constants.HF_HUB_DOWNLOAD_TIMEOUT
        bounds = {kind: min(given.get(kind) or limit, limit) for kind in ("connect", "read", "write", "pool")}
        request.extensions = {**request.extensions, "timeout": bounds}

    def answered(self, response: Any) -> None:
        """Judge an answer of a client that has hooks instead of adapters."""
        if self._accepted(response):
            self.failures = 0

    def _accepted(self, response: Any) -> bool:
        """Whether the hub answered anything but an error of its own; HubGaveUp if it is no use to ask again."""
        status = f"the hub answered {response.status_code} for {response.url}"
        if response.status_code == TOO_MANY_REQUESTS:
            raise HubGaveUp(status, response)
        if response.status_code >= FIRST_SERVER_ERROR:
            self._count(status, response)
        return bool(response.status_code < FIRST_SERVER_ERROR)

    def _count(self, reason: str, response: requests.Response | None = None) -> None:
        self.failures += 1
        if self.failures >= FAILURES_IN_A_ROW:
            raise HubGaveUp(reason, response)

    def _watched(self, read: Callable[..., bytes]) -> Callable[..., Iterator[bytes]]:
        """A replacement for the method `stream` of a response's body that fails if the body stalls."""

        def stream(_: int = 0, decode_content: bool | None = None) -> Iterator[bytes]:
            waited, received = 0.0, 0
            while True:
                begin = time.monotonic()
                try:
                    content = read(READ_BYTES, decode_content=decode_content)
                except Exception as error:
                    self._count(str(error))
                    raise
                waited, received = waited + time.monotonic() - begin, received + len(content)
                if not content:
                    self.failures = 0
                    return
                if waited > constants.HF_HUB_DOWNLOAD_TIMEOUT and received < SLOWEST_BYTES_PER_SECOND * waited:
                    raise HubGaveUp(f"the hub sends too slowly: {received} bytes in {waited:.0f} s")
                yield content

        return stream
