"""Flags for the rules' parameters, built from what each rule declares."""

from __future__ import annotations

import argparse
from typing import Any

from cactus.acceptance import RULES, Parameter
from cactus.errors import CactusError

PREFIX = "rule_"  # keeps the values apart from other flags' in the parsed arguments


def add_rule_flags(group: Any) -> None:
    """One flag for each parameter name; rules that share a name share the flag."""
    for name, users in _by_name().items():
        choices = next(iter(users.values())).choices
        group.add_argument(
            _flag(name),
            dest=PREFIX + name,
            metavar="|".join(choices) if choices else "X",
            help=_help(users).replace("%", "%%"),
        )


def rule_params(args: argparse.Namespace, method: str) -> dict[str, Any]:
    """The flags that were given, checked against what `method` declares; CactusError names its flags."""
    declared = {parameter.name: parameter for parameter in (RULES[method].parameters if method in RULES else ())}
    params = {}
    for name in _by_name():
        value = getattr(args, PREFIX + name)
        if value is None:
            continue
        if name not in declared:
            takes = ", ".join(map(_flag, declared)) or "no parameters"
            raise CactusError(f"method {method} has no {_flag(name)}; it takes {takes}")
        params[name] = declared[name].check(value)
    return params


def _by_name() -> dict[str, dict[str, Parameter]]:
    """Parameter name → rule → its declaration."""
    names: dict[str, dict[str, Parameter]] = {}
    for rule in RULES.values():
        for parameter in rule.parameters:
            names.setdefault(parameter.name, {})[rule.name] = parameter
    return names


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _help(users: dict[str, Parameter]) -> str:
    """Rules that describe the parameter alike are named together."""
    rules: dict[str, list[str]] = {}
    for rule, parameter in users.items():
        words = f"{parameter.label}, {parameter.range}, default {parameter.default}"
        rules.setdefault(words, []).append(rule)
    return "; ".join(f"{', '.join(names)}: {words}" for words, names in rules.items())
