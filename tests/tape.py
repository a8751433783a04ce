"""A stand-in for CUDA graphs on any device: the tensor operations of a function, recorded once and replayed.

As strict as the real thing: reading a number from a tensor while recording is an error, numbers of the host are the
ones of the recording, results lie in the same memory after every replay, and hold nothing before the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
SYNCHRONIZING = (aten._local_scalar_dense.default, aten.lift_fresh.default, aten.nonzero.default)
READS = tuple(
    getattr(Tensor, name)
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
)


class NoReads(TorchFunctionMode):
    """In inference mode the numbers of a tensor can be read behind the back of a `TorchDispatchMode`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise _not_permitted(func)
        return func(*args, **(kwargs or {}))


def _not_permitted(func: Any) -> RuntimeError:
    return RuntimeError(f"operation not permitted when stream is capturing: {func}")


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SYNCHRONIZING:
            raise _not_permitted(func)
        result = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, result))
        return result

    def play(self) -> dict[int, Tensor]:
        """New values by the identity of the recorded tensors."""
        values: dict[int, Tensor] = {}
        for func, args, kwargs, result in self.steps:
            args, kwargs = tree_map_only(Tensor, lambda old: values.get(id(old), old), (args, kwargs))
            new = func(*args, **kwargs)
            for old, value in zip(tree_leaves(result), tree_leaves(new), strict=True):
                if isinstance(old, Tensor):
                    values[id(old)] = value
        return values


class TapeRecorder:
    """Implements `models.graphs.Recorder`. `made`: how many recordings, `played`: how many replays."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.made = self.played = self.dropped = 0

    def __call__(self, work: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        work()
        with Tape() as tape, NoReads():
            result = work()
        self.made += 1
        outputs = [item for item in vars(result).values() if isinstance(item, Tensor)]
        for output in outputs:
            output.fill_(float("nan"))

        def replay() -> None:
            self.played += 1
            with torch.inference_mode():
                values = tape.play()
                for output in outputs:
                    output.copy_(values[id(output)])

        return replay, result

    def drop(self) -> None:
        self.dropped += 1
