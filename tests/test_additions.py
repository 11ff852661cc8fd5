"""An addition to an axis is four files outside tests and docs: its module, the recipe, the build and a preset.

No other file may know an addition by name: who asks `kind == "categorical"` elsewhere should ask the estimator.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "steadyq"

ADDITIONS: dict[str, tuple[set[str], set[str]]] = {
    "Maxmin": (
        {"Maxmin", "maxmin", "maxmin_dqn"},
        {"value/operators.py", "recipe.py", "build.py", "presets.py"},
    ),
    "C51": (
        {"Categorical", "categorical", "c51"},
        {"value/estimators.py", "recipe.py", "build.py", "presets.py"},
    ),
    "ReDo": (
        {"Recycle", "recycle", "Dormant", "redo"},
        {"value/regulation.py", "recipe.py", "build.py", "presets.py"},
    ),
    "SPR": (
        {"SelfPrediction", "spr"},
        {"value/auxiliary.py", "recipe.py", "build.py", "presets.py"},
    ),
    "CURL": (
        {"Contrastive", "curl"},
        {"value/auxiliary.py", "recipe.py", "build.py", "presets.py"},
    ),
    "IQN": (
        {"Implicit", "implicit", "iqn"},
        {"value/estimators.py", "recipe.py", "build.py", "presets.py"},
    ),
    "EBQL": (
        {"Others", "ebql"},
        {"value/operators.py", "recipe.py", "build.py", "presets.py"},
    ),
    "Munchausen": (
        {"Munchausen", "munchausen"},
        {"value/operators.py", "recipe.py", "build.py", "presets.py"},
    ),
    "TQC": (
        {"Pooled", "tqc", "tqc_discrete"},
        {"value/operators.py", "recipe.py", "build.py", "presets.py"},
    ),
}
"""What names an addition in code, and the files that may."""


@functools.cache
def words(file: Path) -> set[str]:
    """Names and whole strings that a file uses, but for comments and docstrings; where it is no Python, all words."""
    text = file.read_text(errors="ignore")
    if file.suffix != ".py":
        return set(re.findall(r"\w+", text))
    found: set[str] = set()
    tree = ast.parse(text)
    said = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.alias(name=name):
                found.add(name.split(".")[-1])
            case ast.Constant(value=str(text)) if id(node) not in said:
                found.add(text)
    return found


FREE = {"monitor/attach.py", "monitor/switches.py"}
"""What knows how other libraries' networks put out values, whichever of them we have ourselves; and what offers options
to a person, as a preset does."""


def users(names: set[str]) -> set[str]:
    files = [file for file in SOURCE.rglob("*") if file.is_file() and file.suffix in (".py", ".js", ".toml", ".css")]
    return {str(file.relative_to(SOURCE)) for file in files if names & words(file)} - FREE


@pytest.mark.parametrize("addition", ADDITIONS)
def test_an_addition_is_known_to_four_files(addition: str) -> None:
    names, files = ADDITIONS[addition]
    assert users(names) == files
    assert len(files) == 4


def test_the_search_sees_who_asks_for_a_kind() -> None:
    """It can fail: an older kind that other rooms do ask for is found there."""
    assert "paper/settings.py" in users({"resnet"})
    assert {"run/step.py", "run/update.py"} & users({"learn"})
    assert users({"no such name"}) == set()
