"""A run as a folder for others: read back without the environment's package, and taken by the hub's own client."""

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steadyq as sq
from steadyq import presets
from steadyq.agent import load
from steadyq.cli import main
from steadyq.deploy.share import share
from steadyq.run.loop import train

SHORT = {
    "steps": 150, "ensemble.members": 2, "replay.warmup": 64, "replay.batch": 8, "record.every": 50,
    "record.tensorboard": False, "monitor.every": 50, "evaluation.episodes": 2, "evaluation.random_episodes": 1,
    "compute.threads": 1,
}  # fmt: skip

ELSEWHERE = """
import sys
for missing in ("minatar", "ale_py", "envpool"):
    sys.modules[missing] = None
import numpy as np
import steadyq as sq
agent = sq.load(sys.argv[1])
np.save(sys.argv[3], agent.act(np.load(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = presets.recipe_for("steady", "MinAtar/Breakout").override(SHORT)
    return train(recipe, run=tmp_path_factory.mktemp("runs") / "breakout").path


def states(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (count, 4, 10, 10), dtype=np.uint8)


def test_a_shared_agent_acts_the_same_without_the_game(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["share", str(run), "--to", str(tmp_path / "shared")])
    assert ended.value.code == 0
    np.save(tmp_path / "states.npy", states(1000))
    places = [str(tmp_path / name) for name in ("shared", "states.npy", "actions.npy")]
    subprocess.run([sys.executable, "-c", ELSEWHERE, *places], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "actions.npy"), load(run).act(states(1000)))


def test_the_folder_has_what_a_reader_wants_and_nothing_of_training(run: Path, tmp_path: Path) -> None:
    assert share(run, tmp_path / "shared") == []
    files = {str(file.relative_to(tmp_path / "shared")) for file in (tmp_path / "shared").rglob("*") if file.is_file()}
    assert {"README.md", "recipe.toml", "result.json", "environment.json", "curve.png", "game.mp4"} <= files
    assert {name for name in files if name.endswith(".safetensors")} == {"checkpoints/0000000150/online.safetensors"}
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]
    text = (tmp_path / "shared" / "README.md").read_text()
    result = json.loads((run / "result.json").read_text())
    assert f"| mean return | {result['mean_return']:.2f}" in text
    assert f"{result['updates']:,} updates" in text
    for command in (["report", str(tmp_path / "shared"), "--out", str(tmp_path / "page.html")], ["evaluate"]):
        words = [*command, str(tmp_path / "shared"), "--episodes", "1"] if command == ["evaluate"] else command
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0, words


def test_the_hubs_client_reads_the_card(run: Path, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    share(run, tmp_path / "shared", film=False)
    card = hub.ModelCard.load(tmp_path / "shared" / "README.md")
    assert card.data.library_name == "steadyq"
    assert card.data.eval_results[0].metric_type == "mean_reward"
    assert card.data.eval_results[0].dataset_name == "MinAtar/Breakout"


def test_what_cannot_be_shared_is_refused_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(sq.UserError, match="there is something already"):
        share(run, tmp_path / "full")
    with pytest.raises(sq.UserError, match=r"there is no folder .*; a name on the hub needs --hub"):
        share(run, tmp_path / "no" / "folder")
    half = tmp_path / "half"
    half.mkdir()
    (half / "recipe.toml").write_text((run / "recipe.toml").read_text())
    with pytest.raises(sq.UserError, match="is not finished"):
        share(half, tmp_path / "shared")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "half"]


def test_a_changed_weight_is_noticed(run: Path, tmp_path: Path) -> None:
    share(run, tmp_path / "shared", film=False)
    weights = tmp_path / "shared" / "checkpoints" / "0000000150" / "online.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(sq.UserError, match="damaged"):
        load(tmp_path / "shared")


def test_a_network_of_its_authors_own_is_never_imported_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from torch import nn\ndef build(shape, outputs):\n    return nn.Sequential(nn.Linear(shape[0], outputs))\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_network.py").write_text(text)
    options = SHORT | {"network.kind": "own", "network.factory": "my_network:build"}
    with monkeypatch.context() as there:
        there.syspath_prepend(str(tmp_path / "mine"))
        run = sq.train("dqn", env="CartPole-v1", run=tmp_path / "run", quiet=True, options=options).path
        share(run, tmp_path / "shared", film=False)
        load(tmp_path / "shared")
    sys.modules.pop("my_network", None)
    assert "imports the network my_network:build" in (tmp_path / "shared" / "README.md").read_text()
    (tmp_path / "shared" / "my_network.py").write_text("raise SystemExit('code of the folder ran')\n")
    monkeypatch.chdir(tmp_path / "shared")
    monkeypatch.syspath_prepend(".")
    with pytest.raises(sq.UserError, match="nothing in there is run"):
        load(".")
    (tmp_path / "shared" / "environment.json").unlink()  # as if it were a run of one's own
    with pytest.raises(sq.UserError, match="nothing in there is run"):
        load(".")


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's own interface as an upload needs."""

    received: dict[str, bytes]

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer({"id": "somebody/agent", "sha": "0" * 40, "siblings": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            kinds = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
            self.answer({"files": kinds})
        elif "/commit/" in self.path:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.received[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            here = "http://{}:{}/somebody/agent/commit/1".format(*self.server.server_address)
            self.answer({"success": True, "commitOid": "1" * 40, "commitUrl": here, "hookOutput": ""})
        else:
            self.answer({"url": "http://{}:{}/somebody/agent".format(*self.server.server_address)})


@pytest.fixture
def hub() -> Iterator[tuple[str, dict[str, bytes]]]:
    received: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (Hub,), {"received": received}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", received
    server.shutdown()
    server.server_close()


def test_the_hubs_client_uploads_the_folder_as_it_is(
    run: Path, tmp_path: Path, hub: tuple[str, dict[str, bytes]]
) -> None:
    pytest.importorskip("huggingface_hub")
    address, received = hub
    words = ["-m", "steadyq", "share", str(run), "--to", "somebody/agent", "--hub", "--no-video"]
    surroundings = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_local", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, *words], env={**surroundings, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "/somebody/agent/commit/" in done.stdout
    assert {"README.md", "recipe.toml", "environment.json"} <= received.keys()
    (tmp_path / "back").mkdir()
    for name, content in received.items():
        (tmp_path / "back" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "back" / name).write_bytes(content)
    np.testing.assert_array_equal(load(tmp_path / "back").act(states(20)), load(run).act(states(20)))
