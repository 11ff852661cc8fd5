"""Programs compiled on a CPU: what they are recorded from they equal, and what cannot be one goes on as it is."""

import math
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import compiles
from torch import Tensor
from torch._inductor.exc import CppCompileError

from steadyq.device.capture import Captured
from steadyq.device.program import Program, Unfit, apart, compiler, complaint


class Small:
    """A weight that gradient steps move, and a sum of what they saw: all that a captured update does, in small."""

    def __init__(self) -> None:
        self.weight = torch.linspace(-1, 1, 12).view(3, 4)
        self.seen = torch.zeros(3)
        self.once: list[Tensor] = []

    def update(self, x: Tensor) -> Tensor:
        if not self.once:
            self.once.append(torch.arange(3.0))  # as caches do
        leaf = self.weight.detach().requires_grad_()
        (slope,) = torch.autograd.grad(((leaf @ x).tanh() - self.once[0]).square().sum(), [leaf])
        self.weight.sub_(0.1 * slope)
        self.weight[0].mul_(0.99)  # through a view
        return self.seen.add_(self.weight.sum(1))

    def value(self, x: Tensor) -> Tensor:
        return (self.weight @ x).relu()


@compiles
def test_a_program_does_what_the_function_does_time_after_time() -> None:
    plain, compiled = Small(), Small()
    generator = torch.Generator().manual_seed(0)
    update, value = (
        Captured(compiled.update, torch.device("cpu"), True),
        Captured(compiled.value, torch.device("cpu"), True),
    )
    for _ in range(5):
        x = torch.randn(4, generator=generator)
        torch.testing.assert_close(update(x), plain.update(x))
        torch.testing.assert_close(compiled.weight, plain.weight)
        torch.testing.assert_close(value(x), plain.value(x))
        compiled.weight.add_(0.1)  # somebody else writes, as resets do
        plain.weight.add_(0.1)
    assert isinstance(update.function, Program)
    assert isinstance(value.function, Program)
    assert update(x) is compiled.seen


@compiles
def test_nothing_is_moved_by_making_one() -> None:
    small = Small()
    before, x = small.weight.clone(), torch.ones(4)
    Program(small.update, x)
    assert torch.equal(small.weight, before)
    assert not small.seen.any()


@compiles
def test_numbers_that_are_not_finite_are_no_difference() -> None:
    """As the values of actions that may not be played are."""
    weight, never = torch.tensor([0.3, 0.7, torch.nan]), torch.tensor([False, True, False])
    program = Program(lambda x: (weight * x).masked_fill(never, -torch.inf), torch.ones(3))
    torch.testing.assert_close(program(torch.ones(3)), torch.tensor([0.3, -torch.inf, torch.nan]), equal_nan=True)


def test_what_lies_between_two_tensors_is_the_norm_of_it() -> None:
    one, other = torch.randn(2, 3, 5, dtype=torch.float64).unbind()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("steadyq.device.program.PART", 4)
        size, distance = apart(one, other)
    assert (size, distance) == (pytest.approx(float(one.norm())), pytest.approx(float((one - other).norm())))
    infinite = torch.tensor([3.0, -torch.inf, torch.nan])
    assert apart(infinite, infinite.clone()) == (3, 0)
    assert not math.isfinite(apart(infinite, torch.zeros(3))[1])
    assert apart(torch.tensor([3, 4]), torch.tensor([3, 0])) == (5, 4)


def test_what_reads_a_number_goes_on_as_it_is_and_says_so() -> None:
    """The number would be the same for ever."""
    weight = torch.zeros(2)

    def update(x: Tensor) -> Tensor:
        weight.add_(x)
        return weight.mul_(float(x.sum()))

    with pytest.raises(Unfit, match="a number was read off"):
        Program(update, torch.ones(2))
    assert not weight.any()
    captured = Captured(update, torch.device("cpu"), True)
    with pytest.warns(UserWarning, match="uncompiled, which is slower: a number was read off a tensor"):
        captured(torch.ones(2))
    assert captured(torch.ones(2)).tolist() == [6, 6]


def test_a_compilers_own_words_are_shown_and_not_its_command() -> None:
    command = ["g++", "main.cpp", *("-I" + "x" * 50 for _ in range(9))]
    output = "main.cpp: In function 'run':\nmain.cpp:7:3: error: 'gone' was not declared\n    gone();\n"
    assert complaint(CppCompileError(command, output)) == "main.cpp:7:3: error: 'gone' was not declared"
    assert complaint(Unfit("a number was read off a tensor")) == "a number was read off a tensor"


def test_signals_do_not_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is for the run, which saves its state; without its compiler it would make its last update uncompiled."""
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def compiling(*_: Any, **__: Any) -> None:
        with subprocess.Popen(["sleep", "60"]) as started:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                started.send_signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                started.wait(0.5)
            started.kill()
        raise Unfit("as far as this")

    monkeypatch.setattr("torch._inductor.compile", compiling)
    with pytest.raises(Unfit, match="as far as this"):
        Program(lambda x: x + 1, torch.ones(2))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == heard


@pytest.mark.parametrize("given", [False, True])
def test_programs_are_kept_where_nobody_else_writes(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before anything is recorded, because PyTorch's compiler chooses when it is imported."""
    own = tmp_path / "steadyq" / "programs"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    if not given:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")

    def recorder() -> None:
        raise Unfit(os.environ["TORCHINDUCTOR_CACHE_DIR"])

    monkeypatch.setattr("steadyq.device.program.Recorder", recorder)
    with pytest.raises(Unfit, match=f"^{'elsewhere' if given else own}$"):
        Program(lambda x: x + 1, torch.ones(2))
    assert own.exists() != given
    assert given or own.stat().st_mode & 0o077 == 0


def test_two_names_for_what_is_written_to_are_refused() -> None:
    whole = torch.zeros(4)
    left, right = whole[:2], whole[2:]
    with pytest.raises(Unfit, match="known by two names"):
        Program(lambda x: left.add_(right).add_(x), torch.ones(2))
    assert not whole.any()


def test_a_compiler_is_looked_for_where_the_compiler_is_taken_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not compiler()
