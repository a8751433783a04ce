"""Which rule a request asks for: its own arguments, then the environment, then plain speculative sampling.

    cactus_method   one of `SERVED`; `cactus` where only parameters are given
    cactus_delta, cactus_alpha, …   the parameters of that rule, by their own names

The environment has the same in capitals: CACTUS_METHOD, CACTUS_DELTA, … Knows nothing of vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from cactus.acceptance import RULES, Rule, make_rule
from cactus.errors import CactusError

PREFIX = "cactus_"
METHOD = "method"
PLAIN, LIFTED = "sps", "cactus"
SERVED = {name: rule for name, rule in RULES.items() if not rule.beyond_sampling}
PARAMETERS = tuple(dict.fromkeys(parameter.name for rule in SERVED.values() for parameter in rule.parameters))


def requested_rule(extra_args: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ) -> Rule:
    """The rule of a request. `ValueError` names the argument that is wrong and what is allowed."""
    given = own_arguments(extra_args)
    usual = {name: environ[f"CACTUS_{name.upper()}"] for name in (METHOD, *PARAMETERS) if _is_set(environ, name)}
    default = _method(usual, PLAIN)
    method = _method(given, default)
    if not isinstance(method, str) or method not in SERVED:
        raise CactusError(_refusal(method))
    params = (usual if method == default else {}) | given
    params.pop(METHOD, None)
    try:
        return _made(method, tuple(sorted(params.items())))
    except TypeError:  # a list is no key of the cache, and no value of a parameter
        return make_rule(method, **params)


def own_arguments(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of a request that are meant for this plugin, without their prefix."""
    return {key[len(PREFIX) :]: value for key, value in (extra_args or {}).items() if key.startswith(PREFIX)}


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return bool(environ.get(f"CACTUS_{name.upper()}", "").strip())


def _method(given: Mapping[str, Any], default: str) -> Any:
    """The method that is named, or the one that takes the parameters that are given without a name."""
    lifted = LIFTED if given and default == PLAIN else default
    return given.get(METHOD, lifted)


@lru_cache(maxsize=1024)
def _made(method: str, params: tuple[tuple[str, Any], ...]) -> Rule:
    return make_rule(method, **dict(params))


def _refusal(method: Any) -> str:
    allowed = ", ".join(SERVED)
    rule = RULES.get(method) if isinstance(method, str) else None
    if rule is None:
        return f"{PREFIX}{METHOD} is {method!r:.60}; {allowed} are allowed"
    return f"{PREFIX}{METHOD} {method!r} cannot be served: {rule.beyond_sampling}; {allowed} can"
