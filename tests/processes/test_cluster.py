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
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runner import SUITE, assert_refused, assert_same_runs, cli, environment
from filelock import FileLock

from poscli import cluster as on_node
from poscli.cluster import MARK, execute, look_around, refuse_apart, versions
from poscli.cluster.cluster import Cluster, Node, PerRun
from poscli.cluster.commands import OnRay
from poscli.config.run import RunConfig
from poscli.sweep.job import Job
from poscli.system.device import usable_cores
from poscli.system.errors import UsageError

GIB = 2.0**30


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(SUITE)
    return tmp_path


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
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert_refused(("run", "tiny.toml", "--ray", f"localhost:{port}"), 4, ("nothing answers", "ray start --head"))


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


def cluster(*nodes: Node) -> Cluster:
    """A cluster of these nodes to which nothing is connected."""
    made = object.__new__(Cluster)
    made.nodes, made._cpus = list(nodes), 2
    made._ray = type("Ray", (), {"remote": staticmethod(lambda **_: lambda function: function)})()
    return made


def test_nodes_that_have_left_have_no_places(monkeypatch) -> None:
    told = [
        {"NodeID": name, "NodeManagerAddress": address, "Alive": alive, "Resources": {"CPU": 4.0, "memory": 8 * GIB}}
        for name, address, alive in (("a", "10.0.0.1", True), ("b", "10.0.0.2", False))
    ]
    ray = SimpleNamespace(nodes=lambda: told)
    monkeypatch.setattr("poscli.cluster.cluster.ray_at", lambda address: ray)
    monkeypatch.setattr(Cluster, "_connect", lambda self, address: None)
    assert Cluster("10.0.0.1:6379").nodes == [Node("a", "10.0.0.1", 4, 0, 8 * GIB)]


def test_as_many_runs_at_a_time_as_fit_the_nodes() -> None:
    small, large = Node("a", "10.0.0.1", 4, 0, 8 * GIB), Node("b", "10.0.0.2", 16, 2, 64 * GIB)
    assert [PerRun(cpus=2).fits(node) for node in (small, large)] == [2, 8]
    assert [PerRun(cpus=2, gpus=0.5).fits(node) for node in (small, large)] == [0, 4]
    assert [PerRun(cpus=2, memory=6 * GIB).fits(node) for node in (small, large)] == [1, 8]
    made = cluster(small, large)
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
def test_what_no_node_has_is_named(memory: float, gpus: float, cpus: int, words: str) -> None:
    made = cluster(Node("a", "10.0.0.1", 16, 0, 4 * GIB), Node("b", "10.0.0.2", 1, 2, 64 * GIB))
    made._cpus = cpus
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


def test_a_node_without_the_driver_s_folder_executes_jobs_all_the_same(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSCLI_QUIET", "1")
    performed = SimpleNamespace(model_dump_json=lambda: "an outcome")
    monkeypatch.setattr("poscli.sweep.job.perform", lambda *_: performed)
    job = Job(config=RunConfig(encoding="none"), runs=Path("runs")).model_dump_json(by_alias=True)
    (tmp_path / "here").mkdir()
    for home, folder in (("nowhere", tmp_path), ("here", tmp_path / "here")):
        assert execute(job, str(tmp_path / home), 1) == "an outcome"
        assert Path.cwd() == folder
