"""Methods as written on a command line: `ar`, `sps`, `cactus:delta=1`, `cactus_exact:delta=1:divergence=js`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cactus.acceptance import RULES
from cactus.errors import CactusError
from cactus.request import METHODS, VERIFIER_ONLY
from cactus.settings import DraftLength, parse_draft_length

T = TypeVar("T")


@dataclass(frozen=True)
class MethodSpec:
    """A method and the parameters that were given for it; the others stay at their defaults."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={_plain(value)}" for key, value in self.params.items())])

    @property
    def drafts(self) -> bool:
        """Whether it drafts at all."""
        return self.name != VERIFIER_ONLY

    @property
    def label(self) -> str:
        """For people: "Cactus, delta = 1"."""
        if not self.drafts:
            return "Verifier only"
        name = RULES[self.name].label if self.name in RULES else self.name  # a trace may come from another version
        return ", ".join([name, *(f"{key} = {_plain(value)}" for key, value in self.params.items())])


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_methods(text: str) -> list[MethodSpec]:
    """A comma-separated list; `CactusError` names what is wrong and what is allowed."""
    return _distinct("methods", [parse_method(part) for part in _parts("methods", text)])


def parse_method(text: str) -> MethodSpec:
    """One method with its parameters behind colons."""
    name, *assignments = text.strip().split(":")
    if name not in METHODS:
        raise CactusError(f"method is {name!r:.60}; {', '.join(METHODS)} are allowed, parameters as in cactus:delta=1")
    declared = {parameter.name: parameter for parameter in (RULES[name].parameters if name in RULES else ())}
    params: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or key not in declared:
            takes = ", ".join(f"{known}=…" for known in declared) or "no parameters"
            raise CactusError(f"method {text!r:.60}: {assignment!r:.60} is no parameter of {name}; it takes {takes}")
        if key in params:
            raise CactusError(f"method {text!r:.60}: {key} is given twice")
        params[key] = declared[key].check(value)
    return MethodSpec(name, params)


def parse_draft_lengths(text: str) -> list[DraftLength]:
    """A comma-separated list of numbers of tokens, "auto" among them where as many as pay are wanted."""
    return _distinct("draft lengths", [parse_draft_length(part) for part in _parts("draft lengths", text)])


def _parts(what: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise CactusError(f"{what} is {text!r:.60}; a list without empty places is needed, separated by commas")
    return parts


def _distinct(what: str, items: Sequence[T]) -> list[T]:
    for index, item in enumerate(items):
        if item in items[:index]:
            raise CactusError(f"{what}: {item} is given twice")
    return list(items)
