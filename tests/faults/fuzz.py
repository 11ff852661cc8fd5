"""Commands, recipes and studies made of pieces that do and do not belong there: understood, or refused in one line.

Nothing may end in a traceback or an unexpected error, take for ever, or leave something behind when it is refused; what
is understood must survive being written and read again.
"""

import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

from counting import Count, fork, small, wait

from steadyq import Recipe, RunFolder, UserError, cli, presets
from steadyq.recipe import flatten
from steadyq.run.loop import train
from steadyq.suite.study import find_study, read_study

SECONDS = 300
NASTY = (
    *("", " ", "0", "-1", "1", "2", "3", "0.5", "1e-9", "nan", "inf", "-inf", "1e999", "9" * 20, "9" * 400, "9" * 5000),
    *("0x10", "1_000", "²", "٣", "true", "False", "none", "None", "auto", "[]", "{}", "[1, 2", "a b", "a\nb", "a\tb"),
    *("\x1b[2J", "\x07", "é", "日本", "\u202e", "\u2028", "'", '"', "\\", "/", "..", "../../outside", "/abs", "-"),
    *("--", "-y", "=", "a=b", "%s", "{0}", "$(id)", "`id`", "~", "*", ":", "a:b", "x" * 300, "x" * 5000, "CartPole-v1"),
    *("stranger:Env-v0", "1979-05-27", "1,2", "NaN"),
)
TOML = (
    *("", "0", "-1", "1", "3", "0.5", "nan", "inf", "-inf", "1e999", "9" * 20, "9" * 5000, "true", "[]", "[1, 2]"),
    *("[[[]]]", '""', '"x"', '"a\\nb"', '"\\u001b[2J"', '"../../outside"', '"/abs"', '"\\u007f"', "'''a\nb'''", "{}"),
    *("{a = 1}", "1979-05-27", "07:32:00", '"cuda"', '"auto"', '["MinAtar/Breakout"]', '["stranger:Env-v0"]'),
    *("[" * 900 + "]" * 900, '"' + "x" * 400 + '"'),
)
COMMANDS = ("train", "evaluate", "play", "compare", "report", "diagnose", "sweep", "ppo", "presets", "paper", "bench")
COMMANDS += ("doctor", "demo")
OPTIONS = ("--out", "--run", "--json", "--seed", "--seeds", "--episodes", "--figure", "--scale", "--preset", "--sticky")
OPTIONS += ("--probe", "--toml", "--games", "--on", "--help", "--debug", "--no-verify", "--best-of")
STUDY = """
title = "Small"
question = "What?"
games = ["CartPole-v1"]
seeds = 2
[settings]
steps = 60
replay.warmup = 40
[variants.on]
operator.forbid = "rewarded"
[variants."off "]
operator.forbid = "none"
[needs]
operator.kind = "controlled"
[figure]
columns = ["return_10"]
"""


def fuzz(number: int, seed: int | str, place: Path) -> Count:
    """So many inputs: half recipes, two fifths studies, the rest commands in processes of their own."""
    count, rng = Count("fuzzed inputs"), random.Random(f"{seed} fuzz")
    recipe = presets.steady("CartPole-v1").to_toml()
    run = train(small(steps=60), run=place / "run").path
    for _ in range(number):
        dice = rng.random()
        if dice < 0.5:
            _text("recipe", mutated(recipe, rng), count, place, rng)
        elif dice < 0.9:
            _text("study", mutated(STUDY, rng), count, place, rng)
        else:
            _command(command(rng), run, count, place)
    return count


def mutated(text: str, rng: random.Random) -> str:
    """A text with one to three changes to its lines or letters."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        key, equals, _ = lines[at].partition(" = ")
        dice = rng.randrange(7)
        if dice < 3 and equals:
            lines[at] = f"{key} = {rng.choice(TOML)}"
        elif dice == 3:
            del lines[at]
        elif dice == 4:
            lines.insert(at, rng.choice([*lines, *(f"{word} = {rng.choice(TOML)}" for word in ("name", "env", "x.y"))]))
        elif dice == 5:
            lines[at] = "".join(rng.sample(lines[at], len(lines[at])))
        else:
            place = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + rng.choice(NASTY) + lines[at][place + rng.randrange(3) :]
        text = "\n".join(lines) or "\n"
    return text


def _text(kind: str, text: str, count: Count, place: Path, rng: random.Random) -> None:
    shown = f"{kind}:\n{text[:2000]}"
    try:
        if kind == "recipe":
            understood: Any = _recipe(text, place) if rng.random() < 0.2 else Recipe.from_toml(text)
            again: Any = Recipe.from_toml(understood.to_toml())
        else:
            understood = _study(text, place) if rng.random() < 0.2 else read_study(text, "fuzzed")
            understood.runs()
            again = read_study(understood.to_toml(), understood.name)
        if repr(again) != repr(understood):
            count.fail(f"{shown}\nis another one after it was written")
        else:
            count.add("understood")
    except UserError as error:
        _line(str(error), shown, count)
    except Exception as error:
        count.fail(f"{shown}\n{type(error).__name__}: {error}")


def _recipe(text: str, place: Path) -> Recipe:
    folder = place / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(text, encoding="utf-8", errors="surrogateescape")
    return RunFolder(folder).recipe


def _study(text: str, place: Path) -> Any:
    file = place / "fuzzed.toml"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    return find_study(str(file))


def _line(message: str, shown: str, count: Count) -> None:
    if "\n" in message.rstrip("\n") or len(message) > 1100:
        count.fail(f"{shown}\nis not refused in one line: {message}")
    else:
        count.add("refused")


def command(rng: random.Random) -> list[str]:
    """Words that may follow `steadyq`; whatever is understood ends soon."""
    options = [f"--{name}".replace("_", "-") for name in flatten(presets.steady("CartPole-v1").to_dict())]
    words = [rng.choice((*COMMANDS, rng.choice(NASTY)))]
    places = ("run", "empty", "file", "nowhere", "study.toml", "run/result.json", *NASTY)
    ends = {
        "train": ["--steps", "50", "--replay.warmup", "40", "--network.hidden", "4", "--evaluation.episodes", "1"],
        "sweep": ["--dry-run"],
        "bench": ["--show", rng.choice([place for place in places if place.lower() != "none"])],  # none would measure
        "ppo": ["--out", "file"],
        "demo": ["--out", "file"],
        "evaluate": ["--episodes", "1"],
        "play": ["--max-seconds", "0.2"],
    }
    for _ in range(rng.randrange(4)):
        dice = rng.random()
        if dice < 0.4:
            words.append(rng.choice(places))
        elif dice < 0.7:
            words += [rng.choice(OPTIONS), *([rng.choice((*places, *NASTY))] * (rng.random() < 0.8))]
        else:
            words += [rng.choice(options), *([rng.choice(NASTY)] * (rng.random() < 0.9))]
    if words[0] == "train" and rng.random() < 0.8:
        words.insert(1, "CartPole-v1")
    return [word.replace("\x00", "") for word in words + ends.get(words[0], [])]


def _command(words: list[str], run: Path, count: Count, place: Path) -> None:
    here, said = place / "here", place / "said.txt"
    shutil.rmtree(here, ignore_errors=True)
    (here / "empty").mkdir(parents=True)
    (here / "file").write_text("text")
    (here / "study.toml").write_text(STUDY)
    shutil.copytree(run, here / "run")
    before = _tree(here)

    def work() -> None:
        os.chdir(here)
        signal.alarm(SECONDS)
        cli.main(words)

    code, shown = wait(fork(work, said)), f"steadyq {words}"[:2000]
    text = said.read_text(errors="replace")
    if code not in (0, 2, 3) or ("Traceback" in text.replace("--debug", "") and "--debug" not in words):
        count.fail(f"{shown}\nended with {code}: {text[-500:]}")
    elif _tree(here / "run") != {name: value for name, value in before.items() if name.startswith("run/")}:
        count.fail(f"{shown}\nchanged a finished run")
    elif code == 2 and _tree(here) != before:
        count.fail(f"{shown}\nwas refused, and left {sorted(_tree(here).items() ^ before.items())}")
    elif code == 2 and "--debug" not in words:
        _line(text.strip().split("steadyq: ")[-1], shown, count)
    else:
        count.add("understood" if code == 0 else "refused")


def _tree(path: Path) -> dict[str, int]:
    root = path if path.name == "here" else path.parent
    return {str(file.relative_to(root)): file.stat().st_mtime_ns if file.is_file() else 0 for file in path.rglob("*")}
