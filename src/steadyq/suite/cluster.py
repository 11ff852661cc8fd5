"""Runs on a Ray cluster: Ray places them by CPUs and GPU shares, and starts a run again elsewhere when its node dies.

Who reaches a Ray cluster's ports runs code as the one who started it, unless it asks for a token. One that is started
here does, with a token of its own, and listens on this machine alone; joining one that does not is said.

A run's folder lies on storage that every node shares under the same path, so a run that is started again continues from
its last checkpoint, and the sweep follows all of them by reading their folders.
"""

import contextlib
import importlib
import os
import secrets
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from steadyq.errors import UserError
from steadyq.fields import within
from steadyq.recipe import Recipe
from steadyq.run.files import NO_VERIFY
from steadyq.run.progress import plural
from steadyq.run.provenance import command_line
from steadyq.suite.worker import Ending, search_path, train_once

LOCK_SECONDS, LOCK_TRIES = 3.0, 40
"""How long a run waits for its folder: the process of a node that died may hold the lock a little longer."""

STARTED = "started a Ray cluster for this sweep: on this machine alone, with a token of its own and no dashboard"
OPEN = (
    "note: this Ray cluster asks for no token, so that whoever reaches its ports can run code as the one who started "
    "it; start it with RAY_AUTH_MODE=token"
)


class RayCluster:
    """Every run is a Ray task; Ray queues what has no room yet."""

    abreast = 1

    def __init__(self, on: str, threads: int, gpus_per_run: float | None, retries: int) -> None:
        ray = _ray()
        within("--gpus-per-run", gpus_per_run or 0.0, 0, 1)
        self._undo = contextlib.ExitStack()
        self.note = _join(ray, on, self._undo)
        self.ray, self.retries, self.threads = ray, retries, threads
        have = ray.cluster_resources()
        gpus = have.get("GPU", 0.0)
        self.gpus = (1.0 if gpus else 0.0) if gpus_per_run is None else gpus_per_run
        self.on_gpu = self.gpus > 0
        self.tasks: dict[Any, Any] = {}
        if self.gpus and not gpus:
            self.close()
            raise UserError("--gpus-per-run: no node of the Ray cluster has a GPU")
        slots = have.get("CPU", 1.0) / threads
        parallel = max(1, int(min(slots, gpus / self.gpus) if self.gpus else slots))
        self.learning = min(parallel, int(gpus)) if self.gpus else parallel
        nodes = sum(node["Alive"] for node in ray.nodes())
        share = f", {self.gpus:g} GPU each" if self.gpus else ""
        self.words = f"Ray cluster of {plural(nodes, 'node')}, {plural(parallel, 'run')} at a time{share}"

    def open(self) -> str:
        """Nothing is left to do."""
        return ""

    def room(self) -> bool:
        """Ray queues what it cannot place yet."""
        return True

    def start(self, entries: Sequence[Any]) -> None:
        """Submit runs; if a run's worker or node dies, Ray starts it again, and it goes on from its last checkpoint.

        A process trains one run only: its GPU memory is then free again, and the settings it made die with it.
        """
        variables = {"OMP_NUM_THREADS": str(self.threads), "STEADYQ_COMMAND": command_line() or ""}
        variables |= {name: os.environ[name] for name in ("STEADYQ_COMMIT", NO_VERIFY) if os.environ.get(name)}
        task = self.ray.remote(max_calls=1)(train_on_node).options(
            name=entries[0].run.name,
            num_cpus=self.threads,
            num_gpus=self.gpus,
            max_retries=self.retries,
            runtime_env={"env_vars": variables},
        )
        for entry in entries:
            recipe = entry.run.recipe
            reference = task.remote(recipe.to_toml(), str(entry.folder.path.absolute()), search_path(recipe))
            self.tasks[reference] = entry

    def poll(self) -> list[tuple[Any, Ending, str]]:
        """Collect tasks that have ended."""
        if not self.tasks:
            return []
        ready, _ = self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=0)
        return [(self.tasks.pop(reference), *self._ending(reference)) for reference in ready]

    def news(self) -> str:
        """Nothing: Ray places runs."""
        return ""

    def stop(self) -> None:
        """Cancel: a task in training takes it as a Ctrl-C and saves its state, one that waits is dropped."""
        for reference in self.tasks:
            self.ray.cancel(reference, force=False, recursive=False)

    def close(self) -> None:
        """Leave the cluster; what still runs there is ended."""
        for reference in self.tasks:
            self.ray.cancel(reference, force=True, recursive=False)
        self.tasks = {}
        self.ray.shutdown()
        self._undo.close()

    def _ending(self, reference: Any) -> tuple[Ending, str]:
        try:
            ending, words = self.ray.get(reference)
        except self.ray.exceptions.TaskCancelledError:
            return "stopped", "cancelled before it began"
        except self.ray.exceptions.RayError as error:
            return "crashed", str(error).strip().splitlines()[-1]
        return ending, words


def train_on_node(recipe: str, folder: str, search: list[str]) -> tuple[Ending, str]:
    """Train one run on whichever node this is; its folder must be on storage shared with the sweep."""
    path = Path(folder)
    sys.path += search
    if not path.parent.is_dir():
        return "refused", f"{path.parent} is not on node {socket.gethostname()}: --out must be on storage nodes share"
    for _ in range(LOCK_TRIES):
        ending, words = train_once(Recipe.from_toml(recipe), path)
        if ending != "busy":
            break
        time.sleep(LOCK_SECONDS)
    return ending, words


def _join(ray: Any, on: str, undo: contextlib.ExitStack) -> str:
    """Become a driver of the cluster: on one of its machines, or from outside through its client server.

    Without a cluster one is started here. Returns what is to be said about it.
    """
    if ray.is_initialized():
        return ""
    remote = on.startswith("ray://")
    quiet = {"log_to_driver": False, "configure_logging": False}
    try:
        # Ray warns at length of what the error below says in a line, and its workers would import from where we are.
        with warnings.catch_warnings(action="ignore"), _at(Path(__file__).parents[2]):
            address = on if remote else _running(ray)
            if address is None:
                _keep_to_this_machine(ray, undo)
                _start(ray, quiet)
                return STARTED
            for again in (True, True, False):
                try:
                    ray.init(address=address, **quiet)
                    break
                except ConnectionAbortedError:  # the server starts a process for each client: not always in time
                    if not again:
                        raise
                    time.sleep(2)
        return "" if _asks_for_a_token() else OPEN
    except UserError:
        raise
    except Exception as error:  # a node that does not start in time raises just that
        undo.close()
        lines = str(error).strip().splitlines() or [type(error).__name__]
        why = lines[-1 if isinstance(error, ConnectionAbortedError) else 0]  # a traceback ends in what happened
        if remote and "timeout" in why:
            # A server that wants a token stays silent to those without, and Ray's client sends one only if told to.
            why = "no Ray client server answers there; where the cluster has a token, set RAY_AUTH_MODE=token here too"
        raise UserError(f"--on {on}: {why}") from None


def _running(ray: Any) -> str | None:
    """The address of the cluster to join: RAY_ADDRESS, or one of this machine; None where there is none.

    It is asked for an answer first. For one that died without a word Ray would wait for minutes, and it remembers the
    last of this machine.
    """
    services = ray._private.services
    try:
        address: str = services.get_ray_address_from_environment("auto", None)
    except ConnectionError:
        return None
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdigit():
        return None if address == "local" else address
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        here = host in ("127.0.0.1", "localhost", "[::1]", services.get_node_ip_address())
        if here and not os.environ.get("RAY_ADDRESS"):
            return None
        raise ConnectionError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None
    return address


def _start(ray: Any, options: dict[str, Any]) -> None:
    """Start a cluster here; once more where that fails, as now and then a node's process dies before its first word."""
    for again in (True, False):
        try:
            ray.init(address="local", include_dashboard=False, **options)
            return
        except Exception:
            ray.shutdown()
            if not again:
                raise


def _keep_to_this_machine(ray: Any, undo: contextlib.ExitStack) -> None:
    """Set Ray up so that a cluster started here listens on loopback and asks for a token that only we know."""
    ray_constants, raylet = ray._private.ray_constants, _raylet()
    mine = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # what Ray does there, to stay clear of firewalls, is loopback
    if os.environ.get("RAY_AUTH_MODE", "token") == "token":
        mine |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in mine}
    enabled = ray_constants.ENABLE_RAY_CLUSTER

    def back() -> None:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        raylet.Config.initialize("")

    undo.callback(back)
    os.environ.update(mine)
    ray_constants.ENABLE_RAY_CLUSTER = False
    raylet.Config.initialize("")  # Ray has read the environment when it was imported
    if not _asks_for_a_token():
        raise UserError(f"--on ray: Ray {ray.__version__} starts no cluster that asks for a token; unset RAY_AUTH_MODE")


def _asks_for_a_token() -> bool:
    raylet = _raylet()
    return bool(raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN)


def _raylet() -> Any:
    return importlib.import_module("ray._raylet")


@contextlib.contextmanager
def _at(folder: Path) -> Iterator[None]:
    """Work in another folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a library does not report home on its user's behalf
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a task without a GPU sees none
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "60")  # 30 s are few on a machine that has much to do
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs Ray: pip install 'steadyq[cluster]'") from None
    return ray
