"""Options are made from a model's fields: their names, types, bounds and help; and the requests that they make."""

import pytest
import typer
from pydantic import Field

from poscli.bench.settings import BenchSettings
from poscli.cli.options import from_model
from poscli.config.request import TrainRequest
from poscli.config.run import PRESETS, ModelConfig
from poscli.config.validate import Frozen, TokenCount
from poscli.system.errors import UsageError


class Request(Frozen):
    """A field of every kind."""

    length: int = Field(4, ge=2, le=8, description="How long it is.")
    share: float = Field(0.5, gt=0)
    batch: int | None = Field(None, ge=1)
    budget: TokenCount = Field(2_000_000, description="How much it may cost.")
    counts: tuple[TokenCount, ...] = ()
    words: list[str] = Field(["all"], alias="word")
    fast: bool = False
    shape: dict[str, int] = Field({})
    rates: dict[str, float] = Field({})


def requested(*arguments):
    """The request that a command with an option for every field is called with."""
    app, requests = typer.Typer(), []

    @app.command()
    @from_model({"length": ("--length", "-L"), "rates": ("--set",)}, {"shape": ModelConfig})
    def command(request: Request, plain: int = 0):
        requests.append(request)

    app(list(arguments), standalone_mode=False)
    return requests[0]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ((), {}),
        (("-L", "5", "--plain", "3"), {"length": 5}),
        (("--share", "2"), {"share": 2.0}),
        (("--batch", "2", "--fast"), {"batch": 2, "fast": True}),
        (("--budget", "500k"), {"budget": 500_000}),
        (("--counts", "64, 2k"), {"counts": (64, 2000)}),
        (("--word", "a", "--word", "b"), {"word": ["a", "b"]}),
        (("--width", "64", "--layers", "2"), {"shape": {"width": 64, "layers": 2}}),
        (("--set", "a=1", "--set", "b = -0.5"), {"rates": {"a": 1.0, "b": -0.5}}),
    ],
)
def test_a_request_holds_what_was_given_and_the_models_defaults(arguments, values):
    request = requested(*arguments)
    assert request == Request(**values)
    assert set(request.model_dump(by_alias=True, exclude_unset=True)) == set(values)


def test_an_entry_of_a_list_is_refused_with_its_rule():
    with pytest.raises(UsageError, match=r"--counts '0.5': .* a whole number of tokens"):
        requested("--counts", "64,0.5")


@pytest.mark.parametrize("request_", [TrainRequest, BenchSettings])
def test_the_presets_of_the_help_are_those_that_exist(request_):
    *names, last = PRESETS
    assert f"{', '.join(names)} or {last}" in request_.model_fields["preset"].description
