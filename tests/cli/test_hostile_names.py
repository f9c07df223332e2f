"""Names that nobody sane would write are refused in one line, and nothing is written."""

from __future__ import annotations

import pytest
from cli_runner import ALIBI, NANO, assert_refused
from hypothesis import given, settings
from hypothesis import strategies as st
from torture.names import CHECKS, check, hostile_spec

from poscli.config.run import RunConfig, slug
from poscli.system.errors import UsageError, one_line
from poscli.system.registry import Registry

TRAIN = ("train", *NANO)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_hostile_texts_are_taken_or_refused(seed: int) -> None:
    check(*hostile_spec(seed))


@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("text", ["", "\0", "\ud800", "..", "/", "a" * 10_000, "9" * 5000, "rope\n+none", "~nobody/x"])
def test_each_kind_refuses_the_worst(kind: str, text: str) -> None:
    check(kind, text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*TRAIN, "--enc", "a" * 10_000), ("at most 4000 characters", "has 10000")),
        ((*TRAIN, "--enc", "+".join(["none"] * 2000)), "at most 4000 characters"),
        ((*TRAIN, "--enc", "a" * 300), "there is no encoding"),
        ((*TRAIN, "--enc", "(" * 500), "expected the name of an encoding"),
        ((*TRAIN, "--enc", "rope\x1b[2J"), "cannot read"),
        ((*TRAIN, "--enc", "shaw(clip=10**400)"), "cannot read '**400)'"),
        ((*TRAIN, "--enc", f"shaw(clip={10**400})"), "clip must be below 2^63"),
        ((*TRAIN, "--enc", f"shaw(clip={2**63})"), "clip must be below 2^63"),
        ((*TRAIN, "--enc", "rope(base=1e999)"), ("base must be finite", "'1e999'")),
        ((*TRAIN, "--enc", f"shaw(clip={2**62})"), ("=4611686018427387904) cannot be built", "smaller")),
        ((*TRAIN, "--enc", "rope|shaw(clip=10000000000)"), ("needs about", "GiB are free; lower an option of ")),
        ((*TRAIN, "--enc", "../../x.py:Class"), "there is no file"),
        ((*ALIBI, "--seed", 2**63), ("--seed", "less than or equal to 9223372036854775807")),
        ((*ALIBI, "--length", 2**63), ("length = 9223372036854775808", "less than or equal to 1048576")),
        ((*ALIBI, "--batch", 2**63), ("batch = 9223372036854775808", "less than or equal to 1048576")),
        ((*ALIBI, "--tokens", "9" * 400), ("--tokens", "too long for a number of tokens")),
        ((*ALIBI, "--tokens", f"{'9' * 18}g"), ("--tokens", "less than or equal to 9223372036854775807")),
        ((*ALIBI, "--layers", 2**63), ("layers = 9223372036854775808", "less than or equal to 1000")),
        ((*ALIBI, "--width", 2**63), ("width = 9223372036854775808", "less than or equal to 65536")),
        ((*ALIBI, "--task", "../" * 3000), "there is no task"),
        ((*ALIBI, "--corpus", "x" * 10_000), "4096 are allowed"),
        (("extrapolate", "--max-len", 2**63), ("--max-len '9223372036854775808'", "less than or equal to")),
        (("extrapolate", "--stride", 2**63), ("stride = 9223372036854775808", "less than or equal to")),
    ],
    ids=lambda value: str(value)[-40:] if isinstance(value, str) else " ".join(map(str, value))[-40:],
)  # fmt: skip
def test_hostile_options(arguments: tuple[object, ...], words: str | tuple[str, ...], tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(arguments, 2, words)


def test_long_names_make_short_folders_that_differ() -> None:
    names = [RunConfig(encoding="a" * 300 + end).run_id("0") for end in ("b", "c")]
    assert len(set(names)) == 2
    assert all(len(name) < 140 for name in names)
    assert slug("a" * 300 + "b") != slug("a" * 300 + "c")
    assert RunConfig(encoding="文:文").run_id("0").startswith("encoding-")


def test_a_long_value_is_cut_in_its_middle() -> None:
    registry: Registry[type] = Registry("encoding", "poscli.encodings", lambda thing: False)
    with pytest.raises(UsageError) as caught:
        registry.get("x" * 10_000)
    line = one_line(str(caught.value))
    assert len(line) == 800
    assert line.startswith("there is no encoding 'xxx")
    assert line.endswith("`poscli ls encodings` shows all")
    assert " ... " in line
