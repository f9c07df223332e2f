"""Several ranks: one result, one output, one error, one address."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from cli_runner import cli
from safetensors.torch import load_file
from several_ranks import free_port, on_rank, on_ranks, start_ranks, variables_of
from torch.distributed import DistBackendError, TCPStore
from torture.processes import DIED, Ended, command, steady_clock

from poscli.config.run import PRESETS
from poscli.model.initialise import build_model
from poscli.runs.lock import locked
from poscli.system import ranks as several
from poscli.system import signals
from poscli.system.errors import DataError, UsageError
from poscli.system.ranks import agree, any_rank, connected, exchanged, together
from poscli.tasks import Batch
from poscli.training.distributed import parts_of, replicated_loss
from poscli.training.trainer import Trainer
from poscli.verify.noise import perturbed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forked processes")
NANO = ("--preset", "nano", "--length", 16, "--batch", 4, "--seed", 3)
CPU = torch.device("cpu")
STEPS = 6
# A sum over windows in another order differs by half an ulp of each addend, 6e-8 of its size, and every step of
# training multiplies the difference: after six it was 2e-5 on an AMD EPYC, and less than 1e-5 on Intel CPUs.
LOSS = 2e-4


@pytest.fixture(autouse=True)
def book(here: Path) -> None:
    (here / "book.txt").write_text("".join(f"the number {n} is followed by {n + 1}.\n" for n in range(3000)))


def training(encoding: str, out: str, *options: object, steps: int = STEPS) -> tuple[object, ...]:
    text = ("--corpus", "text:book.txt", "--tokens", steps * 4 * 16)
    return ("train", "--enc", encoding, *NANO, *text, "--out", out, *options)


def losses(out: str) -> np.ndarray:
    (path,) = Path(out).glob("runs/*/train.csv")
    return pd.read_csv(path)["nll"].to_numpy()


def weights(out: str, steps: int = STEPS) -> dict[str, torch.Tensor]:
    (path,) = Path(out).glob(f"runs/*/checkpoints/step-{steps}/model.safetensors")
    return load_file(path)


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int, int], None]]:
    """A function that makes this process one of several ranks; after the test it is alone again."""
    for name, value in {"_store": None, "PATIENCE": timedelta(seconds=60), "JOIN": timedelta(seconds=60)}.items():
        monkeypatch.setattr(several, name, value)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with mock.patch.dict(os.environ), signals.kept_handlers():
        yield lambda *numbers: os.environ.update(variables_of(*numbers))
        signals.watch()  # which forgets that a rank has left it to another one to speak


def on_each(count: int, function: Callable[[int], object], become: Callable[[int, int, int], None]) -> list[object]:
    """What a function returns on each rank, as JSON. The first rank is this process."""

    def prepare(rank: int) -> None:
        with connected(CPU):
            print(json.dumps(function(rank)))
        raise SystemExit(0)

    others = start_ranks(count, lambda rank: (), prepare, first=1, port=(port := free_port()))
    become(0, count, port)
    with connected(CPU):
        answer = json.loads(json.dumps(function(0)))
    ended = [each.wait() for each in others]
    assert [each.code for each in ended] == [0] * (count - 1), ended
    return [answer, *(json.loads(each.out) for each in ended)]


def said(ended: Ended) -> list[str]:
    """The lines on stderr, without the warnings of torch's C++ code, which a forked process cannot silence."""
    return [line for line in ended.err.splitlines() if not line.startswith("[rank")]


def in_step(number: int, signum: int) -> None:
    """Send this process a signal when it begins a step of training."""
    gradient = Trainer.gradient

    def signalled(trainer: Trainer) -> tuple[float, float]:
        if trainer.step == number:
            os.kill(os.getpid(), signum)
        return gradient(trainer)

    Trainer.gradient = signalled  # type: ignore[method-assign]


# ---- the parts of a batch


@pytest.mark.parametrize(("ranks_", "accumulate"), [(1, 4), (2, 2), (4, 1)])
def test_the_parts_of_all_ranks_have_the_loss_and_the_gradient_of_the_batch(ranks_: int, accumulate: int) -> None:
    """Against the mean over all targets that count, of which one window has none."""
    draw = np.random.default_rng(0)
    batch = Batch(draw.integers(0, 257, (4, 17)), draw.random((4, 16)) < np.array([[0.9], [0.1], [0.5], [0.0]]))
    model = build_model(PRESETS["nano"], "alibi", vocab=257, length=16, seed=0).double()
    torch.nn.init.normal_(model.head.weight)  # which starts at zero, so that nothing else would have a gradient
    logits = model(torch.from_numpy(batch.tokens[:, :-1])).log_softmax(-1)
    picked = logits.gather(-1, torch.from_numpy(batch.tokens[:, 1:, None]))[..., 0]
    expected = -picked[torch.from_numpy(batch.counted)].mean()
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    parts = [part for rank in range(ranks_) for part in parts_of(batch, rank, ranks_, accumulate)]
    assert np.array_equal(np.concatenate([part.batch.tokens for part in parts]), batch.tokens)
    loss = sum(model.loss(*part.tensors(torch.device("cpu"))) * part.share for part in parts)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)  # of a matrix product and a loss in float32
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max()))


# ---- the result


@pytest.mark.parametrize(
    ("encoding", "steps"),
    [("alibi|t5", STEPS), *(pytest.param(each, 200, marks=pytest.mark.slow) for each in ("none", "fox", "learned"))],
)
def test_two_ranks_have_the_result_of_one(encoding: str, steps: int) -> None:
    ended = on_ranks(*training(encoding, "two", "--json", steps=steps))
    assert [each.code for each in ended] == [0, 0], ended
    (row,) = json.loads(ended[0].out)
    assert (row["status"], ended[1].out, said(ended[1])) == ("complete", "", [])
    assert command(*training(encoding, "one", "--accumulate", 2, steps=steps)).code == 0
    assert np.abs(losses("two") - losses("one")).max() < LOSS
    assert len(losses("two")) == steps
    two, one = weights("two", steps), weights("one", steps)
    assert two.keys() == one.keys()
    if steps == STEPS:
        assert all(torch.allclose(two[name], one[name], rtol=0, atol=2e-3) for name in one)  # steps of 1e-2 and more
    (env,) = Path("two").glob("runs/*/env.json")
    assert json.loads(env.read_text())["ranks"] == 2


def test_a_signal_to_one_rank_stops_all_at_one_step_and_one_process_goes_on() -> None:
    """The memory of the ranks' windows goes into the checkpoint in the order of the batch."""
    arguments = training("transformer-xl", "two", "--memory", 16)
    ended = on_ranks(*arguments, prepare=on_rank(1, lambda: in_step(2, signal.SIGTERM)))
    assert [each.code for each in ended] == [143, 143], ended
    assert ended[0].err.splitlines()[-1] == "error: stopped at step 3 of 6; the same command goes on from there"
    assert said(ended[1]) == []
    assert command(*arguments).code == 0
    assert command(*training("transformer-xl", "one", "--memory", 16)).code == 0
    assert np.abs(losses("two") - losses("one")).max() < LOSS


def test_a_killed_rank_ends_the_others_and_the_same_command_ends_with_the_same_bits() -> None:
    def killed(rank: int) -> None:
        steady_clock()  # a checkpoint every four steps
        if rank == 1:
            in_step(5, signal.SIGKILL)

    ended = on_ranks(*training("fox", "two"), prepare=killed)
    assert [each.code for each in ended] == [1, DIED], ended
    lines = ended[0].err.splitlines()
    assert lines[-1].startswith("error: rank 0 of 2 on ")
    assert lines[-1].endswith(" has lost another rank; the same command goes on from the last checkpoint")
    again = on_ranks(*training("fox", "two"))
    assert [each.code for each in again] == [0, 0], again
    assert "going on from step 4 of 6" in again[0].err
    assert [each.code for each in on_ranks(*training("fox", "undisturbed"))] == [0, 0]
    expected = weights("undisturbed")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights("two").items())


# ---- errors


def one_error(ended: list[Ended], code: int) -> str:
    """The one line of all ranks, which all have the same exit code."""
    assert [each.code for each in ended] == [code] * len(ended), ended
    lines = [line for each in ended for line in said(each) if line.startswith("error: ")]
    assert len(lines) == 1, lines
    return lines[0]


def test_ranks_that_disagree_are_named_before_training() -> None:
    def options(rank: int) -> tuple[object, ...]:
        return training("alibi", "two", "--length", 16 + 16 * rank, "--batch", 4)

    line = one_error([each.wait() for each in start_ranks(2, options, lambda rank: None)], 2)
    assert "disagree about length of alibi: rank 0 on " in line
    assert "has 16, rank 1 on " in line
    assert "has 32; start every rank with the same command" in line
    assert not Path("two").exists()


def test_ranks_with_other_texts_under_one_name_are_named() -> None:
    def edited() -> None:
        from poscli.tasks.language import Language

        opened = Language.__init__

        def other(task: Language, data: object) -> None:
            opened(task, data)  # type: ignore[arg-type]
            task.fingerprint = "another text"

        Language.__init__ = other  # type: ignore[method-assign]

    line = one_error(on_ranks(*training("alibi", "two"), prepare=on_rank(1, edited)), 2)
    assert "disagree about the contents of the corpus: rank 0 on " in line
    assert "has 'another text'" in line


def test_an_error_of_one_rank_ends_all_and_names_it() -> None:
    line = one_error(on_ranks(*training("alibi", "two"), prepare=on_rank(1, lambda: os.chdir("/"))), 4)
    assert line.startswith("error: rank 1 on ")
    assert "book.txt" in line


def test_an_error_that_all_ranks_have_is_printed_once() -> None:
    """Also before they are connected, and where the run is locked, which the first rank alone can see."""
    line = one_error(on_ranks("ls", "tasks"), 2)
    assert line.endswith("poscli ls runs in one process: leave out torchrun, which is for extrapolate and train")
    line = one_error(on_ranks(*training("alibi", "two", "--accumulate", 4)), 2)
    assert line.endswith(
        "--batch 4 cannot be divided into 8 equal parts (2 ranks times --accumulate 4); give a multiple of 8"
    )
    assert command(*training("alibi", "two", steps=1)).code == 0
    (run,) = Path("two").glob("runs/*")
    with locked(run):
        assert "is being worked on by process" in one_error(on_ranks(*training("alibi", "two", steps=1)), 75)


# ---- what ranks say to each other


def exchanges(rank: int) -> list[object]:
    parts = [part.tolist() for part in exchanged(np.arange(rank + 1) * 1.5)]
    answers: list[object] = [parts, any_rank(rank == 1), any_rank(False), several.largest(10 - rank)]
    agree({"equal": {"a": 1}})
    try:
        agree({"equal": {"a": 1}, "table": {"width": 64 + rank // 2}})
    except UsageError as error:
        answers.append(str(error).partition(";")[0].replace(platform.node(), "here"))
    try:
        with together():
            if rank:
                raise DataError(f"no text on {rank}")
    except Exception as error:  # noqa: BLE001 - compared below
        answers += [str(error).partition(": ")[2] or str(error), getattr(error, "exit_code", 0)]
    numbers = several.numbers_of_all([rank + 0.5, 2.0])
    return [*answers, listening(), accumulated(rank), numbers, exchanged("ab"[:rank])[1]]


def listening() -> list[str]:
    """The local addresses on which this process listens, in hexadecimal digits as the kernel lists them."""
    sockets = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


def accumulated(rank: int) -> float:
    """How far gradients accumulated over two parts on each rank are from those of the whole batch, at most."""
    batch = Batch(np.random.default_rng(0).integers(0, 257, (6, 17)))
    model = perturbed(build_model(PRESETS["nano"], "t5", vocab=257, length=16, seed=0))  # layers share its table
    tokens = torch.from_numpy(batch.tokens)
    expected = torch.autograd.grad(model.loss(tokens[:, :-1], tokens[:, 1:]), list(model.parameters()))
    loss, (first, last) = replicated_loss(model), parts_of(batch, rank, 3, 2)
    with loss.no_sync():
        (loss(*first.tensors(torch.device("cpu")), None) * first.share).backward()
    (loss(*last.tensors(torch.device("cpu")), None) * last.share).backward()
    assert len(expected) > 10
    assert all(gradient.any() for gradient in expected)
    pairs = zip(model.parameters(), expected, strict=True)
    return max(float((p.grad - gradient).abs().max() / gradient.abs().max()) for p, gradient in pairs)


def test_three_ranks_exchange_agree_add_gradients_and_fail_together_on_the_loopback_address(become) -> None:
    for answers in on_each(3, exchanges, become):
        assert answers[:4] == [[[0.0], [0.0, 1.5], [0.0, 1.5, 3.0]], True, False, 10]
        disagree = "the ranks disagree about table.width: rank 0 on here has 64, rank 2 on here has 65"
        assert answers[4:7] == [disagree, "no text on 1", DataError.exit_code]
        assert set(answers[7]) == {"0100007F"}  # 127.0.0.1
        assert answers[8] < 1e-4  # sums in another order differ by 1e-6; a part too many or too few, by more than 0.1
        assert answers[9:] == [[[0.5, 2.0], [1.5, 2.0], [2.5, 2.0]], "a"]


def test_of_several_ranks_one_says_what_has_happened(become, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one if it has an error, after a while another one, or the one that has lost a rank; no other."""
    monkeypatch.setattr(several, "REPORT_SECONDS", 0.1)
    plain, other = ValueError("no luck"), f"rank 1 on {platform.node()}: "
    for speaking in (
        [(0, plain, ""), (1, plain, None), (0, plain, None)],
        [(1, plain, other), (0, plain, None), (1, several.lost, None)],
        [(1, several.lost, ""), (1, plain, None)],
        [(0, several.shared(ValueError()), ""), (1, several.shared(ValueError()), None), (1, plain, other)],
    ):
        kept = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        monkeypatch.setattr(several, "_store", kept)
        for rank, error, said in speaking:
            become(rank, 2, kept.port)
            assert several.spoken_by(error() if callable(error) else error) == said
        with pytest.raises(several.LostRankError, match=r"^rank \d of 2 on .* has lost another rank; the same command"):
            connected(CPU).__enter__()  # it does not wait for ranks of which one has failed
    become(1, 2, free_port())
    monkeypatch.setattr(several, "_store", None)
    monkeypatch.setattr(several, "FINDING", timedelta(seconds=0.1))
    assert several.spoken_by(plain) is None  # nobody keeps a store
    assert several.spoken_by(several.lost()) == ""


def test_a_broken_connection_is_told_from_other_errors(become) -> None:
    broken, others = (
        (RuntimeError("Broken pipe"), DistBackendError()),
        (RuntimeError("no luck"), OSError("Broken pipe")),
    )
    assert not several.is_lost(broken[0])  # there is one rank
    become(1, 2, 65535)
    assert several.ranks() == several.Ranks(rank=1, count=2, local=1)
    for error in broken:
        with pytest.raises(several.LostRankError), several.lost_ranks_named():
            raise error
    for error in others:
        with pytest.raises(type(error), match=str(error)), several.lost_ranks_named():
            raise error


def test_each_rank_has_the_gpu_of_its_local_number(become, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    become(2, 3, 29500)
    for device in ("cuda", "cuda:1"):
        with pytest.raises(UsageError, match=rf"--device {device} for 3 ranks, .* number 2, .* with 2 GPUs: each rank"):
            connected(torch.device(device)).__enter__()
    chosen: list[torch.device] = []
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    kept = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    kept.add(several.TOLD, 1)
    become(1, 2, kept.port)
    with pytest.raises(several.LostRankError):
        connected(torch.device("cuda")).__enter__()
    assert chosen == [torch.device("cuda:1")]


NAMED = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"RANK": "a"}, "RANK=a WORLD_SIZE=2 LOCAL_RANK=1 in the environment names no rank"),
        ({"RANK": "2"}, "RANK=2 WORLD_SIZE=2 LOCAL_RANK=1 in the environment names no rank"),
        ({"RANK": None}, "do not say where 2 ranks meet"),
        ({"MASTER_PORT": None}, "do not say where 2 ranks meet"),
        ({"MASTER_ADDR": ""}, "do not say where 2 ranks meet"),
        ({"MASTER_PORT": "http"}, "do not say where 2 ranks meet"),
        ({"MASTER_PORT": "65536"}, "do not say where 2 ranks meet"),
        ({"MASTER_PORT": "0"}, "do not say where 2 ranks meet"),
    ],
    ids=str,
)
def test_an_environment_that_names_no_ranks_is_refused_at_once(
    changes: dict[str, str | None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them says so itself, since they cannot agree on one."""
    for name, value in (NAMED | changes).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    result = cli("train", "--enc", "alibi")
    assert (result.code, result.err.count("\n")) == (2, 1), result.err
    assert f"{words}; start ranks with torchrun, or unset WORLD_SIZE" in result.err
