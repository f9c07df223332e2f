"""A model server on localhost: a stock model of transformers behind OpenAI's completions, or behind llama.cpp's.

with ModelServer(folder, {"rope_theta": 100.0}) as server:
    ...  # server.url; the model has the weights of the folder, and a config.json that was changed

It can also misbehave, as `Fault` says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self

import torch

from poscli.checkpoints.checkpoint_model import quiet


@dataclass
class Fault:
    """How a server misbehaves."""

    context: int | None = None  # the most tokens that it takes, the answer's included
    spared: int = 0  # further tokens of the context that it does not take, as SGLang does not take the last ones
    cuts: int | None = None  # it reads only the last tokens of longer prompts, and says nothing
    refuses: list[int] = field(default_factory=list)  # statuses of the next answers, each once
    key: str | None = None  # the only key that it takes
    silent: bool = False  # no log-probabilities
    other_after: int | None = None  # answers after which it is another model
    bad: bool = False  # log-probabilities that are none
    adds: int = 0  # tokens that it puts in front of a prompt


class ModelServer:
    """The server, for a `with` block. `llama_cpp` chooses the API."""

    def __init__(
        self,
        folder: Path,
        changes: Mapping[str, Any] | None = None,
        fault: Fault | None = None,
        *,
        llama_cpp: bool = False,
    ) -> None:
        import transformers

        with quiet():
            config = transformers.AutoConfig.from_pretrained(folder)
            for key, value in (changes or {}).items():
                setattr(config, key, value)
            self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config).eval()
        self.fault, self.llama_cpp = fault or Fault(), llama_cpp
        self.answers = 0
        self.keys: list[str] = []  # those that clients have sent
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.answer(*server.models(self.path))

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.keys.append(self.headers.get("Authorization", ""))
                self.answer(*server.completion(self.path, request, self.headers.get("Authorization", "")))

            def answer(self, status: int, content: dict[str, Any]) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(body)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> Self:
        Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.shutdown()
        self.http.server_close()

    def models(self, path: str) -> tuple[int, dict[str, Any]]:
        """What GET answers."""
        if path != "/v1/models":
            return 404, {}
        entry: dict[str, Any] = {"id": "tiny", "object": "model"}
        if self.llama_cpp:
            entry |= {"owned_by": "llamacpp", "meta": {"n_ctx": self.fault.context}}
        else:
            entry |= {"max_model_len": self.fault.context}
        return 200, {"data": [entry]}

    def completion(self, path: str, request: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        """What POST answers."""
        fault, prompt = self.fault, request["prompt"]
        if fault.refuses:
            return fault.refuses.pop(0), {"error": "not now"}
        if fault.key is not None and key != f"Bearer {fault.key}":
            return 401, {"error": "Unauthorized"}
        if fault.context is not None and len(prompt) + 1 > fault.context - fault.spared:
            return 400, {"error": {"message": f"the request exceeds the available context size of {fault.context}"}}
        self.answers += 1
        changed = fault.other_after is not None and self.answers > fault.other_after
        head = {"model": "another" if changed else "tiny"}
        if self.llama_cpp:
            assert path == "/completion"
            ((token, bias),) = request["logit_bias"]
            assert bias > 1000
            found = {"id": token, "logprob": float(self.log_probs([*prompt, token])[-1])}
            return 200, head | {"tokens_evaluated": len(prompt), "completion_probabilities": [found]}
        assert path == "/v1/completions"
        assert request["echo"]
        values: list[float | None] = [None, *(self.log_probs(prompt).tolist()), -1.0]
        if fault.bad:
            values = [0.5] * len(values)
        content = None if fault.silent else {"token_logprobs": values}
        return 200, head | {"choices": [{"logprobs": content}], "usage": {"prompt_tokens": len(prompt) + fault.adds}}

    @torch.inference_mode()
    def log_probs(self, tokens: list[int]) -> torch.Tensor:
        """The log-probabilities of all tokens but the first, of those that the server reads."""
        read = tokens[-self.fault.cuts :] if self.fault.cuts else tokens
        ids_1T = torch.tensor(read)[None]
        log_probs_TV = self.model(ids_1T[:, :-1]).logits[0].double().log_softmax(-1)
        found = log_probs_TV.gather(1, ids_1T[0, 1:, None])[:, 0]
        return torch.cat([found.new_full((len(tokens) - len(read),), -9.0), found])
