"""On a CPU, what a captured graph is on a GPU: a function of tensors, recorded once and compiled.

A small network's update is some four hundred operations, most of which take less time than starting them does.
PyTorch's compiler joins them into a few loops in C++.
"""

import operator
import os
import shutil
import signal
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from steadyq.errors import one_line

OPTIONS: dict[str, Any] = {"cpp_wrapper": True, "compile_threads": 1}
"""Of the compiler: what calls the loops is C++ too, and no processes are started to compile side by side."""
CLOSE = 0.02
"""How far what is compiled may lie from what it was recorded from, in relation to it, where both are tried at first."""

KEPT = "TORCHINDUCTOR_CACHE_DIR"
"""The variable that says where PyTorch keeps what it has compiled, and looks for it."""

PART = 2**20
"""Numbers that are compared at a time."""

_recording: ContextVar[bool] = ContextVar("recording", default=False)


def recording() -> bool:
    """Whether what is called now is being recorded: it must ask no tensor for a number."""
    return _recording.get()


def compiler() -> str:
    """The C++ compiler that would be used; empty where there is none, or Python's headers are missing."""
    found = shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++"))
    return found if found and (Path(sysconfig.get_path("include")) / "Python.h").exists() else ""


def complaint(error: Exception) -> str:
    """What is wrong, in one line: what a C++ compiler says first, where its command and all its output are given."""
    said = str(error)
    output = said.partition("Output:\n")[2].splitlines()
    return one_line(next((line for line in output if "error" in line.lower()), said))


class Unfit(RuntimeError):
    """A function that cannot be recorded, or that came out of the compiler wrong."""


class Program:
    """Calls `function(tensor) -> tensor` as one compiled program, under the conditions of `capture.Captured`.

    It is tried on its first argument, beside the function itself, before anything is kept of either; so what it does
    does not depend on when it was made, and a run that is continued goes on to the last bit.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], argument: Tensor) -> None:
        if KEPT not in os.environ:  # before recording imports PyTorch's compiler, which names a folder itself
            os.environ[KEPT] = str(own_folder())
        Recorder().record(function, argument)  # what is made once and kept is made here
        recorder = Recorder()
        wanted = recorder.record(function, argument)
        _, *self.state = recorder.inputs
        self.result = next((each for each in recorder.inputs if each is recorder.result), None)
        self.program = compiled(recorder.module(), recorder.inputs)
        with recorder.undone():
            for one, other in zip(wanted, recorder.left(self(argument)), strict=True):
                size, distance = apart(one, other)
                if not distance <= CLOSE * size + 1e-6:
                    raise Unfit(f"the compiled program is off by {distance:.2g}")

    def __call__(self, argument: Tensor) -> Tensor:
        """Run it."""
        found = self.program(argument, *self.state)
        return found[0] if self.result is None else self.result


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation on tensors, and keeps what was in memory before it is written to.

    A tensor is known by its place in memory: autograd hands the same memory over in other tensors.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.last: Node | None = None  # input
        self.nodes: dict[Any, Node] = {}  # by place
        self.inputs: list[Tensor] = []
        self.made: dict[int, Tensor] = {}  # by storage, and so kept: no address is given away a second time
        self.before: dict[int, tuple[Tensor, Tensor]] = {}  # by storage, what is written to and a copy of it

    def record(self, function: Callable[[Tensor], Tensor], argument: Tensor) -> list[Tensor]:
        """Call the function; returns what it returns and what it leaves in memory, where all is as it was before."""
        self.node(argument)
        with self.undone():
            token = _recording.set(True)
            try:
                with self:
                    self.result = function(argument)
            finally:
                _recording.reset(token)
            return [each.clone() for each in self.left(self.result)]

    def left(self, result: Tensor) -> list[Tensor]:
        """What a call has returned, and all the memory that is known to be written to, as the call has left it."""
        return [result, *(whole for whole, _ in self.before.values())]

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Afterwards all that is known to be written to is as it was before."""
        try:
            yield
        finally:
            for whole, copy in self.before.values():
                whole.copy_(copy)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do one operation, and write it down."""
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise Unfit("a number was read off a tensor")
        given = tree_map(lambda x: self.node(x) if isinstance(x, Tensor) else x, (args, kwargs))
        for tensor in written(func, args, kwargs):
            self.keep(tensor)
        result = func(*args, **kwargs)
        self.name(result, self.graph.call_function(func, *given))
        return result

    def node(self, tensor: Tensor) -> Node:
        """What a tensor is called; one that is not known is an input."""
        found = self.nodes.get(place(tensor))
        if found is None:
            if storage(tensor) in self.made:
                raise Unfit(f"a view came about unseen, of shape {tuple(tensor.shape)}")
            with self.graph.inserting_after(self.last):
                found = self.last = self.graph.placeholder(f"in{len(self.inputs)}")
            self.inputs.append(tensor)
            self.nodes[place(tensor)] = found
        return found

    def name(self, result: Any, node: Node) -> None:
        """Know a tensor by the operation that made it."""
        if isinstance(result, Tensor):
            self.nodes.setdefault(place(result), node)
            if all(storage(each) != storage(result) for each in self.inputs):
                self.made.setdefault(storage(result), result)
        elif isinstance(result, (list, tuple)):
            for index, part in enumerate(result):
                self.name(part, self.graph.call_function(operator.getitem, (node, index)))

    def keep(self, tensor: Tensor) -> None:
        """Copy what is about to be written to, unless it was made here."""
        key = storage(tensor)
        if key not in self.made and key not in self.before:
            if sum(storage(each) == key for each in self.inputs) > 1:
                raise Unfit("what is written to is known by two names")
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            self.before[key] = whole, whole.clone()

    def module(self) -> GraphModule:
        """What was recorded; a result that is an input is not returned as well."""
        known = any(each is self.result for each in self.inputs)
        self.graph.output(() if known else (self.node(self.result),))
        return GraphModule({}, self.graph)


def compiled(module: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """Compile what was recorded, or take it from where the compiler keeps what it has compiled before."""
    from torch._inductor import compile as compile_  # takes a second to import
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fake = FakeTensorMode(shape_env=ShapeEnv())  # without which nothing is kept
    with torch.no_grad(), warnings.catch_warnings(), unheard():
        warnings.simplefilter("ignore")  # the compiler's own
        program: Callable[..., Any] = compile_(
            module, [fake.from_tensor(each, static_shapes=True) for each in inputs], options=OPTIONS
        )
    return program


def own_folder() -> Path:
    """Where programs are kept unless the environment says otherwise: what lies there is run.

    PyTorch's own choice is a folder of a known name among everybody's temporary files.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "steadyq" / "programs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def unheard() -> Iterator[None]:
    """Keep signals that ask for an end from what is started here, which inherits it.

    Ctrl-C reaches every process of a terminal: a C++ compiler that it ended would leave its run uncompiled for the
    update after which it stops, and the run would not go on to the last bit.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def place(tensor: Tensor) -> Any:
    """Where a tensor lies in memory, and how."""
    return storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def storage(tensor: Tensor) -> int:
    """Which memory a tensor is in."""
    found: int = tensor.untyped_storage()._cdata
    return found


def apart(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The first tensor's norm, and that of what lies between the two; numbers that are not finite are equal or not.

    They are looked at in parts: as float64 a replay buffer of images is eight times as large.
    """
    sums = torch.zeros(2, dtype=torch.float64)
    for a, b in zip(torch.split(one.flatten(), PART), torch.split(other.flatten(), PART), strict=True):
        x, y = a.double(), b.double()
        same = (x == y) | (x.isnan() & y.isnan())
        sums += torch.stack((x.where(x.isfinite(), 0.0).square().sum(), (x - y).where(~same, 0.0).square().sum()))
    size, distance = sums.sqrt().tolist()
    return size, distance


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operation writes to."""
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[at] if at < len(args) else kwargs.get(argument.name)
            yield from (each for each in tree_leaves(given) if isinstance(each, Tensor))
