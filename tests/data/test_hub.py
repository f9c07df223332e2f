"""Corpora of the hub, served by hub_stub.py, sound and spoiled in every way at every stage of a load.

Whatever fails: one line, exit code 4, nothing kept, and the same load succeeds as soon as the hub does. Loads run in
child processes, because `datasets` reads HF_ENDPOINT when it is imported.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hub_stub import KINDS, REVISION, STAGES, Hub, assert_gives_up_soon, card, parquet, prose, run_child, spoken
from huggingface_hub.errors import HfHubHTTPError
from requests import Response
from toys import first

from poscli.data import load_corpus
from poscli.data.corpora.hub import HubSpec
from poscli.data.hub import explaining
from poscli.data.source import PARTS
from poscli.system.errors import DataError, UsageError

CHILD = """
import json, sys
from poscli.data import load_corpus
from poscli.system.errors import PoscliError
for spec in sys.argv[1:]:
    try:
        corpus = load_corpus(spec)
        texts = {name: bytes(split.tokens[split.tokens < 256].astype("uint8")).decode()
                 for name, split in (("train", corpus.train), ("valid", corpus.valid), ("tune", corpus.tune))}
        result = {"describe": corpus.describe(), "texts": texts}
    except PoscliError as error:
        result = {"error": str(error), "exit_code": error.exit_code}
    print(json.dumps(result | {"slept": slept()}))
"""


ARTICLES = [
    [f" = Article {n} = \n", "", f" Text of {n} . \n", "", " = = Part = = \n", "", " End . \n"] for n in range(20)
]
REPOSITORIES = {
    "org/parts": {
        "README.md": card({"one": ["train", "validation"], "two": ["train"]}),
        "one/train-0.parquet": parquet(["first\n", "both\n", "", None, "third\n"]),
        "one/validation-0.parquet": parquet(["held\n", "both\n"]),
        "two/train-0.parquet": parquet(prose(20, 100, 0), column="content"),
    },
    "org/shards": {
        "README.md": card({"default": ["train"]}),
        **{f"default/train-{n}.parquet": parquet(prose(20, 1000, n)) for n in range(6)},
    },
    "org/halves": {
        "README.md": card({"default": ["train", "validation"]}),
        "default/train-0.parquet": parquet(prose(40, 1000, 7)),
        "default/validation-0.parquet": parquet(prose(40, 500, 8)),
    },
    "org/spoken": {
        "README.md": card({"default": ["train"]}),
        "default/train-0.parquet": spoken([f"text {n}\n" for n in range(20)]),
    },
    "org/gated": {"README.md": card({"default": ["train"]}), "default/train-0.parquet": parquet(["first\n"])},
    "Salesforce/wikitext": {
        "README.md": card({"wikitext-103-raw-v1": ["train"]}),
        "wikitext-103-raw-v1/train-0.parquet": parquet(["", *(row for rows in ARTICLES for row in [*rows, ""])]),
    },
}
ONLINE = {
    "parts": "hf:org/parts:one",
    "column": "hf:org/parts:two#content",
    "stream": "hf:org/shards?bytes=30K",
    "budget of two splits": "hf:org/halves?bytes=30K",
    "splits the other way": "hf:org/halves@validation,train?bytes=10K",
    "beside sound": "hf:org/spoken",
    "beside sound, streamed": "hf:org/spoken?bytes=100",
    "wikitext": "hf:wikitext",
    "no repository": "hf:org/part",
    "no such name": "hf:a/b/c",
    "no configuration": "hf:org/parts",
    "wrong configuration": "hf:org/parts:onee",
    "wrong split": "hf:org/parts:one@trian",
    "wrong column": "hf:org/parts:two",
    "wrong column, streamed": "hf:org/shards#body?bytes=10K",
    "gated": "hf:org/gated",
}


def load(specs: list[str], home: Path, **environment: str) -> list[dict[str, Any]]:
    """Load each spec in one fresh process whose caches are in `home`; return what the process reports for each."""
    return [json.loads(line) for line in run_child(CHILD, specs, home, **environment)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub(REPOSITORIES) as hub:
        hub.gated = {"org/gated"}
        yield hub


@pytest.fixture(scope="module")
def online(hub: Hub, home: Path) -> dict[str, dict[str, Any]]:
    return dict(zip(ONLINE, load(list(ONLINE.values()), home, HF_ENDPOINT=hub.url), strict=True))


@pytest.fixture(scope="module")
def unreachable() -> Iterator[str]:
    """An endpoint that refuses connections: nobody listens, and nobody else can have the port meanwhile."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_the_validation_split_of_a_data_set_is_held_out(online: dict[str, dict[str, Any]]) -> None:
    described, texts = online["parts"]["describe"], online["parts"]["texts"]
    assert described["revision"] == REVISION
    # "both" is a row of both splits: it must not be trained on. Empty rows are dropped.
    assert sorted(texts["train"].split()) == ["first", "third"]
    assert sorted(texts["valid"].split()) == ["both", "held"]


def test_streaming_stops_at_the_budget(online: dict[str, dict[str, Any]], hub: Hub) -> None:
    described = online["stream"]["describe"]
    assert sum(described[name]["bytes"] for name in PARTS) == 30_000
    assert hub.requested("train-1.parquet") > 0
    assert hub.requested("train-2.parquet") == 0


# Documents and their size in each split.
SIZES = {
    "column": ((14, 100), (4, 100), (2, 100)),
    "budget of two splits": ((26, 1000), (6, 500), (1, 1000)),
    "splits the other way": ((17, 500), (1, 1000), (1, 500)),
}


@pytest.mark.parametrize("case", SIZES)
def test_of_two_splits_one_is_scored_whole_and_one_split_is_cut_in_three(
    case: str, online: dict[str, dict[str, Any]]
) -> None:
    """A budget of bytes is nine tenths for training and one tenth held out."""
    for name, (documents, size) in zip(PARTS, SIZES[case], strict=True):
        assert online[case]["describe"][name] == {"documents": documents, "bytes": documents * size}


def test_what_stands_beside_the_text_is_not_decoded(online: dict[str, dict[str, Any]]) -> None:
    for case in ("beside sound", "beside sound, streamed"):
        assert "text 1" in "".join(online[case]["texts"].values()), online[case]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("Data processing error: CAS service error"), "CAS service error; check the network"),
        (RuntimeError("Dataset scripts are no longer supported, but found pile.py"), "org/set is a script, which"),
        (
            HfHubHTTPError("403", Response(), server_message="Please enable access to public gated repositories"),
            "cannot load it: Please enable access to public gated repositories; ",
        ),
    ],
)
def test_an_error_of_the_hubs_packages_is_said_in_their_words(error: Exception, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)), explaining("org/set", "cannot load it", of_data=True):
        raise error


def test_wikitext_documents_are_articles(online: dict[str, dict[str, Any]]) -> None:
    described, texts = online["wikitext"]["describe"], online["wikitext"]["texts"]
    assert described["spec"] == "hf:Salesforce/wikitext:wikitext-103-raw-v1"
    assert sum(described[name]["documents"] for name in PARTS) == len(ARTICLES)
    assert texts["train"].count(" = = Part = = \n") == described["train"]["documents"]
    assert "".join(row or "\n" for row in ARTICLES[0]) in "".join(texts.values())


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("no repository", ["no data set 'org/part'", "did you mean org/parts?"]),
        ("no such name", ["'a/b/c'", "hf:ORG/NAME"]),
        ("no configuration", ["several configurations", "there are one, two"]),
        ("wrong configuration", ["'onee'", "did you mean one?"]),
        ("wrong split", ["'trian'", "did you mean train?", "@TRAIN"]),
        ("wrong column, streamed", ["row 1", "'body'", "there is text"]),
        ("wrong column", ["row 1", "'text'", "there is content", "#FIELD"]),
        ("gated", ["org/gated is gated", "accept its terms", "/datasets/org/gated", "hf auth login"]),
    ],
)
def test_an_error_is_one_line_with_the_value_and_a_suggestion(
    online: dict[str, dict[str, Any]], case: str, parts: list[str]
) -> None:
    result = online[case]
    assert result["exit_code"] == (2 if case == "no such name" else 4)
    assert "\n" not in result["error"]
    assert all(part in result["error"] for part in parts), result["error"]


@pytest.mark.usefixtures("online")
def test_without_a_network_cached_corpora_load_and_others_fail_fast(
    home: Path, unreachable: str, online: dict[str, dict[str, Any]]
) -> None:
    cached, absent = load(["hf:wikitext", "hf:org/other"], home, HF_ENDPOINT=unreachable)
    assert cached["describe"] == online["wikitext"]["describe"]
    assert cached["slept"] == 0
    assert absent["exit_code"] == 4
    assert "cannot reach the hub" in absent["error"]
    assert "Connection refused" in absent["error"]
    assert absent["slept"] < 5  # datasets on its own would retry for 23 s


def test_offline_mode_uses_what_datasets_has_downloaded(
    home: Path, online: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    environment = {"HF_HUB_OFFLINE": "1", "POSCLI_CACHE": str(tmp_path)}
    again, absent = load(["hf:org/parts:one", "hf:org/other"], home, **environment)
    assert again["describe"]["fingerprint"] == online["parts"]["describe"]["fingerprint"]
    assert absent["exit_code"] == 4
    assert "hf:org/other" in absent["error"]
    assert "unset it to download" in absent["error"]


def test_without_datasets_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(DataError, match="pip install datasets"):
        load_corpus("hf:wikitext", cache=tmp_path)


def test_a_local_folder_that_datasets_would_read_instead_is_refused(here: Path) -> None:
    (here / "org" / "parts").mkdir(parents=True)
    with pytest.raises(DataError, match="hides the hub's org/parts"):
        load_corpus("hf:org/parts", cache=here / "cache")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("wikitext", "hf:Salesforce/wikitext:wikitext-103-raw-v1"),
        ("wikitext:wikitext-2-raw-v1", "hf:Salesforce/wikitext:wikitext-2-raw-v1"),
        ("pg19?bytes=50M", "hf:emozilla/pg19?bytes=50000000"),
        ("org/set:a@train,test#body?bytes=7", "hf:org/set:a@train,test#body?bytes=7"),
        ("org/set#text", "hf:org/set"),
    ],
)
def test_specs_have_one_canonical_form(text: str, canonical: str) -> None:
    assert str(HubSpec.parse(text)) == canonical
    assert HubSpec.parse(canonical.removeprefix("hf:")) == HubSpec.parse(text)


@pytest.mark.parametrize(
    "text", ["", "org/set?bytes=0", "org/set?bytes=00", "org/set?bytes=5T", "org/set?byte=5M", "org/set@a,b,c", ":x"]
)
def test_specs_outside_the_grammar_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form hf:REPO"):
        HubSpec.parse(text)


# --- a hub that fails

FAILING = """
import json, os, sys, urllib.request
os.dup2(1, 2)  # what libraries say is read with the answers
from pathlib import Path
from poscli.data import load_corpus
from poscli.system.errors import PoscliError

def attempt(spec):
    try:
        result = {"bytes": load_corpus(spec).train.bytes}
    except PoscliError as error:
        result = {"error": str(error), "exit_code": error.exit_code}
    name = spec.partition("/")[2].partition("?")[0]
    kept = [path.name for path in Path(os.environ["POSCLI_CACHE"]).glob(f"*{name}-*") if path.is_dir()]
    return result | {"kept": kept, "slept": slept()}

for case in sys.argv[1:]:
    stage, kind, spec = case.split(" ")
    urllib.request.urlopen(f"{os.environ['HF_ENDPOINT']}/fault/{stage}/{kind}").read()
    spoiled = attempt(spec)
    urllib.request.urlopen(f"{os.environ['HF_ENDPOINT']}/fault/none/none").read()
    print(json.dumps([spoiled, attempt(spec)]))
"""
MATRIX = list(product([s for s in STAGES if s != "none"], [k for k in KINDS if k != "none"], ["", "?bytes=10K"]))
SOME = [
    ("info", "401", ""),
    ("info", "silent", ""),
    ("listing", "truncated", "?bytes=10K"),
    ("download", "429", "?bytes=10K"),
    ("download", "500", ""),
    ("download", "short", ""),
]
OTHERS = [
    ("info", "429", "?bytes=10K"),
    ("listing", "404", ""),
    ("download", "truncated", ""),
    ("download", "dropped", "?bytes=10K"),
]
SAYS = {"401": "hf auth login", "429": "wait a few minutes", "500": "later"}
IMPATIENT = {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}  # seconds


def check(cases: list[tuple[str, str, str]], home: Path) -> None:
    """Each case is one repository of its own, because the hub's client remembers what it has seen."""
    specs = {case: f"hf:org/{case[0]}{case[1]}{'s' if case[2] else ''}{case[2]}" for case in cases}
    files = {f"default/train-{n}.parquet": parquet(prose(20, 1000, n)) for n in range(2)}
    repository = {"README.md": card({"default": ["train"]}), **files}
    names = [spec.removeprefix("hf:").partition("?")[0] for spec in specs.values()]
    with Hub(dict.fromkeys(names, repository)) as hub:
        arguments = [f"{stage} {kind} {specs[stage, kind, mode]}" for stage, kind, mode in cases]
        lines = run_child(FAILING, arguments, home, HF_ENDPOINT=hub.url, **IMPATIENT)
    answers = [line for line in lines if line.startswith("[")]
    noise = [line for line in lines if line not in answers and not line.startswith("preparing the corpus hf:org/")]
    assert all(line.startswith("Failed to read ") for line in noise), noise  # which datasets says of a damaged file
    for (stage, kind, mode), line in zip(cases, answers, strict=True):
        spoiled, repaired = json.loads(line)
        assert spoiled.get("exit_code") == 4, (stage, kind, mode, spoiled)
        assert "\n" not in spoiled["error"]
        assert SAYS.get(kind, "; ") in spoiled["error"], (stage, kind, mode)
        assert not spoiled["kept"]
        asked = hub.spoiled_of(specs[stage, kind, mode].removeprefix("hf:").partition("?")[0])
        assert_gives_up_soon(spoiled["slept"], asked, kind)
        assert repaired["bytes"] == (7000 if mode else 28_000), (stage, kind, mode, repaired)
        assert len(repaired["kept"]) == 1


@pytest.mark.parametrize("cases", first(1, [SOME, OTHERS]), ids=["some", "others"])
def test_a_failing_hub_is_an_error_of_one_line_and_leaves_nothing_behind(
    cases: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    check(cases, tmp_path)


@pytest.mark.slow
def test_every_way_to_fail_at_every_stage(tmp_path: Path) -> None:
    check(MATRIX, tmp_path)


STALE = """
import json, os, sys, urllib.request
from poscli.data import load_corpus
from poscli.system.errors import DataError
if sys.argv[1] == "spoiled":
    urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/fault/listing/500").read()
try:
    print(json.dumps(load_corpus("hf:org/set").describe()))
except DataError as error:
    print(json.dumps({"error": str(error)}))
"""


def test_an_older_download_is_never_taken_for_the_newest_revision(tmp_path: Path) -> None:
    """`datasets` falls back on any download of the data set if the hub fails half-way."""
    files = {"README.md": card({"default": ["train"]}), "default/train-0.parquet": parquet(prose(20, 100, 0))}
    with Hub({"org/set": files}) as hub:
        (before,) = run_child(STALE, ["sound"], tmp_path, HF_ENDPOINT=hub.url)
        assert json.loads(before)["revision"] == hub.revision
        hub.revision = "f" * 40
        there = {"HF_ENDPOINT": hub.url, "POSCLI_CACHE": str(tmp_path / "other")}
        (after,) = run_child(STALE, ["spoiled"], tmp_path, **there)
    assert "the hub has a fault" in json.loads(after)["error"] or "stopped answering" in json.loads(after)["error"]
