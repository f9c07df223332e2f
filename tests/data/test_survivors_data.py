"""Where a corpus is cut, what its errors say, and how a data set of the hub is loaded: values by hand, no network."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poscli.data import Corpus, Split, build, check_trainable, corpus, disk_cache, hubfaults
from poscli.data.corpora import hub, source_of
from poscli.data.hubspec import HubSpec
from poscli.data.source import Document, Reading, Source
from poscli.data.splitting import StoredDocument, cut_point, fingerprint, hold_out, split_documents
from poscli.data.tokenizers.bytes import Bytes
from poscli.system.errors import DataError, UsageError

# ---- what is held out


@pytest.mark.parametrize(
    ("newlines", "at"),
    [((850,), 851), ((849,), 900), ((899,), 900), ((900,), 900), ((851, 880, 905), 881), ((0, 200), 900), ((), 900)],
)
def test_a_document_is_cut_after_the_last_line_that_ends_in_the_5_percent_before_nine_tenths(
    newlines: tuple[int, ...], at: int
) -> None:
    content = bytearray(b"x" * 1000)
    for n in newlines:
        content[n] = ord("\n")
    assert cut_point(bytes(content)) == at


def test_documents_are_held_out_up_to_a_tenth_and_never_beyond_a_fifth() -> None:
    assert hold_out([10, 10, 80]) == {0}  # a tenth is enough
    assert hold_out([9, 10, 81]) == {0, 1}  # 9 of 100 are not; 19 are no more than a fifth
    assert hold_out([9, 11, 80]) == {0, 1}  # 20 of 100 are a fifth
    assert hold_out([9, 12, 79]) == {0}  # 21 would be more
    assert hold_out([21, 79]) == {0}  # each is more than a fifth: the smallest
    assert hold_out([30, 25, 25, 20]) == {3}


def stored(number: int, size: int = 1, part: Any = None) -> StoredDocument:
    return StoredDocument(bytes([number]) * 32, 0, size, part)


def test_a_split_of_the_source_is_kept_and_documents_are_in_the_order_of_their_hashes() -> None:
    found = split_documents([stored(3, part="train"), stored(1, part="valid"), stored(2), stored(0, part="valid")])
    assert found == ([stored(2), stored(3, part="train")], [stored(0, part="valid"), stored(1, part="valid")])
    nine = [stored(n, 10) for n in range(10)]
    assert split_documents(nine[::-1]) == (nine[1:], nine[:1])


@pytest.mark.parametrize(("part", "empty"), [("train", "valid"), ("valid", "train")])
def test_the_only_document_of_a_split_that_the_source_names_is_not_cut_in_two(
    part: Any, empty: str, tmp_path: Path
) -> None:
    documents = [Document(b"one line\n" * 100, part), Document(b"", empty)]
    with pytest.raises(DataError, match=f"hf:mine holds no text for the {empty} split; name splits that do"):
        build.build_arrays("hf:mine", documents, Bytes(), tmp_path)


def test_a_fingerprint_is_of_documents_split_and_tokenizer() -> None:
    one, two = stored(1), stored(2)
    marks = [
        fingerprint(*parts, tokenizer)
        for parts in (([one], [two]), ([two], [one]), ([one, two], []), ([], [one, two]))
        for tokenizer in ("", "other")
    ]
    assert len(set(marks)) == 8
    assert all(len(mark) == 16 for mark in marks)
    assert fingerprint([one], [two], "") == fingerprint([StoredDocument(one.digest, 7, 9, "train")], [two], "")


@pytest.mark.parametrize(
    ("parts", "kept"),
    [((None, None), None), (("train", "valid"), "valid"), (("valid", "train"), "valid"), (("train", "train"), "train")],
)
def test_of_copies_the_held_out_one_is_kept(
    parts: tuple[Any, Any], kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(build, "note", said.append)
    monkeypatch.setattr(build, "warn_once", said.append)
    spool = io.BytesIO()
    documents = [
        Document(b"twice", parts[0]),
        Document(b"once and longer"),
        Document(b""),
        Document(b"twice", parts[1]),
    ]
    found = build._store(documents, spool)
    assert [(each.offset, each.size, each.part) for each in found] == [(0, 5, kept), (5, 15, None)]
    assert spool.getvalue() == b"twiceonce and longer"
    assert said == ["dropped 1 documents that are exact copies of another"]


@pytest.mark.parametrize(("copies", "warned"), [(1, False), (2, True)])
def test_more_copies_than_text_are_warned_about(copies: int, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(build, "note", lambda _: None)
    monkeypatch.setattr(build, "warn_once", said.append)
    build._store([Document(b"12345")] * (1 + copies), io.BytesIO())
    expected = (
        "10 of 15 bytes of the corpus were copies and are dropped: 5 bytes are left; check that it names what was meant"
    )
    assert said == ([expected] if warned else [])


# ---- a corpus that is too small


def of_tokens(train: int, valid: int, valid_bytes: int = 10_000) -> Corpus:
    sizes = {"train": (train, train), "valid": (valid, valid_bytes)}
    splits = {
        name: Split(np.zeros(tokens, dtype=np.uint16), np.array([0, tokens]), size)
        for name, (tokens, size) in sizes.items()
    }
    return Corpus("text:x", "f", Bytes(), **splits)


@pytest.mark.parametrize(
    ("train", "valid", "purpose", "has", "advice"),
    [
        (8, 100, "for training", 8, "the largest --length that fits is 7"),
        (100, 8, "held out", 8, "the largest --length that fits is 7"),
        (2, 100, "for training", 2, "the largest --length that fits is 1"),
        (1, 100, "for training", 1, "add text to it"),
        (100, 1, "held out", 1, "add text to it"),
    ],
)
def test_a_window_needs_one_token_more_than_its_length(
    train: int, valid: int, purpose: str, has: int, advice: str
) -> None:
    with pytest.raises(DataError) as caught:
        check_trainable(of_tokens(train, valid, valid), 8)
    assert str(caught.value) == (
        f"the corpus text:x has {has} bytes {purpose} ({has} tokens), and a window of 8 needs 9 tokens: {advice}"
    )
    check_trainable(of_tokens(max(train, 9), max(valid, 9)), 8)


@pytest.mark.parametrize(("size", "warned"), [(9999, True), (10_000, False)])
def test_a_held_out_part_below_10000_bytes_is_warned_about(
    size: int, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(corpus, "warn_once", said.append)
    check_trainable(of_tokens(100, 100, size), 8)
    assert [text.partition(":")[0] for text in said] == ["the corpus text"] * warned
    assert all("holds out only 9999 bytes" in text and "100000 bytes of text or more" in text for text in said)


# ---- names


@pytest.mark.parametrize(("length", "shown"), [(120, 120), (121, 60)])
def test_a_name_that_is_refused_is_shown_whole_up_to_120_characters(length: int, shown: int) -> None:
    name = ("text:" + 200 * "a")[: length - 1] + "\x85"
    whole = name if shown == length else name[:60] + "..."
    with pytest.raises(UsageError) as caught:
        source_of(name)
    assert str(caught.value) == (
        f"the corpus {whole!r} has the character '\\x85' in its name; rename the file or the folder"
    )


def test_a_name_has_at_most_4096_characters() -> None:
    with pytest.raises(UsageError, match="unknown corpus"):
        source_of(4096 * "x")
    with pytest.raises(UsageError, match=r"xxx\.\.\.' has a name of 4097 characters; 4096 are allowed"):
        source_of(4097 * "x")


def test_a_folder_of_the_cache_is_named_by_the_last_40_characters_and_a_hash() -> None:
    def named(spec: str, stamp: object = None, tokenizer: str = "") -> str:
        words = SimpleNamespace(fingerprint=tokenizer)
        return disk_cache._folder_name(Source(spec, stamp, lambda: Reading(iter(()), {})), words)  # type: ignore[arg-type]

    assert re.fullmatch(r"stdlib-[0-9a-f]{16}", named("stdlib"))
    assert named(f"text:{'a' * 10}{'b' * 40}").rpartition("-")[0] == f"text-{'b' * 40}"
    assert named("text:/home/me/Bücher (neu)/*.txt").rpartition("-")[0] == "text-home-me-B-cher-neu-.txt"
    different = [("stdlib",), ("stdlib", 1), ("stdlib", None, "t"), ("stdlib", 1, "t"), ("text:x",), ("text:y",)]
    assert len({named(*each) for each in different}) == len(different)
    key = json.dumps(["split rule 1", "text:x", [1, 2], "t"])
    assert named("text:x", [1, 2], "t") == f"text-x-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


# ---- the hub


class FailedBuild(Exception):
    """Stands for an error of `datasets` while it builds a data set."""


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for the package `datasets`, which takes seconds to import."""
    module: Any = ModuleType("datasets")
    module.exceptions = ModuleType("datasets.exceptions")
    module.exceptions.DatasetsError = module.exceptions.DatasetGenerationError = FailedBuild
    module.config = SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setitem(sys.modules, "datasets.exceptions", module.exceptions)
    return module


class Builder:
    """The builder of a data set, whose downloads fail as often as there are faults."""

    def __init__(self, *faults: Exception) -> None:
        self.faults, self.asked = list(faults), list[str]()

    def download_and_prepare(self, download_mode: str = "") -> None:
        self.asked.append(f"download {download_mode}".strip())
        if self.faults:
            raise self.faults.pop(0)

    def as_streaming_dataset(self) -> str:
        self.asked.append("stream")
        return "a stream"

    def as_dataset(self) -> str:
        return "a table"


def with_cause(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def load(datasets: Any, builder: Any, text: str, revision: str | None) -> Any:
    asked: list[tuple[Any, ...]] = []

    def load_dataset_builder(repo: str, config: str | None, revision: str | None) -> Any:
        asked.append((repo, config, revision))
        return builder

    datasets.load_dataset_builder = load_dataset_builder
    found = hub._splits(HubSpec.parse(text), "part", revision)
    assert asked == [("org/set", "part", revision)]
    return found


def test_a_budget_means_that_a_data_set_is_streamed_and_not_downloaded(datasets: ModuleType) -> None:
    builder = Builder()
    assert load(datasets, builder, "org/set?bytes=1", "0123") == "a stream"
    assert builder.asked == ["stream"]
    builder = Builder()
    assert load(datasets, builder, "org/set", "0123") == "a table"
    assert builder.asked == ["download"]


@pytest.mark.parametrize("fault", [FailedBuild("damaged"), ValueError("damaged")])
def test_a_file_that_arrived_damaged_is_fetched_once_more(fault: Exception, datasets: ModuleType) -> None:
    builder = Builder(fault)
    assert load(datasets, builder, "org/set", "0123") == "a table"
    assert builder.asked == ["download", "download force_redownload"]


def test_a_second_download_that_fails_as_well_says_why_and_not_why_the_first_one_did(datasets: ModuleType) -> None:
    builder = Builder(FailedBuild("damaged"), OSError("no room"))
    with pytest.raises(DataError, match="cannot load hf:org/set: no room; check the network and the free disk space"):
        load(datasets, builder, "org/set", "0123")
    assert builder.asked == ["download", "download force_redownload"]


@pytest.mark.parametrize(
    ("fault", "revision", "reason"),
    [
        (FailedBuild("damaged"), None, "damaged"),
        (with_cause(FailedBuild("outer"), OSError("no room\nat all")), "0123", "no room"),
        (OSError("broken pipe"), "0123", "broken pipe"),
        (OSError(), "0123", "OSError"),
    ],
)
def test_what_a_second_download_cannot_cure_is_an_error_at_once(
    fault: Exception, revision: str | None, reason: str, datasets: ModuleType
) -> None:
    """Offline, or with a fault of the network or the disk; the error names the innermost cause."""
    builder = Builder(fault)
    with pytest.raises(DataError) as caught:
        load(datasets, builder, "org/set", revision)
    assert builder.asked == ["download"]
    advice = "check the network and the free disk space, then run it again"
    assert str(caught.value) == f"cannot load hf:org/set: {reason}; {advice}"


def test_an_older_download_is_refused_unless_the_hub_was_not_asked(datasets: ModuleType) -> None:
    old: Any = type("Old", (Builder,), {"__module__": "datasets.packaged_modules.cache.cache"})
    with pytest.raises(DataError, match="cannot load hf:org/set: the hub has stopped answering; run it again later"):
        load(datasets, old(), "org/set", "0123")
    assert load(datasets, old(), "org/set", None) == "a table"


class AnsweredError(OSError):
    """An error with the answer of a server."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "log in with `hf auth login`"), (403, "log in with `hf auth login`"), (404, "check the network"),
        (429, "wait a few minutes"), (499, "check the network"), (500, "the hub has a fault"),
        (599, "the hub has a fault"), (600, "check the network"),
    ],
)  # fmt: skip
def test_advice_depends_on_the_status_of_any_cause(status: int, advice: str, datasets: ModuleType) -> None:
    error = with_cause(ValueError("outer"), with_cause(AnsweredError(status), OSError("inner")))
    assert hubfaults.status(error) == status
    with (
        pytest.raises(DataError, match=f"^cannot load hf:org/set: inner; {advice}"),
        hub._explained(HubSpec("org/set")),
    ):
        raise error
    assert hubfaults.status(OSError("none")) == 0


def test_offline_the_advice_is_to_go_online(datasets: Any) -> None:
    datasets.config.HF_HUB_OFFLINE = True
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set: unset it"), hub._explained(HubSpec("org/set")):
        raise AnsweredError(500)


def test_the_causes_of_an_error_end_where_they_are_suppressed() -> None:
    def chain_of(raise_it: Callable[[], None]) -> list[str]:
        try:
            raise_it()
        except ValueError as error:
            return [str(each) for each in hubfaults.chain(error)]
        raise AssertionError

    def implicit() -> None:
        try:
            raise KeyError(1)
        except KeyError:
            raise ValueError("outer")  # noqa: B904 - the context is what is tested

    def suppressed() -> None:
        try:
            raise KeyError(1)
        except KeyError:
            raise ValueError("outer") from None

    assert chain_of(implicit) == ["outer", "1"]
    assert chain_of(suppressed) == ["outer"]


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ("org/set", ["default"], None),
        ("org/set", ["only"], None),
        ("org/set", ["default", "other"], None),
        ("org/set:other", ["default", "other"], "other"),
        ("org/set", ["one", "two"], "hf:org/set:CONFIG; there are: one, two"),
        ("org/set:twoo", ["one", "two"], "org/set has no configuration 'twoo': did you mean two?"),
    ],
)
def test_a_configuration_is_named_where_there_are_several(
    text: str, names: list[str], expected: str | None, datasets: Any
) -> None:
    datasets.get_dataset_config_names = lambda repo, revision: names
    spec = HubSpec.parse(text)
    if expected is None or expected in names:
        assert hub._config(spec, "0123") == expected
    else:
        with pytest.raises(DataError) as caught:
            hub._config(spec, "0123")
        assert str(caught.value).endswith(expected)


def test_the_split_validation_is_held_out_if_there_is_one() -> None:
    def chosen(text: str, *names: str) -> list[str]:
        return list(hub._split_names(HubSpec.parse(text), names))

    assert chosen("org/set", "train", "test", "validation") == ["train", "validation"]
    assert chosen("org/set", "train", "test") == ["train"]
    assert chosen("org/set@train", "train", "validation") == ["train"]
    assert chosen("org/set@test,train", "train", "test") == ["test", "train"]
    with pytest.raises(DataError, match="org/set has no split 'trian': did you mean train"):
        chosen("org/set@trian", "train")
