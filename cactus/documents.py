"""JSON documents from outside: bounded, checked against their model, and refused by the place that is wrong.

    rounds[3].tokens[0].accept_prob is 1.4; a number from 0 to 1 is allowed

What is allowed is read from the JSON Schema of the model itself, so messages, checks and the published schema have one
source. Of equal keys in an object the last one counts, as everywhere; a byte-order mark is skipped; keys that the model
does not know are ignored, so that a version may gain some; another version of the schema is refused by its name. Knows
nothing of what a document means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import from_json

from cactus.errors import CactusError

MAX_BYTES = 32 * 1024 * 1024
MAX_PIECES = 2_500_000  # lists, objects and their members: what a document costs in memory goes by these
MAX_ENTRIES = 64  # of an object that takes any keys: each bad entry would be an error of its own
MAX_WHOLE = 2**53 - 1  # beyond it JavaScript, and so the page, no longer tells neighbours apart
SHOWN = 40  # characters of a bad value
BOM = b"\xef\xbb\xbf"

Place = tuple[str | int, ...]


class TraceError(CactusError):
    """A document cannot be used; the message names the first place that is wrong, and what is allowed there."""


class Record(BaseModel):
    """A frozen record without guessing: no text is taken for a number, and unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, ser_json_inf_nan="strings")


Model = TypeVar("Model", bound=BaseModel)


def _few(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_ENTRIES:
        raise ValueError(f"it has {len(value):,} entries; at most {MAX_ENTRIES} are allowed")
    return value


Value = TypeVar("Value")
Many = Annotated[tuple[Value, ...], Field(fail_fast=True)]  # the first bad one ends it, however many there are
Entries = Annotated[dict[str, Value], BeforeValidator(_few), Field(max_length=MAX_ENTRIES)]


class _Untitled(GenerateJsonSchema):
    """Without a title made of each name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def read_document(text: str | bytes, what: str, *models: type[Model]) -> Model:
    """A document of the model whose version it states; `what` names it in errors.

    `TraceError` for anything else. Time and memory are bounded whatever it holds.
    """
    raw = _raw(text)
    pieces = sum(raw.count(mark) for mark in (b"[", b"{", b","))
    for size, most, unit in ((len(raw), MAX_BYTES, "bytes"), (pieces, MAX_PIECES, "lists, objects and members")):
        if size > most:
            raise TraceError(f"the {what} has {size:,} {unit}; at most {most:,} are read")
    try:
        document = from_json(raw, allow_inf_nan=False)  # the validator's own reader takes NaN, which JSON has not
    except ValueError as error:
        raise TraceError(f"not a usable {what}: not JSON: {error}") from None
    model = _stated(models, document, what)
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise TraceError(f"not a usable {what}: {_fault(error, document, schema_of(model))}") from None


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a document; its `$id` is the version that documents state as `schema`."""
    made = model.model_json_schema(schema_generator=_Untitled)
    made["required"] = ["schema", *made.get("required", [])]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": _version(model), **made}


def _version(model: type[BaseModel]) -> str:
    return str(model.model_fields["schema_"].default)


def _raw(text: object) -> bytes:
    if isinstance(text, str):
        try:
            return text.encode().removeprefix(BOM)
        except UnicodeEncodeError as error:
            raise TraceError(f"character {error.start} is half a character (U+{ord(text[error.start]):04X})") from None
    if isinstance(text, bytes):
        return text.removeprefix(BOM)
    raise TraceError(f"a document is read from text or bytes, got {type(text).__name__}")


def _stated(models: Sequence[type[Model]], document: object, what: str) -> type[Model]:
    """The model of the version that a document states."""
    known = {_version(model): model for model in models}
    allowed = ", ".join(map(repr, known))
    if not isinstance(document, dict):
        raise TraceError(f"not a usable {what}: the document is {_shown(document)}; an object is allowed")
    if "schema" not in document:
        raise TraceError(f"not a usable {what}: schema is missing; {allowed} is allowed")
    stated = document["schema"]
    if isinstance(stated, str) and stated in known:
        # Here, since the validator would copy the whole document into the error of each key.
        if missing := [name for name in schema_of(known[stated])["required"] if name not in document]:
            raise TraceError(f"not a usable {what}: {missing[0]} is missing")
        return known[stated]
    families = {version.partition("/")[0] for version in known}
    other = isinstance(stated, str) and stated.partition("/")[0] in families
    why = ": another version of the format than this program reads" if other else ""
    raise TraceError(f"not a usable {what}: schema is {_shown(stated)}; {allowed} is allowed{why}")


# --- which place is wrong, and what is allowed there --------------------------------------------


def _fault(error: ValidationError, document: object, schema: dict[str, Any]) -> str:
    """The first fault; of the alternatives of one value, the one that got furthest into it."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)  # else each copies it whole
    found = [(_place(each["loc"], document, each["type"] == "missing"), each) for each in faults]
    first = found[0][0][:1]
    place, fault = max((entry for entry in found if entry[0][:1] == first), key=lambda entry: len(entry[0]))
    name = _written(place)
    if fault["type"] == "missing":
        return f"{name} is missing"
    if fault["type"] == "value_error":
        return f"{name}: {fault['msg'].removeprefix('Value error, ')}"
    return f"{name} is {_shown(_at(place, document))}; {_allowed(_part(place, schema), schema)} is allowed"


def _place(loc: Sequence[str | int], document: Any, missing: bool) -> Place:
    """The path through the document: a location without the names of alternatives that were tried."""
    place: list[str | int] = []
    for part in loc:
        if _has(document, part):
            document = document[part]
            place.append(part)
    return (*place, loc[-1]) if missing else tuple(place)


def _has(document: Any, part: str | int) -> bool:
    if isinstance(document, dict):
        return part in document
    return isinstance(document, list) and isinstance(part, int) and part < len(document)


def _at(place: Place, document: Any) -> Any:
    for part in place:
        document = document[part]
    return document


def _written(place: Place) -> str:
    """rounds[3].tokens[0].text; keys that are no plain words in quotes, and not all of them."""
    parts = [
        f".{part}" if isinstance(part, str) and re.fullmatch(r"\w{1,40}", part, re.ASCII) else f"[{part!r:.40}]"
        for part in place
    ]
    return "".join(parts).removeprefix(".") or "the document"


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Mapping):
        return "an object"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _part(place: Place, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of what stands at a place; an empty one where it is not known."""
    node = schema
    for part in place:
        options = [_resolved(option, schema) for option in _options(_resolved(node, schema))]
        steps = [_step(option, part) for option in options]
        node = next((step for step in steps if step is not None), {})
    return node


def _step(node: dict[str, Any], part: str | int) -> dict[str, Any] | None:
    if isinstance(part, int):
        return node.get("items")
    inner = node.get("properties", {}).get(part, node.get("additionalProperties"))
    return inner if isinstance(inner, dict) else None


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = node.get("$ref", "").rpartition("/")[2]
    return schema["$defs"][name] if name else node


def _options(node: dict[str, Any]) -> list[dict[str, Any]]:
    return list(node.get("anyOf", [node]))


def _allowed(node: dict[str, Any], schema: dict[str, Any]) -> str:
    words = dict.fromkeys(_kind(_resolved(option, schema)) for option in _options(_resolved(node, schema)))
    plain = "a number" in words  # then whole ones need no mention
    return " or ".join(word for word in words if not (plain and word.startswith("a whole number")))


def _kind(node: dict[str, Any]) -> str:
    choices = [node["const"]] if "const" in node else node.get("enum")
    if choices:
        return ", ".join(map(repr, choices))
    names = {"number": "a number", "integer": "a whole number", "string": "text", "array": "a list",
             "object": "an object", "null": "null"}  # fmt: skip
    return names.get(node.get("type", ""), "something else") + _range(node)


def _range(node: dict[str, Any]) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if "exclusiveMinimum" in node:
        return f" above {node['exclusiveMinimum']:g}" + ("" if high is None else f", up to {high:g}")
    if low is not None and high is not None:
        return f" from {low:.16g} to {high:.16g}"
    return "" if low is None else f" of at least {low:g}"
