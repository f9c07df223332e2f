"""Suites as files: which key an error names, and which folder a report goes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from poscli.config.suite import load_suite, report_folder
from poscli.system.errors import UsageError

START = 'title = "t"\nencodings = ["none"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (START + '[extrapolate]\nas = "yarn"', "extrapolate.as = 'yarn': "),
        (START + "[extrapolate]\nas = [1]", "extrapolate.as.0 = 1: "),
        (START + "[extrapolate]\nas_ = []", "there is no key 'extrapolate.as_': did you mean as?"),
        (START + "[train]\nlenght = 8", "there is no key 'train.lenght': did you mean length?"),
        (START + "[train]\nlength = 4", "train.length = 4: "),
        (START + "seeds = [-1]", "seeds.0 = -1: "),
        (START + "seeds = [9223372036854775808]", "seeds.0 = 9223372036854775808: "),
        ('title = "t"', "the key 'encodings' is missing"),
    ],
)
def test_an_error_names_the_key_as_it_is_written(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_suite(tmp_path / "mine.toml")
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["quick", "after-training", "my_suite", "v1.2", "größer"])
def test_a_report_has_a_folder_named_like_its_suite(name: str) -> None:
    assert report_folder(Path("results"), Path("suites") / f"{name}.toml") == Path("results") / name


@pytest.mark.parametrize("name", ["runs", "Runs", "bench", "..", ".hidden", "-x", "two words", "a\nb"])
def test_a_report_never_goes_where_other_files_are(name: str) -> None:
    with pytest.raises(UsageError, match="--to"):
        report_folder(Path("results"), Path("suites") / f"{name}.toml")
