"""Suites on a Ray cluster: real ones on this machine, of one node and of two, and every refusal in one line."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_runner import SUITE, assert_refused, assert_same_runs, cli, environment
from filelock import FileLock

from poscli import cluster as on_node
from poscli.cluster import MARK, execute, look_around, refuse_apart, versions
from poscli.cluster.cluster import Cluster, Node, PerRun, RayCrew
from poscli.cluster.commands import OnRay
from poscli.config.run import RunConfig
from poscli.sweep.job import Job, Outcome
from poscli.sweep.workers import WorkerDied
from poscli.system.console import collected_warnings
from poscli.system.device import usable_cores
from poscli.system.errors import DataError, LockedError, UsageError

GIB = 2.0**30


def read(path: Path) -> str:
    """The text of a file of /proc; "" if the process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def listening(driver: int) -> set[str]:
    """The addresses, in hex as the kernel has them, on which a driver and the processes of Ray listen."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    addresses = {f"socket:[{row[9]}]": row[1].partition(":")[0] for row in rows if row[3] == "0A"}
    links = set()
    for process in Path("/proc").glob("[0-9]*"):
        command = read(process / "cmdline")
        if int(process.name) == driver or "ray::" in command or "ray/" in command:
            with contextlib.suppress(OSError):  # it has ended
                links |= {str(path.readlink()) for path in (process / "fd").iterdir()}
    return {addresses[link] for link in links & addresses.keys()}


LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


@pytest.mark.slow
def test_a_suite_on_a_local_cluster_has_the_bits_of_one_process_and_listens_on_loopback_only(folder) -> None:
    """One of its workers is killed in the middle, and RAY_ADDRESS names another cluster."""
    (folder / "tiny.toml").write_text(SUITE.replace("seeds = [0, 1]", "seeds = [0]"))
    assert cli("run", "tiny.toml", "--cpus", 1, "--out", "alone").code == 0
    seen = set[str]()
    command = [sys.executable, "-m", "poscli", "run", "tiny.toml", "--ray", "--workers", "2", "--out", "shared"]
    elsewhere = environment(RAY_ADDRESS="127.0.0.1:5")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=elsewhere)
    killed = 0
    while process.poll() is None:
        seen |= listening(process.pid)
        workers = [
            path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if read(path).startswith("ray::execute")
        ]
        if workers and list(Path("shared/runs").glob("*/status.json")) and not killed:
            killed = int(workers[0].name)
            os.kill(killed, signal.SIGKILL)
        time.sleep(0.5)  # a look at all processes takes time that they need
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert process.returncode == 0, said
    count = min(2, usable_cores())
    assert f"on {count} worker" in said
    assert said.count("its worker on the cluster has ended") == 1, said
    assert count == 1 or "2 of 2 runs done" in said
    assert seen
    assert seen <= set(LOOPBACK)
    assert_same_runs(Path("alone/runs"), Path("shared/runs"))


@pytest.fixture
def two_nodes(monkeypatch) -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each."""
    ray = str(Path(sys.executable).with_name("ray"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        address = f"127.0.0.2:{free.getsockname()[1]}"
    own = environment(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token")
    head = ["--head", "--node-ip-address=127.0.0.2", f"--port={address.rpartition(':')[2]}"]
    head.append("--include-dashboard=false")
    second = [f"--address={address}", "--node-ip-address=127.0.0.3"]
    for options in (head, second):
        subprocess.run([ray, "start", *options, "--num-cpus=1"], check=True, env=own, capture_output=True)
    yield address
    subprocess.run([ray, "stop", "--force"], check=True, env=own, capture_output=True)


@pytest.mark.slow
def test_two_nodes_share_a_suite_and_a_stopped_driver_goes_on(folder, two_nodes) -> None:
    command = [sys.executable, "-m", "poscli", "run", "tiny.toml", "--ray", two_nodes, "--out", "shared"]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    while not list(Path("shared/runs").glob("*/status.json")):
        time.sleep(0.05)
    first.terminate()
    _, said = first.communicate(timeout=60)
    assert first.returncode == 143, said
    assert said.splitlines()[-1].endswith("runs done; the same command goes on from there")
    again = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert again.returncode == 0, again.stderr
    assert "on 2 workers" in again.stderr
    assert cli("run", "tiny.toml", "--cpus", 1, "--out", "alone").code == 0
    assert_same_runs(Path("alone/runs"), Path("shared/runs"))


# ---- refusals


def test_a_cluster_without_the_package_is_refused_with_the_line_that_installs_it(folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert_refused(("run", "tiny.toml", "--ray"), 2, ("pip install 'poscli[ray]'", "--workers"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--ray", "127.0.0.1"), 2, "an address is HOST:PORT, such as 10.0.0.1:6379"),
        (("--ray", "ray://127.0.0.1:3"), 2, "an address is HOST:PORT"),
        (("--ray", "127.0.0.1:65536"), 2, "an address is HOST:PORT"),
        (("--ray", "..:6379"), 4, "nothing answers at ..:6379"),
        # A suite would otherwise run in this process where a variable of the shell is not set.
        (("--ray", ""), 2, "--ray has an empty address"),
        (("--ray=",), 2, "--ray has an empty address"),
        (("--ray", "--gpus", "1.5"), 2, "a run gets whole GPUs, or a part of one"),
        (("--ray", "--gpus", "0.00001"), 2, "a run gets whole GPUs, or a part of one"),
        (("--ray", "--device", "cuda:1"), 2, "on a cluster each run sees its own GPUs only"),
    ],
    ids=str,
)
def test_what_cannot_be_a_cluster_is_refused(folder, arguments: tuple[str, ...], code: int, words: str) -> None:
    assert_refused(("run", "tiny.toml", *arguments), code, words)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["--ray", "--yes"], ["--ray=local", "--yes"]),
        (["--ray", "10.0.0.1:6379", "a.toml"], ["--ray=10.0.0.1:6379", "a.toml"]),
        (["--ray", "10.0.0.1"], ["--ray=10.0.0.1"]),
        (["--ray=node:1", "auto"], ["--ray=node:1", "auto"]),
    ],
)
def test_the_address_of_a_cluster_may_be_left_out(typed: list[str], read: list[str]) -> None:
    assert OnRay.arguments(typed) == read


def test_an_address_where_no_cluster_answers_says_so_at_once(folder) -> None:
    with socket.socket() as server:  # nobody listens, and nobody else can have the port meanwhile
        server.bind(("127.0.0.1", 0))
        address = f"localhost:{server.getsockname()[1]}"
        assert_refused(("run", "tiny.toml", "--ray", address), 4, ("nothing answers", "ray start --head"))


def test_something_else_that_answers_is_no_cluster(folder) -> None:
    class Silent(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    server = http.server.HTTPServer(("127.0.0.3", 0), Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert_refused(("run", "tiny.toml", "--ray", f"127.0.0.3:{server.server_port}"), 4, "is no Ray cluster")
    finally:
        server.shutdown()
        server.server_close()


class RayError(Exception):
    """The class that Ray's errors have."""


class FakeRay:
    """What poscli uses of Ray. A job has the answer that the test gives it; what is asked of all nodes runs here."""

    def __init__(self, *nodes: Node) -> None:
        self.told = [
            {"NodeID": node.id, "NodeManagerAddress": node.address, "Alive": True, "Resources": resources}
            for node in nodes
            for resources in [{"CPU": node.cpus, "GPU": node.gpus, "memory": node.memory}]
        ]
        self.log: list[Any] = []  # what was asked of it
        self.jobs: list[Future[str]] = []
        self.exceptions = SimpleNamespace(RayError=RayError)
        strategy = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
        self.util = SimpleNamespace(scheduling_strategies=strategy)

    def init(self, **options: object) -> None:
        self.log.append(options)

    def shutdown(self) -> None:
        self.log.append("shutdown")

    def nodes(self) -> list[dict[str, Any]]:
        return self.told

    def get(self, calls: list[Callable[[], object]]) -> list[object]:
        return [call() for call in calls]

    def cancel(self, job: SimpleNamespace, *, force: bool) -> None:
        self.log.append(force)
        job.future().set_exception(RayError("it was cancelled\nand more"))

    def remote(self, **options: object) -> Callable[[Callable[..., object]], SimpleNamespace]:
        self.log.append(options)

        def called(function: Callable[..., object], *arguments: object) -> object:
            if function is look_around:
                return lambda: function(*arguments)
            self.log.append(arguments)
            self.jobs.append(Future())
            return SimpleNamespace(future=lambda job=self.jobs[-1]: job)

        def made(function: Callable[..., object]) -> SimpleNamespace:
            call = SimpleNamespace(remote=partial(called, function))
            call.options = lambda scheduling_strategy: self.log.append(scheduling_strategy) or call
            return call

        return made


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """A cluster of two machines that takes the place of Ray."""
    fake = FakeRay(Node("a", "10.0.0.1", 4, 0, 8 * GIB), Node("b", "10.0.0.2", 16, 2, 64 * GIB))
    monkeypatch.setattr("poscli.cluster.cluster.ray_at", lambda address: fake)
    return fake


HEAD = "10.0.0.1:6379"
QUIET = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}


def test_nodes_that_have_left_have_no_places(ray: FakeRay) -> None:
    ray.told[1]["Alive"] = False
    del ray.told[0]["Resources"]["GPU"]  # as Ray tells it where there is none
    assert Cluster(HEAD).nodes == [Node("a", "10.0.0.1", 4, 0, 8 * GIB)]
    assert ray.log == [{"address": HEAD, **QUIET}]


def test_a_local_cluster_has_the_cores_of_this_process_and_warns_where_others_could_reach_it(ray: FakeRay) -> None:
    ray.told[0]["NodeManagerAddress"] = "127.0.0.1"
    for others in (True, False):
        with collected_warnings() as warned:
            Cluster("local")
        assert warned == ["this version of Ray listens on 127.0.0.1, not on 127.0.0.1 alone"] * others
        ray.told[1:] = []
    size = {"num_cpus": usable_cores(), "object_store_memory": 100 * 2**20, "include_dashboard": False}
    assert ray.log[0] == {"address": "local", **size, **QUIET}


def test_a_cluster_that_cannot_be_joined_says_why(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    for said, cause in (("a traceback\n  the cause \n\n", "the cause"), ("", "RuntimeError")):

        def fails(said: str = said, **_: object) -> None:
            raise RuntimeError(said)

        monkeypatch.setattr(ray, "init", fails)
        with pytest.raises(DataError, match=rf"^--ray {HEAD}: no cluster can be joined \({cause}\); start one with"):
            Cluster(HEAD)


@pytest.mark.parametrize(
    ("options", "count", "set_aside"),
    [
        ({"device": "cpu"}, 3 + 16, {"num_cpus": 1, "num_gpus": 0, "memory": 5 * GIB // 2}),
        ({"device": "cpu", "cpus": 5, "workers": 2}, 2, {"num_cpus": 5, "num_gpus": 0, "memory": 5 * GIB // 2}),
        ({"memory": 4.0, "gpus": 0}, 2 + 16, {"num_cpus": 1, "num_gpus": 0, "memory": 4 * GIB}),
        ({}, 2, {"num_cpus": 1, "num_gpus": 1, "memory": 2 * GIB}),
        ({"gpus": 0.5}, 4, {"num_cpus": 1, "num_gpus": 0.5, "memory": 2 * GIB}),
    ],
)
def test_what_a_run_needs_is_set_aside_on_the_nodes(
    options: dict[str, Any], count: int, set_aside: dict[str, float], ray: FakeRay, folder: Path
) -> None:
    """A run takes 0.5 GiB for its process and 1.5 for libraries of a GPU; every node has looked around before."""
    needed = [("alibi", 1 * GIB), ("rope", 2 * GIB), ("none", 1 * GIB)]
    with RayCrew(address=HEAD, **options).assembled(needed, folder / "runs") as workers:
        assert workers.count == count
    assert ray.log[1:] == [
        set_aside | {"max_retries": 0},
        {"num_cpus": 0, "max_retries": 1},
        ("a", False),
        ("b", False),
        "shutdown",
    ]
    assert not list((folder / "runs").glob(f"{MARK}"))


def test_nodes_that_cannot_work_together_are_refused_and_left(ray: FakeRay, folder: Path, monkeypatch) -> None:
    crew, needed = RayCrew(address=HEAD, device="cpu"), [("alibi", 1.0)]
    monkeypatch.setattr("poscli.cluster.cluster.LOCK_SECONDS", 0.01)
    with FileLock(folder / f"{MARK}.lock"), pytest.raises(LockedError, match=r"another sweep looks .*; try again"):
        crew.assembled(needed, folder).__enter__()

    def fails(_: object) -> None:
        raise RayError("a traceback\nModuleNotFoundError: poscli")

    monkeypatch.setattr(ray, "get", fails)
    with pytest.raises(UsageError, match=r"cannot run poscli \(ModuleNotFoundError: poscli\); install poscli\[ray\]"):
        crew.assembled(needed, folder).__enter__()
    monkeypatch.setattr(ray, "get", lambda calls: [call() | {"torch": "0"} for call in calls])
    with pytest.raises(UsageError, match=r"\(10\.0\.0\.1\) has torch 0"):
        crew.assembled(needed, folder).__enter__()
    assert ray.log.count("shutdown") == 3
    assert not (folder / MARK).exists()


def test_a_job_has_the_outcome_of_its_process_or_none_if_that_has_ended(ray: FakeRay, folder: Path) -> None:
    job = Job(config=RunConfig(encoding="none"), runs=Path("runs"))
    made = Cluster(HEAD, 3)
    made.allot(0, 0, None)
    answers = [made.submit(job) for _ in range(4)]
    sent, home, cpus, variables = ray.log[-1]
    assert variables["POSCLI_CACHE"] == os.environ["POSCLI_CACHE"]
    assert all(name.startswith("POSCLI_") for name in variables)
    assert (Job.model_validate_json(sent).runs, Path(home), cpus) == (folder / "runs", folder, 3)
    ray.jobs[0].set_result(Outcome(folders=(folder / "runs" / "x",)).model_dump_json())
    assert answers[0].result(0).folders == (Path("runs/x"),)
    ray.jobs[1].set_exception(RayError("  no node\nand more"))
    ray.jobs[2].set_exception(RayError())
    made.stop()  # the last one alone is running
    assert ray.log[-1] is False
    for answer, cause in zip(answers[1:], ("no node", "RayError", "it was cancelled"), strict=True):
        with pytest.raises(WorkerDied, match=rf"^its worker on the cluster has ended \({cause}\)$"):
            answer.result(0)


def test_as_many_runs_at_a_time_as_fit_the_nodes(ray: FakeRay) -> None:
    small, large = Node("a", "10.0.0.1", 4, 0, 8 * GIB), Node("b", "10.0.0.2", 16, 2, 64 * GIB)
    assert [PerRun(cpus=2).fits(node) for node in (small, large)] == [2, 8]
    assert [PerRun(cpus=2, gpus=0.5).fits(node) for node in (small, large)] == [0, 4]
    assert [PerRun(1, gpus).fits(Node("c", "10.0.0.3", 64, 1, 0)) for gpus in (0.1, 0.2, 0.05)] == [10, 5, 20]
    assert [PerRun(cpus=2, memory=6 * GIB).fits(node) for node in (small, large)] == [1, 8]
    made = Cluster(HEAD, 2)
    made.allot(6 * GIB, 0, None)
    assert made.count == 9
    made.allot(6 * GIB, 0, 3)
    assert made.count == 3


@pytest.mark.parametrize(
    ("memory", "gpus", "cpus", "words"),
    [
        (65 * GIB, 0, 2, r"a run needs about 65\.0 GiB, and no machine of the cluster offers more than 64\.0 GiB"),
        (0, 3, 2, "--gpus 3: no machine of the cluster has more than 2 GPUs"),
        (0, 0, 17, "--cpus 17: no machine of the cluster has more than 16 CPUs"),
        (8 * GIB, 1, 2, r"no machine of the cluster has 2 CPUs, 1 GPUs and 8\.0 GiB at once; lower"),
    ],
)
def test_what_no_node_has_is_named(memory: float, gpus: float, cpus: int, words: str, ray: FakeRay) -> None:
    ray.told[0]["Resources"] = {"CPU": 16.0, "memory": 4 * GIB}
    ray.told[1]["Resources"] = {"CPU": 1.0, "GPU": 2.0, "memory": 64 * GIB}
    made = Cluster(HEAD, cpus)
    with pytest.raises(UsageError, match=words):
        made.allot(memory, gpus, None)


def test_a_node_must_see_the_folder_and_its_locks(tmp_path, monkeypatch) -> None:
    assert look_around(str(tmp_path), "token")["wrong"] == "unseen"
    (tmp_path / MARK).write_text("another")
    assert look_around(str(tmp_path), "token")["wrong"] == "unseen"
    (tmp_path / MARK).write_text("token")
    assert look_around(str(tmp_path), "token")["wrong"] == "unlocked"
    with FileLock(tmp_path / f"{MARK}.lock"):
        seen = look_around(str(tmp_path), "token")
    assert seen["wrong"] == ""
    refuse_apart("10.0.0.2", seen, tmp_path)
    for wrong, words in (("unseen", "does not see"), ("unlocked", "do not hold between this machine and")):
        with pytest.raises(UsageError, match=words):
            refuse_apart("10.0.0.2", seen | {"wrong": wrong}, tmp_path)
    for name, value in versions().items():
        with pytest.raises(
            UsageError, match=rf"\(10\.0\.0\.2\) has {name} 0, this machine {re.escape(value)}: install"
        ):
            refuse_apart("10.0.0.2", seen | {name: "0"}, tmp_path)

    def refused(path: str) -> None:
        raise NotImplementedError

    monkeypatch.setattr(on_node, "FileLock", refused)
    assert look_around(str(tmp_path), "token")["wrong"] == "unlocked"


def test_a_node_without_the_driver_s_folder_executes_jobs_all_the_same(here, monkeypatch) -> None:
    monkeypatch.setenv("POSCLI_QUIET", "1")
    monkeypatch.setenv("POSCLI_TRITON", "1")
    performed = SimpleNamespace(model_dump_json=lambda: "an outcome")
    monkeypatch.setattr("poscli.sweep.job.perform", lambda *_: performed)
    job = Job(config=RunConfig(encoding="none"), runs=Path("runs")).model_dump_json(by_alias=True)
    (here / "here").mkdir()
    for home, folder in (("nowhere", here), ("here", here / "here")):
        assert execute(job, str(here / home), 1, {"POSCLI_TRITON": "0"}) == "an outcome"
        assert os.environ["POSCLI_TRITON"] == "0"
        assert Path.cwd() == folder
