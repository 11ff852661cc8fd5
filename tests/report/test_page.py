"""The report in a real browser: what a person sees, clicks and types."""

import base64
import re
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from small import SMALL
from stored import stored

import steadyq as sq
from steadyq.report.charts import CHARTS
from steadyq.report.html import write_report
from steadyq.report.sections import VIDEO_BYTES
from steadyq.run.video import write_video

DRAWN = """[...document.querySelectorAll('figure.chart')].map(f => {
  const box = f.querySelector('.plot svg').getBoundingClientRect();
  const marks = [...f.querySelectorAll('path.line, path.mark, rect[class^=h]')].filter(m => m.tagName === 'rect'
    || (m.closest('.plot') && (m.getAttribute('d') || '').length > 20));
  const inside = marks.filter(m => { const b = m.getBoundingClientRect(); return b.width > 0 || b.height > 0; });
  return {id: f.id, width: box.width, height: box.height, marks: inside.length,
          label: f.querySelector('.plot svg').getAttribute('aria-label')}; })"""


@pytest.fixture(scope="module")
def comparison(cartpole: dict[str, list[Path]], breakout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report([*cartpole["rewarded"], *cartpole["none"], breakout], out)
    return out


@pytest.fixture(scope="module")
def single(cartpole: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    pictures = (np.full((40, 40, 3), 10 * i, np.uint8) for i in range(20))
    write_video(pictures, folder / "agent.mp4", fps=10)
    write_report(cartpole["rewarded"][:1], folder / "report.html", video=folder / "agent.mp4", caption="It <plays>.")
    return folder / "report.html"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", ["single", "comparison"])
def test_loads_quietly_and_draws_every_chart(
    page: str, width: int, browser: Browser, request: pytest.FixtureRequest
) -> None:
    file: Path = request.getfixturevalue(page)
    browser.open(file, width=width, phone=width < 500)
    assert browser.console == []
    assert [address for address in browser.requests if not address.startswith("data:")] == [file.resolve().as_uri()]
    charts = browser.run(DRAWN)
    shown = [chart["id"] for chart in charts]
    assert [f"chart-{chart.id}" for chart in CHARTS] == [name for name in shown if not re.search(r"-\d+$", name)]
    for chart in charts:
        assert chart["width"] > 200, chart
        assert chart["height"] > 60, chart
        assert chart["marks"] > 0, chart
        assert re.search(r"\d", chart["label"]), chart
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert file.stat().st_size < 1_000_000


@pytest.mark.parametrize("page", ["single", "comparison"])
def test_no_chart_text_leaves_its_card(page: str, browser: Browser, request: pytest.FixtureRequest) -> None:
    for width in (1280, 600, 560, 500, 440, 421, 390):
        browser.open(request.getfixturevalue(page), width=width, phone=width < 500)
        outside = browser.run(
            """[...document.querySelectorAll('figure.chart .plot text')].filter(t => {
            const b = t.getBoundingClientRect(), c = t.closest('figure').getBoundingClientRect();
            return b.left < c.left - 1 || b.right > c.right; }).map(t => t.textContent)"""
        )
        assert outside == []


ON_CURVES = """[...document.querySelectorAll('figure.chart .plot text.note')].filter(note => {
  const box = note.getBoundingClientRect(), svg = note.ownerSVGElement;
  return [...note.closest('.plot').querySelectorAll('path.line')].some(path => {
    const length = path.getTotalLength();
    for (let at = 0; at <= length; at += 1) {
      const p = path.getPointAtLength(at).matrixTransform(svg.getScreenCTM());
      if (p.x > box.left && p.x < box.right && p.y > box.top + 2 && p.y < box.bottom - 2) return true;
    }
    return false; });
}).map(note => note.textContent)"""


@pytest.mark.parametrize("page", ["single", "comparison", "brief"])
def test_no_label_lies_on_a_curve(page: str, browser: Browser, request: pytest.FixtureRequest) -> None:
    for width in (1280, 760, 390):
        browser.open(request.getfixturevalue(page), width=width, phone=width < 500)
        assert browser.run(ON_CURVES) == []
        assert browser.run("document.querySelectorAll('figure.chart .plot text.note, .key-level').length") > 0


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends before its first row is due."""
    folder = tmp_path_factory.mktemp("brief")
    sq.train(sq.presets.steady("CartPole-v1", steps=610, **{**SMALL, "record.every": 1000}), run=folder / "run")
    write_report([folder / "run"], folder / "report.html")
    return folder / "report.html"


def test_a_short_run_says_how_long_it_was_and_shows_its_games(brief: Path, browser: Browser) -> None:
    run = sq.RunFolder(brief.parent / "run")
    assert run.metrics() == []
    browser.open(brief)
    assert "After 610 steps" in browser.run("document.querySelector('.lede').textContent")
    tiles = browser.run("[...document.querySelectorAll('.tiles div')].map(t => t.textContent)")
    result = run.result
    assert result is not None
    assert {"steps610", f"updates{result['updates']}"} <= set(tiles)
    assert browser.run("document.querySelector('.range').textContent") == "steps 0 to 610"
    games = [event for event in run.events() if event["event"] == "game"]
    data = browser.run("JSON.parse(document.getElementById('data').textContent).envs[0]")
    (curve,) = data["curves"].values()
    last = curve["return_10"]["mean"]
    while last[-1] is None:
        last.pop()
    assert last[-1] == pytest.approx(np.mean([game["score"] for game in games[-10:]]), rel=1e-3)
    assert len(last) > len(games)
    assert "No measurements yet" not in browser.run("document.body.textContent")


def test_rows_and_games_of_a_short_run_have_each_their_own_steps(tmp_path: Path, browser: Browser) -> None:
    sq.train(sq.presets.steady("CartPole-v1", steps=500, **{**SMALL, "record.every": 200}), run=tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    entry = browser.run("JSON.parse(document.getElementById('data').textContent).envs[0]")
    assert entry["steps"] == [200, 400, 500]
    assert len(entry["fine"]) == 100
    assert entry["last"] == 500
    browser.run("document.querySelector('#chart-loss .plot').focus()")
    browser.key("Home")
    loss = browser.run("document.querySelector('#chart-loss .overlay .note').textContent")
    assert loss == "step 200"
    assert browser.console == []


def test_legend_hides_one_line(single: Path, browser: Browser) -> None:
    browser.open(single)
    entry = '#chart-value [data-key="0:q_max"]'
    line = "document.querySelectorAll('#chart-value [data-series=\"0:q_max\"]').length"
    assert browser.run(line) == 1
    browser.click(entry)
    assert browser.run(line) == 0
    assert browser.run(f"document.querySelector('{entry}').getAttribute('aria-pressed')") == "false"
    assert browser.run("document.activeElement.dataset.key") == "0:q_max"
    browser.click(entry)
    assert browser.run(line) == 1


def test_variant_toggle_removes_it_everywhere(comparison: Path, browser: Browser) -> None:
    browser.open(comparison)
    of_first = "document.querySelectorAll('.plot [data-series^=\"0:\"]').length"
    rows = "[...document.querySelectorAll('tr[data-variant=\"0\"]')].filter(r => r.offsetHeight).length"
    before = browser.run(of_first)
    assert before > len(CHARTS) - 2
    assert browser.run(rows) == 2  # on CartPole and on Breakout
    browser.click('[data-toggle="0"]')
    assert browser.run(of_first) == 0
    assert browser.run(rows) == 0
    assert browser.run("document.querySelectorAll('#chart-return [data-series^=\"1:\"]').length") == 1
    browser.click('[data-toggle="1"]')
    assert "Nothing to draw" in browser.run("document.querySelector('#chart-return .plot').textContent")
    browser.mouse("mouseMoved", *browser.centre("#chart-spikes .plot"))
    browser.click('[data-toggle="1"]')
    browser.click('[data-toggle="0"]')
    assert browser.run(of_first) == before
    assert browser.console == []


def test_environment_choice_redraws_the_charts(comparison: Path, browser: Browser) -> None:
    browser.open(comparison)
    label = "document.querySelector('#chart-return svg[role=img]').getAttribute('aria-label')"
    assert "CartPole-v1" in browser.run(label)
    browser.click('input[name=env][value="1"]')
    assert "MinAtar/Breakout" in browser.run(label)
    assert browser.run("document.querySelectorAll('#chart-return [data-series]').length") == 1
    assert "No layer was reset" in browser.run("document.querySelector('#chart-resets .plot').textContent")
    assert browser.console == []


def test_drag_zooms_all_charts_and_double_click_resets(single: Path, browser: Browser) -> None:
    browser.open(single)
    ticks = "[...document.querySelectorAll('#chart-{} .axis text')].map(t => t.textContent).join(' ')"
    span = "document.querySelector('.range').textContent"
    whole = [browser.run(ticks.format(name)) for name in ("return", "loss", "spikes")]
    assert browser.run(span) == "steps 0 to 800"
    browser.drag("#chart-return .plot", 0.4, 0.6)
    low, high = (int(n.replace(",", "")) for n in re.findall(r"[\d,]+", browser.run(span)))
    assert 240 < low < 350
    assert 450 < high < 560
    assert all(
        browser.run(ticks.format(name)) != old for name, old in zip(("return", "loss", "spikes"), whole, strict=True)
    )
    x, y = browser.centre("#chart-loss .plot")
    for clicks in (1, 2):
        browser.mouse("mousePressed", x, y, "left", 1, clicks)
        browser.mouse("mouseReleased", x, y, "left", 0, clicks)
    assert browser.run(span) == "steps 0 to 800"
    assert browser.run(ticks.format("return")) == whole[0]


def test_keyboard_moves_the_cursor_zooms_and_speaks(single: Path, browser: Browser) -> None:
    browser.open(single)
    browser.run("document.querySelector('#chart-return .plot').focus()")
    for key in ("Home", "ArrowRight", "ArrowRight"):
        browser.key(key)
    spoken = browser.run("document.querySelector('[aria-live=polite].unseen').textContent")
    assert spoken.startswith("step 120: last 10 games ")
    assert browser.run("document.querySelectorAll('line.cursor').length") == len(CHARTS)
    browser.key("+")
    assert browser.run("document.querySelector('.range').textContent") != "steps 0 to 800"
    browser.key("0")
    assert browser.run("document.querySelector('.range').textContent") == "steps 0 to 800"
    browser.run("document.querySelector('#chart-spikes .plot').focus()")
    first = browser.run("document.querySelector('#chart-spikes .reading').textContent")
    browser.key("ArrowDown")
    assert browser.run("document.querySelector('#chart-spikes .reading').textContent") != first


def test_hover_shows_the_value_in_the_file(single: Path, cartpole: dict[str, list[Path]], browser: Browser) -> None:
    rows = {row["step"]: row for row in sq.RunFolder(cartpole["rewarded"][0]).metrics()}
    browser.open(single)
    x, y = browser.centre("#chart-value .plot")
    browser.mouse("mouseMoved", x, y)
    step = int(
        browser.run("document.querySelector('#chart-value .overlay .note').textContent").split()[-1].replace(",", "")
    )
    shown = browser.run("document.querySelector('#chart-value [data-key=\"0:q_taken\"] b').textContent")
    assert float(shown) == pytest.approx(rows[step]["q_taken"], rel=0.006)


def test_dark_mode_and_print_change_the_page(single: Path, browser: Browser, tmp_path: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"

    def brightness() -> int:
        return sum(map(int, re.findall(r"\d+", browser.run(colour))[:3]))

    browser.open(single)
    light = brightness()
    browser.open(single, dark=True)
    assert light > 600 > 150 > brightness()
    browser("Emulation.setEmulatedMedia", media="print")
    assert brightness() == 3 * 255
    assert browser.run("document.querySelector('.toolbar').offsetHeight") == 0
    browser("Emulation.setEmulatedMedia", media="")
    assert base64.b64decode(browser("Page.printToPDF")["data"]).startswith(b"%PDF")


def test_every_control_has_a_name(comparison: Path, browser: Browser) -> None:
    browser.open(comparison)
    tree = browser("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "checkbox", "radio", "link", "image", "img", "figure", "table")
    nameless = [
        node["role"]["value"]
        for node in tree
        if not node.get("ignored")
        and node.get("role", {}).get("value") in roles
        and not node.get("name", {}).get("value")
        and node["role"]["value"] not in ("figure", "table")
    ]
    assert nameless == []
    assert browser.run("document.title.length") > 5


def test_video_is_embedded_and_large_ones_are_linked(single: Path, browser: Browser, tmp_path: Path) -> None:
    browser.open(single)
    assert browser.run("document.querySelector('video').src.startsWith('data:video/mp4;base64,')")
    assert "It <plays>." in browser.run("document.querySelector('.video figcaption').textContent")
    large = tmp_path / "large.mp4"
    large.write_bytes(b"\0" * (VIDEO_BYTES + 1))
    runs = browser.run("[...document.querySelectorAll('.facts a')].map(a => a.href)")
    folder = Path(runs[0].removeprefix("file://")).parent
    write_report([folder], tmp_path / "report.html", video=large)
    text = (tmp_path / "report.html").read_text()
    assert "<video" not in text
    assert 'href="large.mp4"' in text


def test_links_lead_to_the_raw_files(single: Path, browser: Browser) -> None:
    browser.open(single)
    links = browser.run("[...document.querySelectorAll('.facts a')].map(a => decodeURI(a.href))")
    logs = {"metrics.jsonl", "diagnostics.jsonl", "events.jsonl"}
    assert {Path(link).name for link in links} == {"recipe.toml", "result.json", *logs}
    assert all(Path(link.removeprefix("file://")).is_file() for link in links)


def test_verdict_is_read_at_a_glance_and_on_paper(
    cartpole: dict[str, list[Path]], tmp_path: Path, browser: Browser
) -> None:
    sick = stored("diagnose") / "Gymnasium-CartPole-v1-rate-seed5"
    write_report([sick], tmp_path / "one.html")
    browser.open(tmp_path / "one.html", width=390, phone=True)
    assert browser.run("document.querySelector('.findings .parameter .name').textContent").startswith("violent updates")
    assert browser.run("document.querySelector('.findings .parameter').textContent.includes('at step 1,001: 0.4')")
    assert browser.run("[...document.querySelectorAll('details.try')].every(d => d.open)")
    assert browser.run("document.documentElement.scrollWidth") <= 390
    write_report([sick, *cartpole["none"]], tmp_path / "many.html")
    browser.open(tmp_path / "many.html")
    folded = "[...document.querySelectorAll('details.try')].filter(d => !d.open).length"
    assert browser.run(folded) == browser.run("document.querySelectorAll('.findings > li').length") > 0
    assert browser.run("document.querySelectorAll('.verdict h3 .key svg').length") > 0
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(folded) == 0
    browser.open(tmp_path / "many.html", width=720)
    browser("Emulation.setEmulatedMedia", media="print", features=[])
    table = "document.querySelector('.scores')"
    assert browser.run(
        f"{table}.getBoundingClientRect().right <= {table}.closest('.card').getBoundingClientRect().right"
    )


def test_one_member_has_no_disagreement_to_draw(tmp_path: Path) -> None:
    alone = stored("diagnose") / "Gymnasium-CartPole-v1-rate-seed5"
    write_report([alone], tmp_path / "one.html")
    page = (tmp_path / "one.html").read_text()
    assert 'id="chart-spread"' not in page
    assert "<strong>Layer resets:</strong> No layer was reset.</p>" in page
