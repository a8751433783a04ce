"""Counts how often a program looks at numbers of a tensor: on an accelerator each look waits for the device.

Everything runs on the CPU, where a look is free and nothing else would tell.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
LOOKS = tuple(
    getattr(Tensor, name)
    for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__")
)
# Functions and operations whose result has as many elements as the numbers say.
SIZED_FUNCTIONS = tuple(
    getattr(where, name)
    for where in (torch, Tensor)
    for name in ("nonzero", "masked_select", "unique", "repeat_interleave", "argwhere")
)
SIZED = (aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.repeat_interleave.Tensor)

INDEXING = (Tensor.__getitem__, Tensor.__setitem__)
WHERE = (torch.where, Tensor.where)


class _Functions(TorchFunctionMode):
    """Sees what is called on tensors from Python; in inference mode that passes a `TorchDispatchMode` by."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found
        self.inside = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        looks = func in LOOKS or func in SIZED_FUNCTIONS or (func in WHERE and len(args) == 1)
        looks = looks or (func in INDEXING and _looks(args[1]))
        if looks and not self.inside:
            self.found.append(func.__name__)
        self.inside += looks  # one look, however it is made
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside -= looks


class _Operations(TorchDispatchMode):
    def __init__(self, functions: _Functions) -> None:
        super().__init__()
        self.functions = functions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.functions.inside and (func in SIZED or func is aten._local_scalar_dense.default):
            self.functions.found.append(str(func))
        return func(*args, **(kwargs or {}))


def _looks(index: Any) -> bool:
    """A mask selects as many elements as it says; a tensor without dimensions is turned into a number."""
    places = index if isinstance(index, tuple) else (index,)
    return any(isinstance(place, Tensor) and (place.dtype == torch.bool or place.dim() == 0) for place in places)


class Looks:
    """`with Looks() as looks: …` — `looks.found` names them."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __enter__(self) -> Looks:
        self._functions = _Functions(self.found)
        self._operations = _Operations(self._functions)
        self._operations.__enter__()
        self._functions.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._functions.__exit__(*error)
        self._operations.__exit__(*error)
