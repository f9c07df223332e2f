"""Options are made from a model's fields: their names, types, bounds and help; and the requests that they make."""

import pytest
import typer
from cli_runner import cli
from pydantic import Field

from poscli.bench.settings import BenchSettings
from poscli.cli.options import Nested, from_model
from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.run import PRESETS, ModelConfig, RunConfig
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
    @from_model({"length": ("--length", "-L"), "rates": ("--set",)}, {"shape": Nested(ModelConfig, "the preset's")})
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "lots"), "--budget 'lots': no number of tokens"),
        (("--counts", "64,0.5"), "--counts '0.5': .* a whole number of tokens"),
        (("--set", "a=fast"), "--set 'a=fast': write key=number"),
        (("--share", "-1"), "command: share = -1.0: .*greater than 0"),
        (("--length", "1"), "command: length = 1: .*greater than"),
        (("-L", "9"), "command: length = 9: .*less than"),
        (("--batch", "0"), "command: batch = 0: .*greater than"),
    ],
)
def test_a_refused_value_is_named_with_its_rule(arguments, words):
    with pytest.raises(UsageError, match=words):
        requested(*arguments)


@pytest.mark.parametrize("request_", [TrainRequest, ExtrapolateRequest, BenchSettings])
def test_every_option_has_a_help_text(request_):
    assert all(field.description for field in request_.model_fields.values())


@pytest.mark.parametrize("request_", [TrainRequest, BenchSettings])
def test_the_presets_of_the_help_are_those_that_exist(request_):
    *names, last = PRESETS
    assert f"{', '.join(names)} or {last}" in request_.model_fields["preset"].description


def test_a_field_with_its_default_does_not_change_the_id_of_a_run():
    """Runs made before `task` and `tokenizer` existed keep their names."""
    assert RunConfig(encoding="alibi", task="language", tokenizer="bytes").run_id("0" * 16) == "alibi-253e2f24"
    assert RunConfig(encoding="alibi", task="copy").run_id("0" * 16) != "alibi-253e2f24"


def test_more_threads_than_the_machine_can_use_are_refused(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    result = cli("bench", "--threads", 9)
    assert (result.code, result.err) == (2, "error: --threads 9: this machine has 2 cores; give 1 to 8\n")


@pytest.mark.parametrize("command", [("train", "--enc", "none"), ("generate",), ("verify", "none")])
def test_a_seed_is_at_most_what_a_file_can_hold(command):
    result = cli(*command, "--seed", 10**20)
    assert result.code == 2
    assert "--seed" in result.err
    assert str(2**63 - 1) in result.err
