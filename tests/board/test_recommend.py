"""`poscli recommend`: the best encoding that meets constraints, what each constraint costs, and what is refused."""

import pytest
from cli_runner import cli
from planted_board import plant

# Bits per byte at L and at 16 L. What there is to win is 0.5: 2.0 is the best at L, 1.5 the best trained at 16 L.
LOSSES = {
    "dape": (2.0, 1.6),  # no kernel of a GPU computes it
    "kerple-log": (2.0, 1.7),  # FlexAttention does
    "rope+window|none": (2.0, 1.8),  # FlashAttention does, and vLLM
    "alibi": (2.0, 1.9),
    "rope": (2.0, 2.8),
    "rope as yarn": (2.0, 1.95),
    "rope as rerope": (2.0, 2.3),
    "mine.py:Mine": (2.0, 1.85),
    "none": (2.0, 2.9),
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    plant(folder, LOSSES, documents=64)
    return folder


def recommend(cells, *options, length=100, max_len=1600):
    return cli("recommend", "--cells", cells, "--length", length, "--max-len", max_len, *options)


def document(cells, *options, **lengths):
    return recommend(cells, "--json", *options, **lengths).json


@pytest.mark.parametrize(
    ("options", "best"),
    [
        ([], "dape"),
        (["--flash"], "rope+window|none"),
        (["--vllm"], "rope+window|none"),
        (["--trained", "rope"], "yarn"),
    ],
)
def test_the_best_that_meets_the_constraints_is_recommended(cells, options, best):
    shown = recommend(cells, *options)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[0].startswith(f"{'Read it as' if '--trained' in options else 'Train with'} {best}: ")


def test_what_is_won_is_a_share_of_what_training_at_that_length_would_win(cells):
    first, *_ = document(cells)["choices"]
    assert first["encoding"] == "dape"
    assert first["won"][0] == pytest.approx(0.8, abs=0.15)  # (2.0 - 1.6) of (2.0 - 1.5)
    assert first["gain"][0] == pytest.approx(0.4, abs=0.1)
    halfway = document(cells, max_len=400)["choices"][0]
    assert halfway["won"][0] == pytest.approx(0.4, abs=0.15)


def test_the_price_of_a_constraint_is_what_the_best_without_it_wins_more(cells):
    (price,) = document(cells, "--vllm")["prices"]
    assert (price["option"], price["without"]) == ("--vllm", "dape")
    assert price["share"][0] == pytest.approx(0.4, abs=0.15)  # (1.8 - 1.6) of 0.5
    both = document(cells, "--vllm", "--flash")["prices"]
    assert [each["share"] for each in both[:2]] == [[0, 0, 0]] * 2  # each alone leaves the same best
    assert (both[2]["option"], both[2]["without"], both[2]["share"]) == ("all of this together", "dape", price["share"])


def test_a_multiple_that_was_not_measured_is_answered_with_the_next_and_said(cells):
    assert document(cells, max_len=300)["multiple"] == 4
    assert "You ask for 3x; this is what was measured at 4x." in recommend(cells, max_len=300).out
    assert "You ask for 64x, and the board ends at 16x." in recommend(cells, max_len=6400).out


def test_vllm_is_not_said_to_compute_options_that_it_does_not_read(tmp_path):
    plant(tmp_path, {"alibi(far=16.0)": (2.0, 1.6), "alibi(most=16.0)": (2.0, 1.8), "rope(base=500.0)": (2.0, 2.2)})
    choices = document(tmp_path, "--vllm")["choices"]
    assert {each["encoding"] for each in choices} == {"alibi(most=16.0)", "rope(base=500.0)"}


def test_few_choices_are_told_apart_by_the_spread_of_the_whole_table(tmp_path):
    """Their own three seeds say next to nothing of it."""
    names = ["none", "fox", "t5", "fire", "smear", "cable", "bam", "window", "shaw", "cope", "xpos", "pope"]
    plant(tmp_path, dict.fromkeys(names, (2.0, 2.2)) | {"rope": (2.0, 2.02), "alibi": (2.0, 2.0)}, document_sd=0.01)
    first, last = document(tmp_path, "--vllm")["choices"]
    assert (first["encoding"], first["last"], last["first"]) == ("alibi", 1, 2)


def test_a_model_of_an_encoding_in_a_file_is_listed_and_the_file_is_not_run(cells):
    assert "mine.py:Mine" in [each["encoding"] for each in document(cells)["choices"]]
    assert "mine.py:Mine" not in [each["encoding"] for each in document(cells, "--vllm")["choices"]]


@pytest.mark.parametrize(
    ("options", "lengths", "why"),
    [
        (["--trained", "rope", "--flash", "--no-parameters", "--vllm"], {}, None),
        ([], {"max_len": 100}, "--max-len 100: it must be more than --length 100"),
        (["--trained", "alibi"], {}, "the board has no other readings of its models; it has those of rope"),
        (["--trained", "rope", "--slowdown", 1.1], {}, "--trained 'rope' is trained already; leave one out"),
        (["--slowdown", 1.1], {}, "this board does not know what a training step costs; `poscli board run` measures"),
        (["--no-parameters"], {}, None),
        (["--table", "five layers"], {}, "season 2026 has no such table"),
        (["--table", "four layers"], {}, "there are no cells of table 'four layers'"),
    ],
)
def test_a_question_that_the_board_cannot_answer_gets_one_line(cells, options, lengths, why):
    shown = recommend(cells, *options, **lengths)
    assert (shown.code == 0) == (why is None)
    if why:
        assert why in shown.err
        assert len(shown.err.splitlines()) == 1


def test_without_a_model_of_none_nobody_knows_who_adds_parameters(tmp_path):
    plant(tmp_path, {"dape": (2.0, 1.6), "alibi": (2.0, 1.7)})
    shown = recommend(tmp_path, "--no-parameters")
    assert (shown.code, len(shown.err.splitlines())) == (2, 1)
    assert "has no model of `none`" in shown.err


def test_constraints_that_nothing_meets_are_counted_one_by_one(tmp_path):
    plant(tmp_path, {"dape": (2.0, 1.6), "alibi": (2.0, 1.7), "kerple-log": (2.0, 2.0)})
    shown = recommend(tmp_path, "--vllm", "--flash")
    assert shown.code == 2
    assert "none of 3 encodings with a rank meets all of this: --flash leaves 0 and --vllm leaves 1; leave" in shown.err
