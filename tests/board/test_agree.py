"""`poscli agree`: published tables as data, signs of pairs, the three numbers, and the command."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from cli_runner import cli
from fake_results import BEHAVIOUR, results
from planted_board import plant

from poscli.board.agree import Agreement, agreement_of, counterparts, naive_sign, sign_in, three_numbers
from poscli.board.agree_words import said_of
from poscli.board.literature import FOLDER, Literature, read_literature
from poscli.board.ours import MULTIPLES, OurLosses, losses_of_runs, losses_of_summary
from poscli.system.errors import CorruptError, DataError, UsageError

HARD = 'hard = ["alibi", "t5"]\n[[limit]]\nwhat = "size"\nwhy = "too small"\nsource = "arXiv:1"\n'
TABLE = """
[[table]]
id = "{name}"
model = "m"
params = "1M"
corpus = "c"
train_length = 100
protocol = "p"
like = "{like}"
metric = "perplexity"
seeds = 1
lengths = {lengths}
[table.values]
"""


def source(folder: Path, key: str, *tables: dict[str, list[float]], lengths=(100, 200), like="", more="") -> None:
    """A file of a source, with a table for each dictionary of perplexities."""
    text = f'[source]\ntitle = "{key}"\ncite = "arXiv:{key}"\nvenue = "v"\ncertainty = "read in the paper"\n{more}\n'
    for n, values in enumerate(tables):
        text += TABLE.format(name=n, like=like, lengths=list(lengths))
        text += "".join(f'"{name}" = {row}\n' for name, row in values.items())
    folder.mkdir(exist_ok=True)
    (folder / f"{key}.toml").write_text(text)
    (folder / "scope.toml").write_text(HARD)


def ours(protocol: str = "sliding", **losses: float) -> OurLosses:
    """Losses of one text at 2x."""
    return OurLosses({("text", protocol, 2.0, name): loss for name, loss in losses.items()})


def found(folder: Path, own: OurLosses) -> Agreement:
    literature = read_literature(folder)
    return agreement_of(own, literature, counterparts(literature.names, own.encodings))


def at_2x(folder: Path, own: OurLosses, like: str = "", hard: bool = False):
    return three_numbers(found(folder, own).chosen((2.0,), like, hard=hard))


@pytest.fixture(scope="module")
def literature() -> Literature:
    return read_literature()


# The data


def test_every_number_that_papers_print_has_its_citation_and_certainty(literature: Literature) -> None:
    assert len(literature.sources) == len([*FOLDER.glob("*.toml")]) - 1 > 20
    for key, each in literature.sources.items():
        assert each.source.cite, key
        assert each.source.certainty, key
    texts = " ".join(path.read_text() for path in FOLDER.glob("*.toml"))
    assert "/work" not in texts
    assert "@" not in texts.replace("nDCG@10", "")  # no path in a repository of others


def test_numbers_are_those_of_the_papers(literature: Literature) -> None:
    """Two numbers each of three papers, as printed."""
    (table,) = (each for each in literature.sources["kerple"].table if each.id == "T3 GitHub")
    assert math.exp(table.losses(16)[0]["alibi"]) == pytest.approx(3.04)  # at 8192 tokens, L = 512
    assert math.exp(table.losses(1)[0]["t5"]) == pytest.approx(3.38)
    table = literature.sources["haviv"].table[0]
    assert [math.exp(each["none"]) for each in table.losses(1)] == pytest.approx([22.15, 16.87, 14.29, 13.1])
    assert table.losses(2) == []
    assert literature.sources["rerope"].table[0].losses(2)[0]["rope as rope-ntk"] == 1.5417  # a loss already


def test_second_hand_tables_enter_no_number(tmp_path: Path, literature: Literature) -> None:
    assert {"dape_v2", "path"} == {*literature.sources} - {*literature.first_hand}
    source(tmp_path, "one", {"alibi": [10, 10], "rope": [10, 20]})
    source(tmp_path, "two", {"alibi": [10, 30], "rope": [10, 20]}, more="second_hand = true")
    assert at_2x(tmp_path, ours(alibi=1.0, rope=2.0)).ours.agree == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seeds = 1", 'seeds = "1"', "table.1.seeds = '1': must be a whole number"),
        ("[10, 10]", "[10]", "2 columns and 1 values of alibi"),
        ("[10, 10]", "[10, 0.5]", "a perplexity of alibi below 1"),
        ("lengths = [100, 200]", "", "needs either lengths or columns"),
        ("model = ", "modle = 1\nmodel = ", "there is no key 'table.1.modle': did you mean model?"),
        ("[source]", "[source", "is not TOML"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    source(tmp_path, "one", {"alibi": [10, 10], "rope": [10, 20]})
    path = tmp_path / "one.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=r"^one\.toml") as error:
        read_literature(tmp_path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("length", "stands"), [(180, False), (183, True), (219, True), (222, False)])
def test_a_length_within_ten_percent_stands_for_a_multiple(tmp_path: Path, length: int, stands: bool) -> None:
    source(tmp_path, "one", {"alibi": [10, 10], "rope": [10, 20]}, lengths=(100, length))
    assert bool(read_literature(tmp_path).sources["one"].table[0].losses(2)) == stands


# Signs


def test_losses_within_two_percent_are_a_tie() -> None:
    assert sign_in([{"a": 1.0, "b": 1.019}], "a", "b") == 0
    assert sign_in([{"a": 1.0, "b": 1.021}], "a", "b") == 1
    assert sign_in([{"a": 1.021, "b": 1.0}], "a", "b") == -1
    assert sign_in([{"a": math.inf, "b": 1.0}], "a", "b") == -1
    assert sign_in([{"a": math.inf, "b": math.inf}], "a", "b") is None


def test_a_source_says_what_more_than_half_of_its_tables_say(tmp_path: Path) -> None:
    better, worse, close = ({"alibi": [9, 10], "rope": [9, other]} for other in (20, 5, 10.1))
    for key, tables in {"a": (better, better, worse), "b": (better, close), "c": (better, worse)}.items():
        source(tmp_path, key, *tables)
    (pair,) = found(tmp_path, ours(alibi=1.0, rope=2.0)).chosen((2.0,))
    assert pair.sources == {"a": 1, "b": 0, "c": 0}


def lists_of(folder: Path, own: OurLosses) -> dict[str, tuple[str, ...]]:
    """The lists of what is said, by their titles."""
    return dict(said_of({"in_proportion": found(folder, own)}, read_literature(folder)).lists)


def test_a_pair_is_disputed_if_one_source_contradicts_another(tmp_path: Path) -> None:
    one, opposite, tie = ({"alibi": [9, 10], "rope": [9, other]} for other in (20, 5, 10))
    own = ours(alibi=1.0, rope=2.0)
    source(tmp_path, "tie", tie)
    assert "Disputed by papers" not in lists_of(tmp_path, own)
    source(tmp_path, "one", one)
    numbers = at_2x(tmp_path, own)
    assert (numbers.pairs, numbers.disputed, numbers.ours.agree) == (1, 0, 1)
    source(tmp_path, "opposite", opposite)
    numbers = at_2x(tmp_path, own)
    assert (numbers.pairs, numbers.disputed, numbers.ours.decided) == (0, 1, 0)
    said = "2x: alibi is better in one (arXiv:one), rope in opposite (arXiv:opposite); here alibi is"
    assert lists_of(tmp_path, own)["Disputed by papers"] == (said,)


def test_what_is_opposite_names_the_paper_that_most_of_it_rests_on(tmp_path: Path) -> None:
    """Of `a` ours contradict both pairs, one of which only `a` has; with `c` they agree."""
    own = ours(alibi=1.0, rope=2.0, t5=3.0)
    source(tmp_path, "a", {"alibi": [9, 20], "rope": [9, 15], "t5": [9, 10]})
    source(tmp_path, "b", {"rope": [9, 15], "t5": [9, 10]})
    source(tmp_path, "c", {"alibi": [9, 10], "none": [9, 20]})
    said = said_of({"in_proportion": found(tmp_path, own)}, read_literature(tmp_path))
    assert (
        "Of the 3 opposite ones, 3 are what a (arXiv:a) finds, of which 2 are found in no other paper."
        in said.sentences[0]
    )
    columns = dict(said.tables)["Each source at 2x to 16x"]
    assert [column.cells for column in columns] == [
        ("a (arXiv:a)", "b (arXiv:b)"),
        ("0/3, -1.00", "0/1, -1.00"),
        ("1/1, 1.00", "1/1, 1.00"),
    ]


def test_our_texts_are_read_as_the_tables_of_a_source(tmp_path: Path) -> None:
    """Two of three texts say that alibi is better; the third, by far more, that rope is: a mean would say so, too."""
    source(tmp_path, "one", {"alibi": [9, 10], "rope": [9, 20]})
    gaps = {"a": 0.1, "b": 0.1, "c": -5.0}
    losses = {(text, "sliding", 2.0, "alibi"): 6.0 for text in gaps}
    losses |= {(text, "sliding", 2.0, "rope"): 6.0 + gap for text, gap in gaps.items()}
    assert at_2x(tmp_path, OurLosses(losses)).ours.agree == 1


def test_what_we_cannot_tell_apart_is_a_tie_and_in_no_denominator(tmp_path: Path) -> None:
    source(tmp_path, "one", {"alibi": [9, 10], "rope": [9, 20], "t5": [9, 30]})
    sure = ours(alibi=1.0, rope=2.0, t5=3.0)
    unsure = OurLosses(sure.losses, unsure=[("sliding", 2.0, frozenset({"rope", "alibi"}))])
    one, other = at_2x(tmp_path, sure).ours, at_2x(tmp_path, unsure).ours
    assert (one.agree, one.decided, one.ties) == (3, 3, 0)
    assert (other.agree, other.decided, other.ties) == (2, 2, 1)
    assert one.tau == 1 > other.tau


# The three numbers


def test_papers_are_compared_with_all_others(tmp_path: Path) -> None:
    """Of three sources, two say one thing: only the third differs from others that agree with each other."""
    for key, other in {"a": 20, "b": 20, "c": 5}.items():
        source(tmp_path, key, {"alibi": [9, 10], "rope": [9, other]})
    papers = at_2x(tmp_path, ours(alibi=1.0, rope=2.0)).papers
    assert (papers.agree, papers.decided) == (0, 1)
    source(tmp_path, "c", {"alibi": [9, 10], "rope": [9, 20]})
    papers = at_2x(tmp_path, ours(alibi=1.0, rope=2.0)).papers
    assert (papers.agree, papers.decided) == (3, 3)


def test_the_naive_order_knows_families_only() -> None:
    assert naive_sign("alibi", "rope") == naive_sign("rope", "sinusoidal") == naive_sign("t5(far=64)", "learned") == 1
    assert naive_sign("sinusoidal", "kerple-log") == -1
    for silent in ("t5", "none", "fox", "rope+window", "alibi|rope", "rope as yarn"):
        assert naive_sign("alibi", silent) == 0, silent


def test_skill_is_shown_only_beyond_the_naive_order_and_chance(tmp_path: Path) -> None:
    """Pairs on which the naive order is right show nothing; ten on which it is silent do, and three do not."""
    biases = ["alibi", "fire", "kerple-log", "kerple-power", "t5"]
    ranked = {name: float(n) for n, name in enumerate(biases)}
    source(tmp_path, "one", {name: [9, 10 * (n + 1)] for n, name in enumerate(biases)})
    numbers = at_2x(tmp_path, ours(**ranked))
    assert (numbers.p_chance, numbers.skill) == (1 / 1024, True)  # ten pairs of one family
    assert math.isnan(numbers.p_naive)  # of which the naive order says nothing
    source(tmp_path, "one", {name: [9, 10 * (n + 1)] for n, name in enumerate(biases[:3])})
    numbers = at_2x(tmp_path, ours(**ranked))
    assert (numbers.p_chance, numbers.skill) == (1 / 8, False)
    source(tmp_path, "one", {name: [9, 10 * (n + 1)] for n, name in enumerate(["alibi", "rope", "sinusoidal"])})
    known = at_2x(tmp_path, ours(alibi=1.0, rope=2.0, sinusoidal=3.0))
    assert (known.ours.agree, known.naive.agree, known.skill) == (3, 3, False)


def test_hard_pairs_are_apart(tmp_path: Path) -> None:
    source(tmp_path, "one", {"alibi": [9, 10], "t5": [9, 20], "rope": [9, 30]})
    own = ours(alibi=2.0, t5=1.0, rope=3.0)
    every, hard = at_2x(tmp_path, own), at_2x(tmp_path, own, hard=True)
    assert (every.ours.agree, every.ours.decided) == (2, 3)
    assert (hard.ours.agree, hard.ours.decided) == (0, 1)


def test_tables_are_compared_with_the_same_protocol(tmp_path: Path) -> None:
    """What sliding windows say is held against sliding ones, and never against others."""
    source(tmp_path, "slide", {"alibi": [9, 10], "t5": [9, 20]}, like="sliding")
    source(tmp_path, "tiles", {"alibi": [9, 20], "t5": [9, 10]}, like="nonoverlapping")
    own = ours(alibi=1.0, t5=2.0)
    agreement = found(tmp_path, own)
    assert agreement.unmeasured == ("nonoverlapping",)
    assert not agreement.chosen(MULTIPLES, "nonoverlapping")
    both = OurLosses({**own.losses, **ours("nonoverlapping", alibi=2.0, t5=1.0).losses})
    assert [at_2x(tmp_path, both, like).ours.agree for like in ("sliding", "nonoverlapping")] == [1, 1]
    assert at_2x(tmp_path, both).disputed == 1  # all tables together
    assert at_2x(tmp_path, ours("fixed", alibi=1.0, t5=2.0), "sliding").ours.agree == 1  # whole windows, too


def test_a_length_in_the_papers_proportion_comes_first() -> None:
    own = ["alibi", "t5", "t5(far=0.25L)", "rope as rope-linear(factor=8.0)"]
    names = ["alibi", "t5", "rope as rope-linear(factor=8)", "xpos", "an unknown one"]
    linear = {"rope as rope-linear(factor=8)": "rope as rope-linear(factor=8.0)"}
    assert counterparts(names, own) == {"alibi": "alibi", "t5": "t5(far=0.25L)"} | linear
    assert counterparts(names, own, in_proportion=False) == {"alibi": "alibi", "t5": "t5"} | linear
    assert counterparts(["t5"], ["t5(far=0.25L)"], in_proportion=False) == {"t5": "t5(far=0.25L)"}


def test_growth_stands_beside_the_published_range(tmp_path: Path) -> None:
    source(tmp_path, "one", {"alibi": [10, 11], "rope": [10, 30]}, {"alibi": [10, 9], "rope": [10, math.inf]})
    source(tmp_path, "two", {"alibi": [10, 12]})
    losses = {
        ("text", "sliding", at, name): loss for name in ("alibi", "rope") for at, loss in ((1.0, 1.0), (2.0, 1.5))
    }
    rows = {each.encoding: each for each in found(tmp_path, OurLosses(losses)).growths if not each.like}
    alibi = rows["alibi"]
    assert alibi.ours == pytest.approx(math.exp(0.5))
    assert (alibi.low, alibi.high) == pytest.approx((0.9, 1.2))
    assert (alibi.tables, alibi.sources) == (3, 2)
    assert rows["rope"].high == math.inf
    assert {each.multiple for each in rows.values()} == {2.0}


# Where our losses come from


def summary(folder: Path, *rows: str, head: str = "") -> Path:
    path = folder / "summary.csv"
    first = head or "corpus,fingerprint,train_length,encoding,ppl_1x,ppl_2x,verdict"
    path.write_text("\n".join([first, *rows]) + "\n")
    return path


def test_losses_of_a_summary(tmp_path: Path) -> None:
    rows = ["code,1,64,alibi,10,11,holds", "code,1,64,none,20,,undertrained", "code,1,256,alibi,5,6,holds"]
    own = losses_of_summary(summary(tmp_path, *rows))
    text = "code 1", "sliding"
    expected = {
        (*text, 1.0, "alibi"): math.log(10),
        (*text, 2.0, "alibi"): math.log(11),
        (*text, 1.0, "none"): math.log(20),
    }
    assert own.losses == pytest.approx(expected)
    assert own.undertrained == {"none"}
    assert losses_of_summary(tmp_path / "summary.csv", 256).losses[*text, 2.0, "alibi"] == pytest.approx(math.log(6))
    with pytest.raises(UsageError, match="no training length 128"):
        losses_of_summary(tmp_path / "summary.csv", 128)


def test_what_is_no_summary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder; give the summary\.csv"):
        losses_of_summary(tmp_path)
    with pytest.raises(UsageError, match="there is no file"):
        losses_of_summary(tmp_path / "none.csv")
    with pytest.raises(CorruptError, match="lacks the column 'verdict'"):
        losses_of_summary(summary(tmp_path, head="corpus,fingerprint,train_length,encoding,ppl_1x"))
    answers = "corpus,fingerprint,train_length,encoding,ppl_1x,verdict,effective"
    with pytest.raises(UsageError, match="only tasks with right answers"):
        losses_of_summary(summary(tmp_path, "recall,1,64,alibi,1.1,solved,16", head=answers))


def test_losses_of_runs_have_every_protocol() -> None:
    rows, _ = results(seeds=(0, 1))
    own = losses_of_runs(rows)
    assert {*own.protocols} == {"sliding", "fixed", "nonoverlapping"}
    assert own.protocols[0] == "sliding"
    text = own.texts[0]
    chosen = rows[(rows["encoding"] == "alibi") & (rows["ratio"] == 4) & (rows["protocol"] == "fixed")]
    one, other = chosen.loc[chosen["variant"] == "full", "nll"]
    assert one != other
    assert own.losses[text, "fixed", 4.0, "alibi"] == pytest.approx((one + other) / 2)
    mixed = rows.assign(tokenizer=["bytes" if name == "rope" else "bpe" for name in rows["encoding"]])
    with pytest.raises(UsageError, match="several tokenizers"):
        losses_of_runs(mixed)


def test_answers_to_tasks_are_not_held_against_perplexities() -> None:
    """Although more encodings were asked a task, at another length."""
    text, _ = results({"alibi": BEHAVIOUR["alibi"], "rope": BEHAVIOUR["rope"]})
    answers, _ = results(corpus="passkey", fingerprint="a5ced", train_length=64)
    assert answers["encoding"].nunique() > 2
    answers = answers.assign(accuracy=0.5)
    both = losses_of_runs(pd.concat([answers, text], ignore_index=True))
    assert both.losses == losses_of_runs(text).losses
    with pytest.raises(UsageError, match="only answers to tasks"):
        losses_of_runs(answers)


def test_no_common_encodings(tmp_path: Path) -> None:
    source(tmp_path, "one", {"alibi": [9, 10], "rope": [9, 20]})
    with pytest.raises(UsageError, match="no two encodings"):
        found(tmp_path, ours(alibi=1.0, fox=1.0))


# The command


def test_the_command_says_three_numbers_side_by_side(tmp_path: Path) -> None:
    rows = [f"code,1,64,{name},10,{ppl},holds" for name, ppl in (("alibi", 10), ("t5", 12), ("rope", 20), ("fire", 9))]
    path = summary(tmp_path, *rows)
    document = cli("agree", path, "--json").json
    (numbers,) = (
        each
        for each in document["in_proportion"]["numbers"]
        if (each["multiples"], each["like"], each["hard"]) == ([2.0], "", False)
    )
    # Undisputed at 2x: alibi, t5 and fire before rope, alibi before fire; disputed: alibi and fire with t5.
    assert (numbers["pairs"], numbers["disputed"]) == (4, 2)
    assert (numbers["ours"]["agree"], numbers["ours"]["decided"]) == (3, 4)
    assert (numbers["naive"]["agree"], numbers["naive"]["decided"]) == (3, 3)
    assert 0.8 < numbers["papers"]["agree"] / numbers["papers"]["decided"] < 1
    assert numbers["skill"] is False
    assert "as_published" not in document  # the same encodings
    text = cli("agree", path)
    assert text.code == 0
    folded = " ".join(text.out.split())
    assert "agree on 3 of 4 (75 %)" in folded
    assert "no skill shown" in folded
    assert "2x: alibi is better in cable (arXiv:2503.08067), dape (arXiv:2405.14722); here fire is" in folded
    assert "t5 in kerple (arXiv:2205.09921), pe_survey (arXiv:2312.17044); here alibi is" in folded  # disputed
    assert "What this size cannot test" in text.out


def test_a_name_may_be_given(tmp_path: Path) -> None:
    names = {"alibi": 10, "t5": 30, "t5(far=0.25L)": 20, "rope": 25}
    path = summary(tmp_path, *(f"code,1,64,{name},10,{ppl},holds" for name, ppl in names.items()))
    document = cli("agree", path, "--json").json
    assert document["in_proportion"]["names"]["t5"] == "t5(far=0.25L)"
    assert document["as_published"]["names"]["t5"] == "t5"
    document = cli("agree", path, "--json", "--name", "t5=t5").json
    assert document["in_proportion"]["names"]["t5"] == "t5"
    refused = cli("agree", path, "--name", "alibbi=t5")
    assert refused.code == 2
    assert "papers have no 'alibbi': did you mean alibi" in refused.err
    refused = cli("agree", path, "--name", "t5=xpos")
    assert (refused.code, "no results of 'xpos'" in refused.err) == (2, True)


def test_refusals_are_one_line(tmp_path: Path) -> None:
    path = summary(tmp_path, "code,1,64,fox,10,11,holds")
    for arguments, code in (((path,), 2), ((tmp_path,), 2), ((tmp_path / "no.csv",), 2), (("--out", tmp_path), 1)):
        result = cli("agree", *arguments)
        assert result.code == code, result.err
        assert result.err.count("\n") == 1
        assert not result.out


def test_options_of_which_nothing_would_come_are_refused(tmp_path: Path) -> None:
    path = summary(tmp_path, "code,1,64,fox,10,11,holds")
    plant(tmp_path / "cells", {"alibi": (2.0, 1.8), "rope": (2.0, 2.5)}, documents=4)
    for arguments, message in (
        (
            ("--cells", tmp_path / "typo", "--out", tmp_path),
            f"there are no cells of season 2026 in {tmp_path / 'typo'}",
        ),
        ((path, "--cells", tmp_path / "cells"), f"--cells {tmp_path / 'cells'}: it is for the board"),
        (("--season", "nowhere.toml", "--out", tmp_path), "--season nowhere.toml: it is for the board"),
        (("--cells", tmp_path / "cells", "--train-length", 9999), "--train-length 9999: it is for runs and summaries"),
    ):
        result = cli("agree", *arguments)
        assert result.code != 0
        assert message in result.err
        assert result.err.count("\n") == 1
