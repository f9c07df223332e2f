"""Pictures name a model once, and not before every encoding that it is evaluated under."""

from fake_results import BEHAVIOUR, results

from poscli.report.figures import perplexity_by_length
from poscli.report.named_once import named_once, the_model
from poscli.report.sections import split
from poscli.report.summary import summarize


def test_only_one_model_under_other_encodings_is_named_once():
    assert the_model(["pythia as yarn", "pythia"]) == "pythia"
    assert the_model(["rope", "rope as yarn", "alibi"]) == ""
    assert the_model(["rope", "rope as yarn", "alibi as window"]) == ""
    assert the_model(["rope"]) == ""
    assert the_model([]) == ""


def test_the_picture_has_short_names_and_says_whose_they_are():
    names = {"pythia": BEHAVIOUR["rope"], "pythia as yarn": BEHAVIOUR["alibi"], "pythia as rope-ntk": BEHAVIOUR["none"]}
    rows, positions = results(names)
    [group] = split(rows, positions, {})
    renamed, summary, model = named_once(group, summarize(group.rows))
    assert model == "pythia"
    assert set(renamed.rows["encoding"]) == set(summary["encoding"]) == {"pythia", "yarn", "rope-ntk"}
    assert set(group.rows["encoding"]) == set(names)  # which tables go on to show
    drawn = perplexity_by_length(renamed.rows).page
    texts = [text.get_text().replace("\n", " ") for text in drawn.figure.texts]
    assert any("all but pythia are this model under another encoding" in text for text in texts)
