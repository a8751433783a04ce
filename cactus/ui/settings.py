"""What a visitor can choose: one declaration per control, read by the page, the share link and the checks.

Knows no component: `layout` builds controls from these records. The parameters of a method come from its rule, so
a new rule needs no line here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlencode

from cactus.acceptance import RULES, Parameter
from cactus.errors import CactusError
from cactus.limits import MAX_PROMPT_CHARACTERS
from cactus.request import VERIFIER_ONLY, RunRequest
from cactus.sampling import SamplingParams
from cactus.settings import AUTO, DEFAULT_DRAFT_TOKENS, MAX_DRAFT_TOKENS, MAX_SEED

LONGEST_RUN = 512  # what the page offers; the API and the command line go further
MAX_LINK_TEXT = 4_000

SHARED = (
    Parameter(
        "draft_length", "Draft length m", DEFAULT_DRAFT_TOKENS,
        "Proposed per pass; 0: as many as pay.", 0, MAX_DRAFT_TOKENS, 1,
    ),
    Parameter("max_new_tokens", "Max new tokens", 128, "The text ends by then.", 1, LONGEST_RUN, 1),
    Parameter("temperature", "Temperature", 0.7, "0: always the likeliest.", 0.0, 2.0, 0.05),
    Parameter("top_p", "Top-p", 1.0, "Keep the likeliest share.", 0.05, 1.0, 0.05),
    Parameter("top_k", "Top-k", 0, "Keep so many; 0 keeps all.", 0, 200, 1),
)  # fmt: skip
SEED = Parameter("seed", "Seed", 0, "Empty: new for each run.", 0, MAX_SEED, 1)
CHAT, COMPLETION = "chat", "completion"
PROMPT_AS = Parameter(
    "prompt_as", "Prompt as", CHAT, "Through the chat template, or a text to go on from.", choices=(CHAT, COMPLETION)
)
TEXTS = ("system", "prompt")

Pairs = Mapping[str, str]
"""The pairs there are by name, and why one cannot be used here; empty where it can."""


@dataclass(frozen=True)
class Method:
    """An entry of the method list: an acceptance rule, or the verifier alone."""

    name: str
    label: str
    summary: str
    formula: str
    parameters: tuple[Parameter, ...] = ()

    def key(self, parameter: Parameter) -> str:
        """The name under which the value of one of its parameters travels inside the page."""
        return f"{self.name}.{parameter.name}"

    def elem_id(self, parameter: Parameter) -> str:
        """The id of a parameter's control; the default method's go by their own names."""
        own = parameter.name if self.name == RunRequest.method else f"{self.name}-{parameter.name}"
        return own.replace("_", "-")


@cache
def methods() -> Mapping[str, Method]:
    """Every method by name, the verifier alone last."""
    known = {
        rule.name: Method(rule.name, _method_label(rule), rule.summary, rule.formula, rule.parameters)
        for rule in RULES.values()
    }
    alone = "One verifier pass for every token, nothing drafted: the baseline."
    return known | {VERIFIER_ONLY: Method(VERIFIER_ONLY, "Verifier only", alone, "x ~ q")}


def _method_label(rule: Any) -> str:
    return f"{rule.label} · lossless" if rule.lossless else rule.label


def control_keys() -> list[str]:
    """The keys of all controls, in the order in which their values travel."""
    own = [method.key(parameter) for method in methods().values() for parameter in method.parameters]
    return ["pair", "method", *own, *(parameter.name for parameter in SHARED), "seed", PROMPT_AS.name, *TEXTS]


def defaults() -> dict[str, Any]:
    """What the controls hold when the page opens."""
    own = {method.key(param): param.default for method in methods().values() for param in method.parameters}
    shared = {parameter.name: parameter.default for parameter in SHARED}
    first = {"pair": RunRequest.pair, "method": RunRequest.method}
    texts = {PROMPT_AS.name: PROMPT_AS.default, "system": "", "prompt": ""}
    return {**first, **own, **shared, "seed": SEED.default, **texts}


def problems(values: Mapping[str, Any], pairs: Pairs) -> dict[str, str]:
    """What is wrong with which control, in words for the person who set it; empty when all is well."""
    found: dict[str, str] = {}
    for key, check in _checks(values, pairs):
        try:
            check(values.get(key))
        except ValueError as error:
            found[key] = str(error)
    return found


def to_request(values: Mapping[str, Any], pairs: Pairs) -> RunRequest:
    """The run that these values ask for. `ValueError` says what is wrong with the first bad one."""
    wrong = problems(values, pairs)
    if wrong:
        raise CactusError(next(iter(wrong.values())))
    clean = {key: check(values.get(key)) for key, check in _checks(values, pairs)}
    method, raw = methods()[clean["method"]], clean[PROMPT_AS.name] == COMPLETION
    sampling = SamplingParams(temperature=clean["temperature"], top_p=clean["top_p"], top_k=clean["top_k"])
    return RunRequest(
        pair=clean["pair"],
        method=method.name,
        params={parameter.name: clean[method.key(parameter)] for parameter in method.parameters},
        num_draft_tokens=clean["draft_length"] or AUTO,
        sampling=sampling,
        max_new_tokens=clean["max_new_tokens"],
        seed=clean["seed"],
        prompt=clean["prompt"],
        system="" if raw else clean["system"],
        raw=raw,
    )


def to_query(values: Mapping[str, Any]) -> str:
    """The settings as a URL query; what is at its default, or too long for a link, is left out."""
    usual = defaults()
    query = {key: values[key] for key in ("pair", "method") if values[key] != usual[key]}
    for key, parameter in _own(values["method"]):
        _put(query, parameter.name, values[key], parameter.default)
    for parameter in SHARED:
        _put(query, parameter.name, values[parameter.name], parameter.default)
    _put(query, "seed", "random" if values["seed"] in (None, "") else values["seed"], usual["seed"])
    _put(query, PROMPT_AS.name, values[PROMPT_AS.name], PROMPT_AS.default)
    for key in TEXTS:
        if len(values[key] or "") <= MAX_LINK_TEXT:
            _put(query, key, values[key] or "", "")
    return urlencode(query)


def from_query(query: Mapping[str, str], pairs: Pairs) -> tuple[dict[str, Any], list[str]]:
    """The values a link sets, and a complaint for each one that is ignored."""
    values: dict[str, Any] = {}
    complaints: list[str] = []
    method = methods().get(query.get("method", defaults()["method"]), methods()[defaults()["method"]])
    names = {parameter.name: method.key(parameter) for parameter in method.parameters}
    checks = dict(_checks({"method": method.name}, pairs))
    for name, text in query.items():
        key = names.get(name, name)
        if key not in checks or "." in name:
            if not name.startswith("_"):
                complaints.append(f"{name[:60]!r} is not a setting of {method.label}")
            continue
        raw = None if key == "seed" and text == "random" else text
        try:
            values[key] = text if key == "prompt" else checks[key](raw)
        except ValueError as error:
            complaints.append(str(error))
    return values, complaints


def _put(query: dict[str, Any], name: str, value: Any, usual: Any) -> None:
    if value != usual:
        query[name] = value


def _checks(values: Mapping[str, Any], pairs: Pairs) -> Iterator[tuple[str, Any]]:
    """Each key that matters for the chosen method, with the function that reads its value."""
    yield "pair", lambda value: _read_pair(value, pairs)
    yield "method", lambda value: _one_of("method", value, methods())
    for key, parameter in _own(values.get("method")):
        yield key, parameter.check
    for parameter in SHARED:
        yield parameter.name, parameter.check
    yield "seed", read_seed
    yield PROMPT_AS.name, PROMPT_AS.check
    yield "system", _read_text
    yield "prompt", _read_prompt


def _own(name: Any) -> list[tuple[str, Parameter]]:
    """The parameters of a method, with their keys; none for a method there is not."""
    method = methods().get(name) if isinstance(name, str) else None
    return [(method.key(parameter), parameter) for parameter in method.parameters] if method else []


def _one_of(what: str, value: Any, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise CactusError(f"{what} must be one of {', '.join(allowed)}, got {str(value)[:60]!r}")
    return value


def _read_pair(value: Any, pairs: Pairs) -> str:
    name = _one_of("pair", value, pairs)
    if pairs[name]:
        raise CactusError(pairs[name])
    return name


def read_seed(value: Any) -> int | None:
    """A whole number, or None where a fresh one is wanted."""
    if value is None or value == "":
        return None
    try:
        return int(SEED.check(value))
    except ValueError:
        raise CactusError(f"seed must be empty or a whole number up to {MAX_SEED:,}, got {str(value)[:40]}") from None


def _read_text(value: Any) -> str:
    if not isinstance(value or "", str):
        raise CactusError("the system prompt must be text")
    if len(value or "") > MAX_PROMPT_CHARACTERS:
        raise CactusError(f"the text is {len(value):,} characters long; at most {MAX_PROMPT_CHARACTERS:,} are read")
    return value or ""


def _read_prompt(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise CactusError("the prompt is empty: write one, or pick an example")
    return _read_text(value)


def as_values(row: Sequence[Any]) -> dict[str, Any]:
    """The values of all controls by key, from the row in which they travel."""
    return dict(zip(control_keys(), row, strict=True))
