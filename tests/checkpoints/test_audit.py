"""`poscli audit` names what a server does otherwise than config.json says, and nothing about a server that is right.

The servers are model_server.py, with a stock model of transformers. Those of llama.cpp are in test_real_servers.py.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoints import LENGTH, make, write_corpus
from cli_runner import cli
from model_server import Fault, ModelServer
from urllib3 import HTTPResponse

from poscli.checkpoints.served import endpoint
from poscli.checkpoints.served.endpoint import RETRIES, Listed, Models, connect
from poscli.specs import parse
from poscli.system.errors import DATA, FAILED, USAGE

TARGET = 2 * LENGTH


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of Llama, with rope by 5000."""
    return make("llama", tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "ships.jsonl")


@pytest.fixture(autouse=True)
def _no_keys_and_no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POSCLI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(RETRIES, "backoff_factor", 0)  # seconds


def audit(server: ModelServer, folder: Path, corpus: str, *options: str) -> Any:
    return cli("audit", server.url, "--model", folder, "--corpus", corpus, *options)


def found(server: ModelServer, folder: Path, corpus: str, *options: str) -> dict[str, Any]:
    result = audit(server, folder, corpus, "--json", *options)
    assert result.code in (0, FAILED), result.err
    document: dict[str, Any] = json.loads(result.out)
    assert (result.code == FAILED) == bool(document["faults"])
    return document


@pytest.mark.parametrize("llama_cpp", [False, True])
def test_a_right_server_has_no_faults(folder: Path, corpus: str, llama_cpp: bool) -> None:
    with ModelServer(folder, llama_cpp=llama_cpp) as server:
        document = found(server, folder, corpus, "--target", "2x")
    assert document["faults"] == []
    assert document["residual"] < 1e-4
    assert [reading["tokens"] for reading in document["readings"]] == [LENGTH, TARGET]
    for reading in document["readings"]:
        assert reading["served"] == pytest.approx(reading["own"], rel=1e-4)


def test_a_model_without_rope_is_compared_too(corpus: str, tmp_path: Path) -> None:
    folder = make("bloom", tmp_path / "bloom")
    with ModelServer(folder) as right, ModelServer(make("bloom-6", tmp_path / "other")) as wrong:
        assert found(right, folder, corpus, "--target", "2x")["faults"] == []
        assert [each["name"] for each in found(wrong, folder, corpus)["faults"]] == ["other weights"]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": LENGTH}
SHARPER = YARN | {"factor": 1.0, "attention_factor": 1.3}
WRONG: dict[str, tuple[dict[str, Any], str, list[tuple[str, float]]]] = {
    "theta": ({"rope_theta": 500.0}, "rope", [("base", 500)]),
    "factor": ({"rope_scaling": {"rope_type": "linear", "factor": 3.0}}, "rope-linear", [("factor", 3)]),
    "factor of YaRN": ({"rope_scaling": YARN}, "yarn", [("factor", 4)]),
    "attention factor": ({"rope_scaling": SHARPER}, "yarn", [("attention", 1.3)]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_server_computes_instead_is_named_with_its_number(folder: Path, corpus: str, name: str) -> None:
    changes, encoding, numbers = WRONG[name]
    with ModelServer(folder, changes) as server:
        document = found(server, folder, corpus, "--target", "1x")
    assert [each["name"] for each in document["faults"]] == [name.removesuffix(" of YaRN")]
    assert document["residual_explained"] < document["residual"] / 3
    ((leaf,),) = parse(document["explains"]).layers
    assert leaf.name == encoding
    for key, value in numbers:
        assert dict(leaf.options)[key] == pytest.approx(value, rel=0.05)


def test_theta_is_looked_for_where_only_layers_with_a_window_rotate(corpus: str, tmp_path: Path) -> None:
    folder = make("cohere2", tmp_path / "cohere2")
    with ModelServer(folder, {"rope_theta": 60.0}) as server:
        document = found(server, folder, corpus, "--target", "1x")
    assert [each["name"] for each in document["faults"]] == ["theta"]
    bases = [dict(leaf.options).get("base") for (leaf, *_) in parse(document["explains"]).layers]
    assert bases == [pytest.approx(60, rel=0.1)] * 3 + [None]


def test_a_scaling_is_looked_for_on_the_layers_that_have_it(corpus: str, tmp_path: Path) -> None:
    """Gemma 3's layers with a window have a theta of their own, and no scaling."""
    plain = make("gemma3", tmp_path / "plain")
    scaled = make("gemma3", tmp_path / "scaled", rope_scaling={"rope_type": "linear", "factor": 8.0})
    with ModelServer(plain) as ignoring, ModelServer(scaled) as scaling:
        ignored = found(ignoring, scaled, corpus, "--target", "1x")
        added = found(scaling, plain, corpus, "--target", "1x")
    assert [each["name"] for each in ignored["faults"]] == ["scaling ignored"]
    assert "should compute rope-linear(factor=8.0, original=8, base=3000.0)" in ignored["faults"][0]["said"]
    assert [each["name"] for each in added["faults"]] == ["factor"]
    (factor,) = [dict(layer[0].options)["factor"] for layer in parse(added["explains"]).layers if len(layer) == 1]
    assert factor == pytest.approx(8, rel=0.05)


def test_a_scaling_that_was_asked_for_is_right_and_one_that_is_ignored_is_named(folder: Path, corpus: str) -> None:
    asked = ("--as", "yarn(factor=4, original=1L)", "--target", "1x")
    with ModelServer(folder, {"rope_scaling": YARN}) as right, ModelServer(folder) as wrong:
        assert found(right, folder, corpus, *asked)["faults"] == []
        assert [each["name"] for each in found(wrong, folder, corpus, *asked)["faults"]] == ["scaling ignored"]


LINEAR = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(("name", "scaling"), [("rope-linear", LINEAR), ("yarn", YARN)])
def test_a_scaling_without_a_factor_is_the_one_for_the_target(
    folder: Path, corpus: str, name: str, scaling: dict[str, Any]
) -> None:
    asked = ("--as", name, "--target", "4x")
    half = scaling | {"factor": 2.0}
    with ModelServer(folder, {"rope_scaling": scaling}) as right:
        assert f"as it should, with {name}(factor=4.0" in " ".join(audit(right, folder, corpus, *asked).out.split())
    with ModelServer(folder, {"rope_scaling": half}) as wrong:
        (fault,) = found(wrong, folder, corpus, *asked)["faults"]
    assert fault["name"] == "factor"
    assert fault["said"].endswith("and should be 4")
    with ModelServer(folder) as plain:
        (fault,) = found(plain, folder, corpus, *asked)["faults"]
    assert fault["name"] == "scaling ignored"
    assert f"it computes rope as it is, and should compute {name}(factor=4.0" in fault["said"]


@pytest.mark.parametrize("target", [(), ("--target", "1x")])
def test_a_scaling_without_a_factor_needs_a_longer_target(folder: Path, corpus: str, target: tuple[str, ...]) -> None:
    with ModelServer(folder, {"rope_scaling": YARN}, Fault(context=4 * LENGTH)) as server:
        result = audit(server, folder, corpus, "--as", "yarn", *target)
    assert (result.code, result.out) == (USAGE, "")
    assert "--as yarn names no factor" in result.err
    assert f"a --target above {LENGTH}" in result.err


def test_a_scaling_that_follows_the_text_stays_as_it_is(folder: Path, corpus: str) -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    asked = ("--as", "rope-dynamic", "--target", "2x")
    with ModelServer(folder, {"rope_scaling": scaling}) as right, ModelServer(folder) as plain:
        assert found(right, folder, corpus, *asked)["faults"] == []
        (fault,) = found(plain, folder, corpus, *asked)["faults"]
    assert fault["name"] == "long inputs"
    assert "computes other positions in long inputs" in fault["said"]


def test_a_server_that_takes_or_reads_less_than_it_should_is_named(folder: Path, corpus: str) -> None:
    with ModelServer(folder, fault=Fault(context=LENGTH, spared=6)) as short:
        assert found(short, folder, corpus)["faults"] == []
        document = found(short, folder, corpus, "--target", "2x")
        assert [each["name"] for each in document["faults"]] == ["cap"]
        assert document["readings"][-1]["served"] is None
    with ModelServer(folder, fault=Fault(cuts=LENGTH + 8)) as cutting:
        (fault,) = found(cutting, folder, corpus, "--target", "4x")["faults"]
    assert fault["name"] == "long inputs"


def test_learned_positions_are_audited_up_to_their_end(corpus: str, tmp_path: Path) -> None:
    folder = make("gpt2", tmp_path / "gpt2")
    with ModelServer(folder, fault=Fault(context=2 * LENGTH)) as server:
        assert [each["tokens"] for each in found(server, folder, corpus)["readings"]] == [LENGTH]
        beyond = audit(server, folder, corpus, "--target", "2x")
    assert beyond.code == USAGE
    assert f"must be between {LENGTH} and {LENGTH}, where its learned positions end" in beyond.err


def test_without_a_target_no_more_is_read_than_one_can_ask_for(corpus: str, tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "long", max_position_embeddings=600_000)
    with ModelServer(folder, fault=Fault(context=2_000_000)) as server:
        result = audit(server, folder, corpus)
    assert result.code == DATA
    assert "an audit of 1048576 needs" in result.err


def test_other_weights_are_named(folder: Path, corpus: str, tmp_path: Path) -> None:
    other = make("llama", tmp_path / "other", rope_theta=5000.0, hidden_size=64)
    with ModelServer(other) as server:
        document = found(server, folder, corpus, "--target", "1x")
    assert document["faults"][0]["name"] == "other weights"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_log_probabilities_that_never_change_are_those_of_other_weights(
    folder: Path, corpus: str, form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(folder) as server:
        monkeypatch.setattr(server, "log_probs", lambda tokens: torch.full((len(tokens) - 1,), -5.768))
        result = audit(server, folder, corpus, "--target", "1x", *form)
    assert result.code == FAILED
    assert "correlate by 0.00" in " ".join(result.out.split())


def test_a_large_difference_that_nothing_explains_is_not_called_right(
    folder: Path, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(folder) as server:
        stock = server.model
        monkeypatch.setattr(server, "model", lambda ids: SimpleNamespace(logits=0.6 * stock(ids).logits))
        document = found(server, folder, corpus, "--target", "1x")
    (fault,) = document["faults"]
    assert fault["name"] == "unexplained"
    assert f"differ by {document['residual']:.2f} nats" in fault["said"]


def test_a_server_that_hangs_is_asked_once(folder: Path, corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(endpoint, "TIMEOUT", (1, 0.2))  # seconds
    with ModelServer(folder) as server:
        monkeypatch.setattr(server, "completion", lambda *_: (asked.append(1), time.sleep(0.5), (500, {}))[-1])
        result = audit(server, folder, corpus, "--target", "1x")
    assert (result.code, len(asked)) == (DATA, 1)
    assert "takes too long" in result.err


@pytest.mark.parametrize("llama_cpp", [False, True])
def test_every_request_names_the_model(
    folder: Path, corpus: str, llama_cpp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of several models has no other way to know which one is meant."""
    named: set[str] = set()
    with ModelServer(folder, llama_cpp=llama_cpp) as server:
        answer = server.completion

        def completion(path: str, request: Any, key: str) -> Any:
            named.add(request.get("model", ""))
            return answer(path, request, key)

        monkeypatch.setattr(server, "completion", completion)
        assert audit(server, folder, corpus, "--target", "1x").code == 0
    assert named == {"tiny"}


def test_a_busy_server_is_asked_again(folder: Path, corpus: str) -> None:
    with ModelServer(folder, fault=Fault(refuses=[429, 503, 502])) as server:
        assert found(server, folder, corpus, "--target", "1x")["faults"] == []
    assert RETRIES.new().get_retry_after(HTTPResponse(status=429, headers={"Retry-After": "20"})) == 20
    assert RETRIES.new().get_retry_after(HTTPResponse(status=429, headers={"Retry-After": "86400"})) == 60


def test_a_stream_without_an_end_is_no_answer(folder: Path, corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LARGEST_ANSWER", 1000)  # bytes
    with ModelServer(folder) as server:
        monkeypatch.setattr(server, "models", lambda *_: (200, {"data": "x" * 2000}))
        result = audit(server, folder, corpus)
    assert (result.code, result.out) == (DATA, "")
    assert "answers with more than 1000 bytes; is the URL right?" in result.err


def test_the_key_comes_from_the_environment_and_is_never_shown(
    folder: Path, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password pw\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with ModelServer(folder, fault=Fault(key="secret-42")) as server:
        refused = audit(server, folder, corpus)
        monkeypatch.setenv("POSCLI_API_KEY", "secret-42")
        taken = audit(server, folder, corpus, "--target", "1x")
        monkeypatch.setenv("POSCLI_API_KEY", "wrong-17")
        wrong = audit(server, folder, corpus)
    assert (refused.code, taken.code, wrong.code) == (DATA, 0, DATA)
    assert "refuses the key (401); set POSCLI_API_KEY" in refused.err
    for result in (refused, taken, wrong):
        assert "secret-42" not in result.out + result.err
        assert "wrong-17" not in result.out + result.err


def test_a_key_is_stripped_and_one_that_cannot_be_sent_is_refused(
    folder: Path, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(folder, fault=Fault(key="secret-42")) as server:
        monkeypatch.setenv("POSCLI_API_KEY", "secret-42\n")
        assert audit(server, folder, corpus, "--target", "1x").code == 0
        for key in ("secret\u2026key", "secret\nkey"):
            monkeypatch.setenv("POSCLI_API_KEY", key)
            result = audit(server, folder, corpus)
            assert result.code == USAGE
            assert "POSCLI_API_KEY holds a character that no key has" in result.err
            assert "secret" not in result.err


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://api.openai.com/v1", "Bearer secret-42"),
        ("http://api.openai.com", None),
        ("https://api.openai.com.example.org", None),
        ("https://localhost", None),
    ],
)
def test_the_key_of_openai_is_for_openai(url: str, sent: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []

    def answer(kind: object, session: Any, *_: object) -> Models:
        keys.append(session.headers.get("Authorization"))
        return Models(data=[Listed(id="m")])

    monkeypatch.setattr(endpoint, "asked", answer)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-42")
    connect(url)
    monkeypatch.setenv("POSCLI_API_KEY", "own-7")
    connect(url)
    assert keys == [sent, "Bearer own-7"]


BAD = {
    "no log-probabilities": (Fault(silent=True), DATA, "returns no log-probabilities of the prompt"),
    "numbers that are none": (Fault(bad=True), DATA, "log-probabilities that are none"),
    "tokens that it adds": (Fault(adds=1), DATA, "was sent 56 tokens and read 57: it adds tokens"),
    "another model": (Fault(other_after=3), DATA, "it changed its model"),
    "a small context": (Fault(context=LENGTH // 2), USAGE, f"an audit needs a context of {LENGTH} tokens"),
    "too many requests": (Fault(refuses=[429] * 99), DATA, "takes no more requests for now (429)"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_server_that_cannot_be_audited_is_refused_in_one_line(folder: Path, corpus: str, name: str) -> None:
    fault, code, said = BAD[name]
    with ModelServer(folder, fault=fault) as server:
        result = audit(server, folder, corpus, "--target", "1x")
    assert result.code == code
    assert said in result.err
    assert result.out == ""


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
@pytest.mark.parametrize(
    "content",
    [
        [],
        "text",
        {"data": 1},
        {"data": [{"name": "x"}]},
        {"data": [{"id": "tiny", "owned_by": "llamacpp", "meta": {"n_ctx": "many"}}]},
        {"choices": [3]},
        {"usage": 5},
    ],
)
def test_an_answer_of_another_form_is_one_line(
    folder: Path, corpus: str, path: str, content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(folder) as server:
        name = "models" if path == "/v1/models" else "completion"
        monkeypatch.setattr(server, name, lambda *_: (200, content))
        result = audit(server, folder, corpus, "--target", "1x")
    assert (result.code, result.out) == (DATA, "")
    said = [line for line in result.err.strip().splitlines() if not line.startswith("preparing the corpus ")]
    assert len(said) == 1


def test_an_endpoint_that_is_none_is_refused_in_one_line(folder: Path, corpus: str) -> None:
    with ModelServer(folder) as server:
        url = server.url
        unknown = audit(server, folder, corpus, "--served", "large")
    asked = ("--model", folder, "--corpus", corpus)
    for address, code, said in (
        (url, DATA, "does not answer"),
        ("localhost:8000", USAGE, "is no URL of a server"),
        ("http://a..b:8000", DATA, "does not answer"),
        ("http://[::1", USAGE, "is no URL of a server"),
        ("http://localhost:99999", USAGE, "is no URL of a server"),
        ("http://me:secretword@localhost:8000", USAGE, "leave it out"),
        ("me:secretword@localhost:8000", USAGE, "the address is no URL of a server"),
        ("http://me:secretword@localhost:99999", USAGE, "the address is no URL of a server"),
        ("http://me:secretword@", USAGE, "the address is no URL of a server"),
        ("ftp://me:secretword@host", USAGE, "the address is no URL of a server"),
        ("http://me:p?secretword@host", USAGE, "the address is no URL of a server"),
        ("http://127.0.0.1:9/?api_key=secretword", USAGE, "leave it out"),
        ("http://127.0.0.1:9/#secretword", USAGE, "leave it out"),
        ("localhost/?api_key=secretword", USAGE, "the address is no URL of a server"),
    ):
        result = cli("audit", address, *asked)
        assert result.code == code
        assert said in result.err
        assert "secretword" not in result.err
    assert unknown.code == USAGE
    assert "serves no large; it serves tiny" in unknown.err
