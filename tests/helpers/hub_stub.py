"""A stand-in for the hub on localhost: the part of its HTTP API that data sets and models need.

A repository is served as a data set and as a model alike.

with Hub({"org/set": {"README.md": b"...", "data/train-0.parquet": parquet(["one", "two"])}}) as hub:
    ...  # a child process with HF_ENDPOINT=hub.url
    assert hub.requested("train-1") == 0

The hub can be made to fail: GET /fault/STAGE/KIND, with a stage of STAGES and a kind of KINDS, spoils the answers of
that stage until GET /fault/none/none.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow
from pyarrow import parquet as pq

REVISION = "0123456789abcdef0123456789abcdef01234567"

Repositories = dict[str, dict[str, bytes]]

STAGES = {  # stage -> the paths that it asks for
    "info": r"/api/(datasets|models)/[^/]+/[^/]+",
    "listing": r"/api/(datasets|models)/[^/]+/[^/]+/(revision|tree|paths-info)/.*|.*/README.md",
    "download": r".*\.(parquet|safetensors)",
    "none": r"(?!)",
}
KINDS = ("401", "404", "429", "500", "silent", "truncated", "short", "dropped", "none")


def parquet(rows: list[str | None], column: str = "text") -> bytes:
    """A parquet file of one column."""
    file = io.BytesIO()
    pq.write_table(pyarrow.table({column: rows}), file)
    return file.getvalue()


def spoken(rows: list[str]) -> bytes:
    """A parquet file of texts, each beside a sound that no package at hand can decode."""
    features = {"text": {"dtype": "string", "_type": "Value"}, "sound": {"_type": "Audio"}}
    described = json.dumps({"info": {"features": features}})
    table = pyarrow.table({"text": rows, "sound": [{"bytes": b"no sound", "path": None}] * len(rows)})
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"huggingface": described}), file)
    return file.getvalue()


def card(configs: dict[str, list[str]]) -> bytes:
    """A README that declares configurations and their splits; the files of a split are CONFIG/SPLIT-*."""
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        lines += [line for split in splits for line in (f"  - split: {split}", f"    path: {config}/{split}-*")]
    return "\n".join([*lines, "---", ""]).encode()


def prose(documents: int, size: int, seed: int) -> list[str | None]:
    """Random texts of `size` bytes, which compression cannot shrink much."""
    rng = random.Random(seed)
    return ["".join(rng.choices("etaoin shrdlu", k=size - 1)) + "\n" for _ in range(documents)]


# What a child process runs first: `slept()` is how many seconds it has asked to sleep since the last call, as the
# client does before it repeats a request. It sleeps no longer than a moment.
COUNT_SLEEPS = """
import time
_asked, _sleep = [0.0], time.sleep
def _counted(seconds):
    _asked[0] += seconds
    _sleep(min(seconds, 0.01))
def slept():
    seconds, _asked[0] = _asked[0], 0.0
    return seconds
time.sleep = _counted
"""


def run_child(code: str, arguments: list[str], home: Path, **environment: str) -> list[str]:
    """The lines that Python code prints in a fresh process whose caches are in `home`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    caches = {"HF_HOME": str(home / "hf"), "POSCLI_CACHE": str(home / "poscli"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", COUNT_SLEEPS + code, *arguments]
    child = subprocess.run(command, env={**inherited, **caches, **environment}, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr  # fails too if threads of half-read parquet files abort the child
    return child.stdout.splitlines()


def assert_gives_up_soon(slept: float, asked: int, fault: str) -> None:
    """Fail unless a client that met a fault slept at most half a minute and asked again a few times only."""
    assert slept <= 30, (fault, slept)
    assert 1 <= asked <= 24, (fault, asked)


class Hub:
    """The server; `log` holds (method, path, bytes of body) of every answer."""

    def __init__(self, repositories: Repositories) -> None:
        self.repositories = repositories
        self.revision = REVISION
        self.branches = {"main"}  # names of the one revision
        self.gated: set[str] = set()  # repositories whose files need a login
        self.log: list[tuple[str, str, int]] = []
        self.fault = ("none", "none")  # stage, kind
        self.spoiled: list[str] = []  # the path of every request that a fault has spoiled
        self.repaired = Event()  # wakes the answers that a fault keeps waiting
        hub = self

        class Handler(_Handler):
            owner = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.repaired.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def fail(self, stage: str, kind: str) -> None:
        """Spoil the answers of one stage from now on, in one way; "none" ends it."""
        assert stage in STAGES
        assert kind in KINDS
        self.repaired.set()
        self.repaired = Event()
        self.fault = (stage, kind)

    def spoiled_of(self, repo: str) -> int:
        """How many requests for one repository a fault has spoiled."""
        return sum(f"/{repo}/" in f"{path}/" for path in self.spoiled)

    def requested(self, part: str) -> int:
        """How many requests had `part` in their path."""
        return sum(part in path for _, path, _ in self.log)


class _Handler(BaseHTTPRequestHandler):
    owner: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        path = unquote(url.path)
        stage, kind = self.owner.fault
        self.spoiled = kind if re.fullmatch(STAGES[stage], path) else "none"
        if self.spoiled != "none":
            self.owner.spoiled.append(path)
        if match := re.fullmatch(r"/fault/(\w+)/(\w+)", path):
            self.owner.fail(match[1], match[2])
            self._answer(200)
        elif self.spoiled.isdigit():
            self._answer(int(self.spoiled))
        elif path in ("/api/datasets", "/api/models"):
            found = [name for name in self.owner.repositories if query["search"].lower() in name.lower()]
            self._json([{"id": name} for name in found])
        elif match := re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(match[1], match[2])
        elif match := re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)/tree/[^/]+/?(.*)", path):
            self._json(_tree(self.owner.repositories[match[1]], match[2], query.get("recursive") == "True"))
        elif match := re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            if match[1] in self.owner.gated:
                self._answer(401, headers={"X-Error-Code": "GatedRepo"})
            else:
                self._file(self.owner.repositories[match[1]].get(match[2]))
        else:
            self._answer(404)

    def _info(self, repo: str, revision: str | None) -> None:
        if revision not in (None, self.owner.revision, *self.owner.branches):
            self._answer(404, headers={"X-Error-Code": "RevisionNotFound"})
        elif repo in self.owner.repositories:
            files = [{"rfilename": name} for name in self.owner.repositories[repo]]
            self._json({"id": repo, "sha": self.owner.revision, "siblings": files, "tags": []})
        else:
            self._answer(404, headers={"X-Error-Code": "RepoNotFound"})

    def _file(self, content: bytes | None) -> None:
        if content is None:
            return self._answer(404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {
            "ETag": f'"{hash(content) & 0xFFFFFFFF:x}"',
            "X-Repo-Commit": self.owner.revision,
            "Accept-Ranges": "bytes",
        }
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or self.command == "HEAD":
            return self._answer(200, content, headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return self._answer(206, content[first : last + 1], headers)

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        if self.spoiled in ("silent", "dropped"):
            self.owner.log.append((self.command, self.path, 0))
            self.close_connection = True
            if self.spoiled == "silent":
                self.owner.repaired.wait(60)
            return
        if self.spoiled == "short":  # as if the file itself were damaged
            body = body[: len(body) // 2]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        sent = b"" if self.command == "HEAD" else body
        self.owner.log.append((self.command, self.path, len(sent)))
        if self.spoiled == "truncated":
            sent, self.close_connection = sent[: len(sent) // 2], True
        self.wfile.write(sent)


def _tree(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict[str, object]]:
    """The hub's listing of a folder: files and folders, of all levels or of the first level only."""
    entries: dict[str, dict[str, object]] = {}
    for name, content in files.items():
        if not name.startswith(folder):
            continue
        parts = name.removeprefix(folder).strip("/").split("/")
        for depth in range(1, len(parts) + 1 if recursive else 2):
            path = "/".join([folder, *parts[:depth]]).strip("/")
            kind = "file" if path == name else "directory"
            entries[path] = {"type": kind, "path": path, "oid": "0", "size": len(content) if kind == "file" else 0}
    return list(entries.values())
