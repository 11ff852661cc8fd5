"""Folders from a stranger: nothing in them runs in a browser, and what is of the wrong kind is named in one line."""

import copy
import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser

from steadyq import cli
from steadyq.errors import UserError
from steadyq.report.html import write_report
from steadyq.report.markup import Markup, joined, tag, text
from steadyq.report.sweep import write_sweep_report
from steadyq.run.files import NO_VERIFY
from steadyq.suite.study import find_study, run_name

pytestmark = pytest.mark.hostile

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
WRONG = (SCRIPT, None, {"a": SCRIPT}, float("inf"), 10**400)
HACKED = "typeof window.hacked"


@pytest.fixture(autouse=True)
def sealed_by_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests guard against damage, not against who can write them anew: what follows does not rest on them."""
    monkeypatch.setenv(NO_VERIFY, "1")


@pytest.fixture(scope="module")
def short(cartpole: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run with the first rows of its logs."""
    run = shutil.copytree(cartpole["rewarded"][0], tmp_path_factory.mktemp("hostile") / "run")
    shutil.rmtree(run / "checkpoints")
    for log in run.glob("*.jsonl"):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        kinds = {row.get("event"): row for row in reversed(rows)}
        kept = [row for row in rows if row is kinds.get(row.get("event"))] if "events" in log.name else rows[-3:]
        log.write_text("".join(json.dumps(row) + "\n" for row in kept))
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "diverged", "step": 900, "message": "not finite"}) + "\n")
    return run


@pytest.fixture(scope="module")
def watched(short: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a run of somebody else's learner."""
    run = shutil.copytree(short, tmp_path_factory.mktemp("hostile") / "watched")
    (run / "recipe.toml").unlink()
    meta = {"name": "Net", "env": "CartPole-v1", "seed": 0, "gamma": 0.9, "steps": 5, "actions": 2, "torch": "2"}
    rules = {"name": "gymnasium", "lanes": 2, "reward": "raw"}
    (run / "meta.json").write_text(json.dumps({**meta, "evaluation": "sampled actions", "protocol": rules}))
    return run


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a JSON value; of a list, and of a table within it, the first part will do."""
    if path:
        yield path
    parts = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, part in parts[:1] if path else parts:
        yield from places(part, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return value


def attacks(run: Path, files: str) -> Iterator[tuple[str, str, str]]:
    """File, place and content for every value of every file in which one value is something else."""
    for file in sorted(run.glob(files)):
        content = file.read_text()
        if file.suffix == ".json":
            whole = json.loads(content)
            for path in places(whole):
                for wrong in WRONG:
                    yield file.name, f"{path} {wrong!r:.30}", json.dumps(changed(whole, path, wrong))
        if file.suffix == ".jsonl":
            rows = [json.loads(line) for line in content.splitlines()]
            for number, row in enumerate(rows if file.name == "events.jsonl" else rows[:1]):
                for path in places(row):
                    for wrong in WRONG:
                        new = [*rows[:number], changed(row, path, wrong), *rows[number + 1 :]]
                        lines = "".join(json.dumps(each) + "\n" for each in new)
                        yield file.name, f"line {number + 1} {path} {wrong!r:.30}", lines
        if file.name == "recipe.toml":
            for line in re.findall(r"^\w+ = .*$", content, flags=re.M):
                name = line.split(" = ")[0]
                for wrong in (json.dumps(SCRIPT), "[]", "inf"):
                    yield file.name, f"{name} {wrong:.20}", content.replace(line, f"{name} = {wrong}", 1)


def refusal(run: Path, out: Path) -> str | None:
    """What is said instead of writing a page; any other exception is the caller's."""
    try:
        write_report([run], out)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("kind", "files", "least"), [("short", "*.*", 150), ("watched", "meta.json", 15)])
def test_whatever_a_value_is_it_is_shown_as_text_or_named(
    kind: str, files: str, least: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = shutil.copytree(request.getfixturevalue(kind), tmp_path / "run")
    refused = shown = 0
    out = tmp_path / "page.html"
    for name, place, content in attacks(run, files):
        file = run / name
        whole = file.read_text()
        file.write_text(content)
        error = refusal(run, out)
        if error is None:
            shown += 1
            assert SCRIPT not in out.read_text(), (name, place)
            out.unlink()
        else:
            refused += 1
            assert str(file) in error, (name, place, error)
            assert "\n" not in error, (name, place, error)
            assert not out.exists()
        file.write_text(whole)
    assert shown > least
    assert refused > least


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("result.json", '"random_episodes": 4', f'"random_episodes": "{SCRIPT}"', "random_episodes is no whole number"),
        ("result.json", '"wall_seconds": ', '"wall_seconds": [], "x": ', "wall_seconds is no number but []"),
        ("metrics.jsonl", '"loss": ', f'"loss": "{SCRIPT}", "x": ', "<i... for loss, which is no number"),
        ("diagnostics.jsonl", '"spike": ', '"spike": {}, "x": ', "line 1 has {} for spike, which is no number"),
        ("events.jsonl", '"ratios": ', '"ratios": [[1]], "x": ', "for ratios, which is no list of one number"),
    ],
)
def test_the_command_says_so_in_one_line(
    name: str, old: str, new: str, said: str, short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(short, tmp_path / "run")
    content = (run / name).read_text()
    assert old in content
    (run / name).write_text(content.replace(old, new, 1))
    out, figure = (str(tmp_path / file) for file in ("page.html", "figure.svg"))
    for words in (["report", str(run), "--out", out], ["compare", str(run), "--figure", figure]):
        with pytest.raises(SystemExit) as stop:
            cli.main(words)
        error = capsys.readouterr().err
        assert stop.value.code == 2
        assert error.startswith(f"steadyq: {run / name} is damaged: ")
        assert said in error
        assert error.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def poisoned(run: Path, out: Path) -> Path:
    """The run with a script in every text that a page shows."""
    run = shutil.copytree(run, out)
    result = json.loads((run / "result.json").read_text()) | {"command": SCRIPT, "commit": SCRIPT}
    result["versions"] = {SCRIPT: SCRIPT}
    result["hardware"] = dict.fromkeys(("cpu", "gpu", "cores"), SCRIPT)
    (run / "result.json").write_text(json.dumps(result))
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {key: SCRIPT for key in ("layer", "message") if key in row}
        row |= {"layers": [SCRIPT + name for name in row["layers"]]} if "layers" in row else {}
    (run / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if (run / "meta.json").is_file():
        meta = json.loads((run / "meta.json").read_text())
        words = {"name": SCRIPT, "env": SCRIPT, "evaluation": SCRIPT, "torch": SCRIPT, SCRIPT: SCRIPT}
        (run / "meta.json").write_text(json.dumps({**meta, **words, "protocol": {"name": f"gymnasium {SCRIPT}"}}))
    else:
        recipe = (run / "recipe.toml").read_text()
        for name in ("env", "preset", "scale"):
            recipe = re.sub(rf'^{name} = ".*"$', f"{name} = {json.dumps(SCRIPT)}", recipe, flags=re.M)
        recipe = recipe.replace('name = "gymnasium"', f"name = {json.dumps('gymnasium' + SCRIPT)}")
        (run / "recipe.toml").write_text(recipe)
    return run


def harmless(browser: Browser, page: Path) -> None:
    """The page works, and nothing but its own script has run in it."""
    assert SCRIPT not in page.read_text()
    for width in (1280, 390):
        browser.open(page, width=width, phone=width < 500)
        assert browser.console == []
        assert browser.run(HACKED) == "undefined"
        assert int(browser.run("document.documentElement.dataset.drawn")) > 3
        assert browser.run("document.scripts.length") == 2
        assert browser.run("document.querySelectorAll('img[src=x], [onerror]').length") == 0
        assert browser.run("document.documentElement.scrollWidth") <= width
        browser.mouse("mouseMoved", *browser.centre("#chart-spikes .plot"))
        browser.run("document.querySelector('#chart-spikes .plot').focus()")
        browser.key("ArrowDown")
        assert browser.run(HACKED) == "undefined"
        assert "<script>window.hacked" in browser.run("document.body.innerText")  # shown as what it is


def test_no_script_of_a_run_runs_in_its_page(short: Path, watched: Path, tmp_path: Path, browser: Browser) -> None:
    ours, theirs = poisoned(short, tmp_path / "<b onclick=1>ours"), poisoned(watched, tmp_path / "'theirs\"")
    for number, runs in enumerate(([ours], [theirs], [ours, theirs])):
        write_report(runs, page := tmp_path / f"{number}.html", caption=SCRIPT)
        harmless(browser, page)


def test_no_script_of_a_sweep_runs_in_its_page(short: Path, tmp_path: Path, browser: Browser) -> None:
    study = find_study("decoupling").changed(seeds=1, games=["CartPole-v1"])
    text = study.to_toml().replace("Decoupling", SCRIPT).replace(study.question, SCRIPT)
    text = text.replace('"forbid none"', json.dumps(SCRIPT))
    assert SCRIPT in tomllib.loads(text)["variants"]
    out = tmp_path / "a" / "b" / "sweep"
    out.mkdir(parents=True)
    (out / "sweep.toml").write_text(text)
    for label in ("forbid rewarded", SCRIPT):
        shutil.copytree(short, out / run_name("Gymnasium/CartPole-v1", label, 0))
    _, files = write_sweep_report(out)
    assert {file.parent for file in files} == {out / "report"}
    assert {file.name for file in tmp_path.iterdir()} == {"a"}
    harmless(browser, out / "report" / "report.html")


def test_a_page_allows_no_script_but_its_own(short: Path, tmp_path: Path, browser: Browser) -> None:
    write_report([short], page := tmp_path / "page.html")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page.read_text())
    assert policy is not None
    assert "unsafe" not in policy[1]
    assert policy[1].startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    page.write_text(page.read_text().replace("</main>", f"</main>{SCRIPT}<style>body {{ opacity: 0 }}</style>"))
    browser.open(page)
    assert browser.run(HACKED) == "undefined"
    assert browser.run("getComputedStyle(document.body).opacity") == "1"
    assert len([said for said in browser.console if "Content Security Policy" in said]) >= 3
    assert int(browser.run("document.documentElement.dataset.drawn")) > 3


def test_text_becomes_markup_through_one_door() -> None:
    assert tag("p", "<b>", class_="a b", data_key='"') == '<p class="a b" data-key="&quot;">&lt;b&gt;</p>'
    assert tag("p", tag("br"), None, ["<", 1, [2.5]], hidden=True, title=None) == "<p hidden><br>&lt;12.5</p>"
    assert joined(["<", tag("b", "x")], ", ") == "&lt;, <b>x</b>"
    assert isinstance(tag("i") + "<", Markup)
    assert tag("i") + "<" == "<i></i>&lt;"
    assert text("'") == "&#x27;"


def test_reading_a_run_imports_nothing_of_its_environment(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = shutil.copytree(short, tmp_path / "run")
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace("Gymnasium/CartPole-v1", "Gymnasium/stranger:Env-v0"))
    write_report([run], tmp_path / "page.html")
    assert "stranger:Env-v0" in (tmp_path / "page.html").read_text()
    with pytest.raises(SystemExit):
        cli.main(["compare", str(run)])
    with pytest.raises(SystemExit):
        cli.main(["diagnose", str(run)])
    assert not (tmp_path / "imported").exists()
