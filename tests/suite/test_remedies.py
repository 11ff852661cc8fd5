"""Remedies x mechanisms: by hand, and a tiny study of real runs from training to figure."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steadyq.errors import UserError
from steadyq.report.sweep import write_sweep_report
from steadyq.run.folder import RunFolder
from steadyq.suite.remedies import MEASURES, at_end, effects, remedies_table
from steadyq.suite.study import STUDY_FILE, Study, find_study, parted, read_study
from steadyq.suite.sweep import read_sweep
from steadyq.suite.worker import train_once

STUDIES = Path(__file__).parents[2] / "studies"
SETUPS = ("dqn, ratio 1", "dqn, ratio 8", "qr_dqn, ratio 1", "qr_dqn, ratio 8")


def test_the_study_has_every_remedy_in_every_setup_and_each_changes_one_thing() -> None:
    study = find_study(str(STUDIES / "remedies.toml"))
    assert (study.figure, len(study.games), len(study.seeds)) == ("remedies", 2, 5)
    by_setup: dict[str, list[str]] = {}
    for label in study.labels:
        setup, remedy = parted(label)
        by_setup.setdefault(setup, []).append(remedy)
    assert tuple(by_setup) == SETUPS
    assert len({tuple(remedies) for remedies in by_setup.values()}) == 1
    assert len(by_setup[SETUPS[0]]) == 15
    for env in study.games:
        for label in study.labels:
            setup, remedy = parted(label)
            recipe, plain = study.recipe(label, env, 0), study.recipe(f"{setup}: none", env, 0)
            assert (recipe.preset, recipe.replay.ratio) == (setup.split(", ")[0], int(setup[-1]))
            sections = {line.split(".")[0] for line in recipe.differences(plain)}
            assert len(sections) == (0 if remedy == "none" else 2 if remedy == "LayerNorm, project" else 1), label
            rules, updates = recipe.regulation, (recipe.steps - recipe.replay.warmup) * recipe.replay.ratio
            if rules.intervention == "inject":
                assert 0.4 * updates < rules.period < 0.6 * updates
            elif rules.trigger == "periodic":
                assert 3 <= updates // rules.period < 4


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("a: none", "plain"), "a study of remedies names its variants 'setup: remedy', not 'plain'"),
        (("a: none", "b: x"), "study bad: a variant 'b: none' is needed to compare remedies with"),
    ],
)
def test_a_study_of_remedies_says_what_it_lacks(labels: tuple[str, ...], message: str) -> None:
    text = 'title = "t"\ngames = ["CartPole-v1"]\n[figure]\nkind = "remedies"\n[variants]\n'
    with pytest.raises(UserError) as error:
        read_study(text + "\n".join(f'"{label}" = {{}}' for label in labels), "bad")
    assert str(error.value) == message


def made_up(out: Path) -> Study:
    """Two remedies of five seeds: one lifts the score and silences units, the other does nothing."""
    text = (
        'title = "Made up"\ngames = ["CartPole-v1"]\npreset = "dqn"\nseeds = 5\n[settings]\nsteps = 400\n'
        '[figure]\nkind = "remedies"\n[variants]\n"dqn: none" = {}\n"dqn: good" = { optim.decay = 0.1 }\n'
        '"dqn: idle" = { optim.decay = 0.2 }\n'
    )
    study = read_study(text, "made-up")
    out.mkdir()
    (out / STUDY_FILE).write_text(study.to_toml())
    for run in study.runs():
        path, seed = out / run.name, run.recipe.seed
        path.mkdir()
        (path / "recipe.toml").write_text(run.recipe.to_toml())
        good = run.label == "dqn: good"
        rows = [
            {
                "step": step,
                "q_taken": 3.0 if step > 300 else 99.0,  # what is not the end does not count
                "return_mean": 1.0,
                "dormant": (0.6 if good else 0.1) + 0.01 * seed if step > 300 else 0.0,
                "effective_rank": 8.0,
                "rank_possible": 16,
                "spike": None,
                "members": {},
                "layers": {},
            }
            for step in range(50, 401, 50)
        ]
        (path / "metrics.jsonl").write_text(json.dumps({"step": 400, "return_10": 1.0}) + "\n")
        (path / "diagnostics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (path / "events.jsonl").write_text("")
        score = seed + (10.0 if good else 0.0)
        result: dict[str, Any] = {"mean_return": score, "training_return_10": score, "random_return": 1.0, "steps": 400}
        result |= {"episodes": 1, "returns": [score], "random_episodes": 1, "wall_seconds": 1.0}
        (path / "result.json").write_text(json.dumps(result))
    return study


def test_effects_by_hand(tmp_path: Path) -> None:
    made_up(tmp_path / "sweep")
    sweep = read_sweep(tmp_path / "sweep")
    (found,) = (own["dqn"] for own in effects(sweep).values())
    assert set(found) == {"none", "good", "idle"}
    good, idle, none = found["good"], found["idle"], found["none"]
    assert (good["score"].mean, good["score"].chance, good["score"].sure) == (12.0, 1.0, True)
    assert (idle["score"].mean, idle["score"].chance, idle["score"].sure) == (2.0, 0.5, False)
    assert none["score"].chance is None
    assert good["dormant"].mean == pytest.approx(0.62)
    assert (good["dormant"].sure, good["dormant"].way) == (True, "+")
    assert good["overestimation"].mean == 2.0
    assert good["rank share"].mean == 0.5
    assert "spike" not in good  # nobody measured it
    assert math.isnan(at_end(sweep.runs[0], "spike"))
    table = remedies_table(sweep)
    moved = {str(row[0].value): row[-1].value for row in table.rows}
    assert moved == {"none": None, "good": "score +, dormant +", "idle": None}


SMALL = {
    "steps": 200,
    "network.channels": 4,
    "network.hidden": (16,),
    "replay.warmup": 64,
    "replay.batch": 8,
    "replay.every": 2,
    "replay.capacity": 300,
    "record.every": 50,
    "monitor.every": 25,
    "monitor.batch": 16,
    "evaluation.episodes": 2,
    "evaluation.random_episodes": 1,
}


def test_a_tiny_study_of_real_runs_becomes_a_table_and_a_figure(tmp_path: Path) -> None:
    study = find_study(str(STUDIES / "remedies.toml"))
    kept = ("none", "inject a head", "replace useless units", "spectral normalisation", "CReLU")
    variants = {
        label: dict(c) for label, c in study.variants.items() if parted(label)[1] in kept and "ratio 1" in label
    }
    for label, changes in variants.items():
        if parted(label)[1] == "inject a head":
            changes["regulation.period"] = 50
        if parted(label)[1] == "replace useless units":
            changes |= {"regulation.every": 10, "regulation.maturity": 20, "regulation.replacement": 0.02}
    small = replace(study, variants=variants, games=study.games[:1], seeds=(0, 1), settings={**study.settings, **SMALL})
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / STUDY_FILE).write_text(small.to_toml())
    for run in small.runs():
        assert train_once(run.recipe, tmp_path / "sweep" / run.name) == ("finished", "")
    found, files = write_sweep_report(tmp_path / "sweep")
    assert {file.suffix for file in files} >= {".svg", ".png", ".pdf", ".html", ".txt", ".json"}
    table = next(each for each in found if "remedies x mechanisms" in each.title)
    assert len(table.rows) == len(variants) == 10
    assert all(cell.value is not None for row in table.rows for cell in row[:-1]), "every measure of every remedy"
    drawn = (tmp_path / "sweep" / "report" / "remedies.svg").read_text()
    for word in (*kept, "dqn, ratio 1", "qr_dqn, ratio 1", *(measure.name for measure in MEASURES)):
        assert word in drawn, word
    kinds = {
        run.name: {event["kind"] for event in RunFolder(run).events() if event["event"] == "reset"}
        for run in (tmp_path / "sweep").iterdir()
        if (run / "recipe.toml").is_file()
    }
    for name, made in kinds.items():
        assert made == ({"inject"} if "inject" in name else {"replace"} if "replace" in name else set()), name
    page = (tmp_path / "sweep" / "report" / "report.html").read_text()
    assert "remedies x mechanisms" in page
