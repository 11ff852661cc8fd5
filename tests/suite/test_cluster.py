"""Real Ray clusters on loopback: what dies is continued elsewhere and ends equal to a local run, also through ray://.

Skips where Ray is not installed; `make test` installs it.
"""

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from waiting import until

from steadyq.errors import UserError
from steadyq.run.folder import RunFolder
from steadyq.suite import cluster as cluster_module
from steadyq.suite import launch
from steadyq.suite.plan import make_plan
from steadyq.suite.study import Study, find_study, read_study
from steadyq.suite.worker import train_once

os.environ.setdefault("RAY_raylet_start_wait_time_s", "60")  # read once, and 30 s are few on a slow machine
try:
    import ray
    from ray.cluster_utils import Cluster
except ImportError:
    ray = None

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
HELD = '''
import time
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Held(CartPoleEnv):
    """After 150 steps in a process, waits while there is a file."""
    steps = 0

    def step(self, action):
        Held.steps += 1
        while Held.steps > 150 and Path(__file__).with_name("hold").exists():
            time.sleep(0.02)
        return super().step(action)

gymnasium.register("Held-v0", Held, max_episode_steps=60)
'''
STUDY = """
games = ["CartPole-v1"]
seeds = 2
[settings]
steps = 6000
ensemble.members = 2
estimator.quantiles = 3
network.hidden = [8]
replay.warmup = 64
replay.batch = 8
replay.every = 20
replay.capacity = 400
regulation.every = 50
regulation.threshold = 1.03
monitor.every = 100
record.every = 50
record.checkpoint_every = 100
record.tensorboard = false
evaluation.episodes = 2
evaluation.random_episodes = 1
compute.device = "cpu"
"""


@pytest.fixture
def study() -> Study:
    return read_study(STUDY, "mini")


def need_ray() -> None:
    if ray is None:
        message = "Ray is not installed: pip install 'steadyq[cluster]'"
        if os.environ.get("CI") == "true" and os.environ.get("STEADYQ_TEST_CLUSTER"):
            pytest.fail(message)
        pytest.skip(message)


def started(start: Callable[[], Any]) -> Any:
    """What starts a node, called again where it fails: now and then Ray's node process dies unheard as it starts."""
    for again in (True, True, False):
        try:
            return start()
        except Exception:
            if not again:
                raise


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A cluster's head, with room for one run."""
    need_ray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # on a busy machine they would wait for everything else
        found = started(lambda: Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False}))
        yield found
        found.shutdown()


@pytest.fixture
def cluster(head: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The cluster that `--on ray` joins."""
    monkeypatch.setenv("RAY_ADDRESS", head.address)
    yield head
    ray.shutdown()


@pytest.fixture
def client_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Ray client server, as a user starts one; it asks for a token."""
    need_ray()
    for name, value in (("AUTH_MODE", "token"), ("AUTH_TOKEN", uuid.uuid4().hex), ("worker_niceness", "0")):
        monkeypatch.setenv(f"RAY_{name}", value)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    folder = tempfile.mkdtemp(prefix="ray-")  # the path of a socket in it must be short
    sizes = f"--num-cpus=1 --object-store-memory={80 * 2**20} --include-dashboard=false --temp-dir={folder}"
    ray_command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block"]
    words = Path(folder) / "words.txt"

    def start() -> tuple[subprocess.Popen[bytes], int]:
        ports = [free_port() for _ in range(2)]
        where = f"--port={ports[0]} --ray-client-server-port={ports[1]}"
        with words.open("w") as file:
            head = subprocess.Popen([*ray_command, *sizes.split(), *where.split()], stdout=file, stderr=file)
        until(lambda: head.poll() is not None or "--block" in words.read_text())
        if head.poll() is not None:
            raise RuntimeError(words.read_text())
        return head, ports[1]

    try:
        head, port = started(start)
        yield f"ray://127.0.0.1:{port}"
        head.terminate()
        head.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def no_cluster(monkeypatch: pytest.MonkeyPatch, remembered: str | None = None) -> None:
    """As if no cluster ran on this machine, whatever the other tests have started."""
    services = ray._private.services
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", functools.cache(dict))
    monkeypatch.setattr(services, "find_bootstrap_address", lambda folder: remembered)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def sweep(study: Study, out: Path) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=200)
    plan = make_plan(study, out, here=False)
    launcher = launch.launcher_for("ray", plan, None, 0.0, retries=3)
    code = launch.launch(plan, launcher, console)
    return code, f"{launcher.words}\n{launcher.note}\n{console.file.getvalue()}"  # type: ignore[attr-defined]


def trainer(folder: Path) -> int | None:
    """The process that trains in a folder: the one with its lock open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == folder / "lock":
                return int(link.parts[2])
        except OSError:
            continue
    return None


def trainers(folders: list[Path]) -> list[int]:
    return [process for folder in folders if (process := trainer(folder)) is not None]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in RunFolder(folder).metrics()]


def resumed(folder: Path) -> list[int]:
    return [event["step"] for event in RunFolder(folder).events() if event["event"] == "resume"]


def listening(of: set[int]) -> set[str]:
    """Addresses on which these processes listen, by their sockets in /proc."""
    sockets = set()
    for process in of:
        for link in Path(f"/proc/{process}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(link))
    found = set()
    for table, size in (("tcp", 8), ("tcp6", 32)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                packed = b"".join(bytes.fromhex(words[1][i : i + 8])[::-1] for i in range(0, size, 8))
                found.add(socket.inet_ntop(socket.AF_INET if size == 8 else socket.AF_INET6, packed))
    return found


def descendants(process: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parts[2])] = int(stat.read_text().rpartition(")")[2].split()[1])
    found, more = {process}, True
    while more:
        new = {child for child, parent in parents.items() if parent in found} - found
        found, more = found | new, bool(new)
    return found


@pytest.mark.hostile
def test_a_cluster_started_here_keeps_to_this_machine_and_asks_for_a_token(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first test here: it would join the cluster of the others."""
    need_ray()
    import grpc
    from ray._private import services
    from ray.core.generated import gcs_service_pb2 as messages

    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    if services.find_gcs_addresses():
        pytest.skip("somebody's Ray cluster runs on this machine, which would be joined")
    (tmp_path / "random.py").write_text("raise SystemExit('imported from the working folder')")
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    plan = make_plan(study, tmp_path / "s", here=False)
    launcher = launch.launcher_for("ray", plan, None, 0.0, retries=1)
    try:
        assert "on this machine alone, with a token of its own" in launcher.note
        assert listening(descendants(os.getpid())) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        server = grpc.insecure_channel(ray.get_runtime_context().gcs_address)
        ask = server.unary_unary(
            "/ray.rpc.JobInfoGcsService/GetNextJobID",
            request_serializer=messages.GetNextJobIDRequest.SerializeToString,
            response_deserializer=messages.GetNextJobIDReply.FromString,
        )
        for token in ([], [("authorization", "Bearer guessed")]):  # what a second driver asks first
            with pytest.raises(grpc.RpcError) as refusal:
                ask(messages.GetNextJobIDRequest(), metadata=token)
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
        mine = [("authorization", f"Bearer {os.environ['RAY_AUTH_TOKEN']}")]
        assert ask(messages.GetNextJobIDRequest(), metadata=mine).job_id
        paths = ray.get(ray.remote(lambda: sys.path).remote())
        assert str(tmp_path) not in paths
    finally:
        launcher.close()
    changed = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
    assert not changed & {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_node_change_nothing_in_the_end(
    cluster: Any, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = started(lambda: cluster.add_node(**NODE))
    cluster.wait_for_nodes()
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "hold").touch()
    monkeypatch.syspath_prepend(tmp_path)
    out, study = tmp_path / "cluster", study.changed(games=["held:Held-v0"], settings={"steps": 400})
    folders = [out / run.name for run in study.runs()]
    problems: list[BaseException] = []
    ended = threading.Event()

    def kill() -> None:
        try:
            until(lambda: all(RunFolder(folder).checkpoints() for folder in folders) or ended.is_set())
            cluster.remove_node(second, allow_graceful=False)
            until(lambda: len(trainers(folders)) == 1 or ended.is_set())  # the head's own; the other waits for its CPU
            os.kill(trainers(folders)[0], signal.SIGKILL)
        except BaseException as error:
            problems.append(error)
        (tmp_path / "hold").unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    code, said = sweep(study, out)
    ended.set()
    killer.join()
    assert not problems, problems
    assert code == 0, said
    assert "cluster of 2 nodes, 2 runs at a time" in said
    assert "asks for no token, so that whoever reaches its ports can run code" in said
    assert "2 finished of 2 runs" in said
    assert all(resumed(folder) for folder in folders)
    assert all(step >= 100 for folder in folders for step in resumed(folder))

    for entry in make_plan(study, tmp_path / "local").entries:
        assert train_once(entry.run.recipe, entry.folder.path) == ("finished", "")
        there, here = out / entry.run.name, entry.folder.path
        assert rows(there) == rows(here)
        mine, theirs = (load_file(RunFolder(f).checkpoints()[-1] / "online.safetensors") for f in (there, here))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        results = [json.loads((folder / "result.json").read_text()) for folder in (there, here)]
        assert results[0]["returns"] == results[1]["returns"]


@pytest.mark.slow
def test_a_stop_saves_every_run_and_the_next_sweep_continues(cluster: Any, study: Study, tmp_path: Path) -> None:
    out = tmp_path / "cluster"
    folders = [out / run.name for run in study.runs()]

    ended = threading.Event()

    def stop() -> None:
        until(lambda: RunFolder(folders[0]).checkpoints() or ended.is_set())
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    code, said = sweep(study, out)
    ended.set()
    stopper.join()
    assert code == 130, said
    assert "the same command continues where it was" in said
    assert not (folders[0] / "result.json").exists()
    assert RunFolder(folders[0]).checkpoints()
    code, said = sweep(study.changed(seeds=1), out)
    assert code == 0, said
    assert resumed(folders[0])


@pytest.mark.slow
def test_a_sweep_through_a_client_server_finishes_runs_and_is_stopped_as_here(
    client_server: str, tmp_path: Path
) -> None:
    (tmp_path / "mini.toml").write_text(STUDY)
    command = [sys.executable, "-m", "steadyq", "sweep", "mini.toml", "--gpus-per-run", "0"]
    command += ["--on", client_server, "--out", "remote"]
    first, second = find_study(str(tmp_path / "mini.toml")).runs()
    done, stopped = (RunFolder(tmp_path / "remote" / run.name) for run in (first, second))
    with open(tmp_path / "words.txt", "w") as words:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=words, stderr=words)
    until(lambda: process.poll() is not None or bool(stopped.checkpoints()))  # one CPU: the first has finished
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130, (tmp_path / "words.txt").read_text()
    assert "cluster of 1 node, 1 run at a time" in (tmp_path / "words.txt").read_text()
    assert f"finished  {first.name}" in (tmp_path / "words.txt").read_text()
    assert stopped.result is None
    assert train_once(first.recipe.override({"compute.threads": 1}), tmp_path / "here") == ("finished", "")
    assert rows(done.path) == rows(tmp_path / "here")


@pytest.mark.hostile
def test_no_cluster_is_started_without_a_token(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_ray()

    no_cluster(monkeypatch)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("something is started"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    plan = make_plan(study, tmp_path / "s", here=False)
    with pytest.raises(UserError, match=r"starts no cluster that asks for a token; unset RAY_AUTH_MODE"):
        launch.launcher_for("ray", plan, None, None, retries=1)
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


def test_no_client_server_is_one_line(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_ray()

    def silence(**arguments: Any) -> None:
        raise ConnectionError("ray client connection timeout")

    monkeypatch.setattr(ray, "init", silence)
    plan = make_plan(study, tmp_path / "s", here=False)
    with pytest.raises(UserError, match=r"no Ray client server answers .* RAY_AUTH_MODE=token"):
        launch.launcher_for("ray://127.0.0.1:1", plan, None, None, retries=1)


def test_a_node_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    need_ray()

    def timed_out(**_: Any) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", timed_out)
    with pytest.raises(UserError, match=r"^--on ray: The current node timed out during startup\.$"):
        cluster_module.RayCluster("ray", 1, None, 0)


def test_a_cluster_that_died_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray keeps the address of the last one in a file, which nobody takes away when its machine loses power."""
    need_ray()
    dead = f"127.0.0.1:{free_port()}"
    asked = []
    monkeypatch.setattr(ray, "init", lambda address, **_: asked.append(address))
    monkeypatch.setenv("RAY_ADDRESS", dead)
    with pytest.raises(UserError, match=rf"^--on ray: no Ray cluster answers at {dead}: Connection refused$"):
        cluster_module.RayCluster("ray", 1, None, 0)
    assert not asked
    no_cluster(monkeypatch, remembered=dead)
    with contextlib.ExitStack() as undo:
        assert "started a Ray cluster" in cluster_module._join(ray, "ray", undo)
    assert asked == ["local"]


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_node_that_dies_as_it_starts_is_started_once_more(failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    need_ray()
    no_cluster(monkeypatch)
    asked = []

    def init(address: str, **_: Any) -> None:
        asked.append(address)
        if len(asked) <= failures:
            raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    with contextlib.ExitStack() as undo:
        if failures < 2:
            assert "on this machine alone" in cluster_module._join(ray, "ray", undo)
        else:
            with pytest.raises(UserError, match=r"^--on ray: The current node timed out during startup\.$"):
                cluster_module._join(ray, "ray", undo)
    assert asked == ["local"] * min(failures + 1, 2)


def test_a_share_of_a_gpu_that_no_node_has_is_refused(cluster: Any, study: Study, tmp_path: Path) -> None:
    plan = make_plan(study, tmp_path / "s", here=False)
    with pytest.raises(UserError, match="no node of the Ray cluster has a GPU"):
        launch.launcher_for("ray", plan, None, 0.5, retries=1)
    with pytest.raises(UserError, match="--jobs is for this machine"):
        launch.launcher_for("ray", plan, 2, None, retries=1)
    wanting = make_plan(study.changed(settings={"compute.device": "cuda"}), tmp_path / "s", here=False)
    with pytest.raises(UserError, match=r"compute.device cuda, .* need a GPU: no node of the Ray cluster has one"):
        launch.launcher_for("ray", wanting, None, None, retries=1)


@pytest.mark.skipif(ray is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named(study: Study, tmp_path: Path) -> None:
    plan = make_plan(study, tmp_path / "s", here=False)
    with pytest.raises(UserError, match=r"pip install 'steadyq\[cluster\]'"):
        launch.launcher_for("ray", plan, None, None, retries=1)


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_a_client_server_that_is_slow_to_start_is_asked_again(failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    need_ray()

    class Server:
        asked = 0

        def is_initialized(self) -> bool:
            return False

        def init(self, **options: Any) -> None:
            self.asked += 1
            if self.asked <= failures:
                raise ConnectionAbortedError("Initialization failure from server:\nTraceback ...\nOSError: too busy")

    server = Server()
    monkeypatch.setattr(cluster_module.time, "sleep", lambda seconds: None)
    if failures < 3:
        cluster_module._join(server, "ray://head:1", contextlib.ExitStack())
    else:
        with pytest.raises(UserError, match=r"^--on ray://head:1: OSError: too busy$"):
            cluster_module._join(server, "ray://head:1", contextlib.ExitStack())
    assert server.asked == min(failures + 1, 3)
