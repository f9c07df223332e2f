"""The logit scale beyond the training length: its search, and what it does to a model."""

from __future__ import annotations

import math

import pytest
import torch
from toys import LENGTH, make, model, perturbed, tokens

from poscli.encodings.temper import Temper
from poscli.evaluation.posthoc import with_encoding


def searching(evaluations: int = 0) -> Temper:
    encoding = make(f"temper(search={evaluations})")
    assert isinstance(encoding, Temper)
    return encoding


def test_the_search_takes_the_best_of_an_even_grid() -> None:
    encoding, tried = searching(11), []

    def loss() -> float:
        tried.append(encoding.c)
        return math.nan if encoding.c > 0.75 else (encoding.c - 0.32) ** 2

    assert encoding.search(loss, encoding.evaluations, torch.Generator()) == pytest.approx(0.02**2)
    assert tried == pytest.approx([n / 10 for n in range(11)])
    assert encoding.c == pytest.approx(0.3)


@torch.no_grad()
def test_a_model_changes_only_beyond_its_training_length() -> None:
    """Its tempered copy sees L keys as before, and more keys with sharper scores."""
    trained, text = perturbed(model("rope", length=LENGTH)), tokens(2, 3 * LENGTH)
    plain, tempered = trained(text), with_encoding(trained, "rope+temper", "rope")(text)
    assert torch.equal(tempered[:, :LENGTH], plain[:, :LENGTH])
    assert float((tempered[:, LENGTH:] - plain[:, LENGTH:]).abs().amax(dim=(0, 2)).min()) > 0
