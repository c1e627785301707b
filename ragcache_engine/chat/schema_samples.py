"""Make a small value that fits a JSON schema, for the engine without a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ragcache_engine.errors import UnsupportedGuide
from ragcache_engine.visible import quoted

LONGEST = 10_000
"""How many items or characters a made-up value has at most."""

DEEPEST = 32
"""How deep a value may be nested; a schema that needs more levels probably contains itself."""
_UNKNOWN = ("pattern", "format", "not", "if", "allOf", "patternProperties", "contains")


def make_sample(schema: Mapping[str, Any]) -> Any:
    """Make a value with only the required parts; where the schema leaves a choice, take the first.

    Raises UnsupportedGuide for a schema that this function does not fully understand.
    """
    try:
        return _make_sample(schema, schema, 0)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise _unsupported(f"it is no schema ({type(error).__name__})") from error


def _make_sample(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if schema is True:
        return None
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        raise _unsupported("it contains itself, or it is not a schema")
    if unknown := [name for name in _UNKNOWN if name in schema]:
        raise _unsupported(f"it uses {', '.join(unknown)}")
    if "$ref" in schema:
        return _make_sample(_resolve_reference(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf"):
        if schema.get(choice):
            return _make_sample(schema[choice][0], root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "null")
    kind = kind[0] if isinstance(kind, list) else kind
    match kind:
        case "object":
            properties = schema.get("properties", {})
            return {
                name: _make_sample(properties.get(name, True), root, depth + 1)
                for name in schema.get("required", ())
            }
        case "array":
            item, least = schema.get("items", True), _short(schema.get("minItems", 0))
            return [_make_sample(item, root, depth + 1) for _ in range(least)]
        case "string":
            text = "text"[: schema.get("maxLength", 4)]
            return text.ljust(_short(schema.get("minLength", 0)), ".")
        case "integer" | "number":
            return _number(schema, whole=kind == "integer")
        case "boolean":
            return False
        case "null":
            return None
    raise _unsupported(f"it asks for the type {kind!r}")


def _short(least: int) -> int:
    if least > LONGEST:
        raise _unsupported(f"it asks for {least:,} items or characters")
    return least


def _number(schema: Mapping[str, Any], *, whole: bool) -> float:
    if "multipleOf" in schema:
        raise _unsupported("it uses multipleOf")
    low = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf))
    high = schema.get("maximum", schema.get("exclusiveMaximum", math.inf))
    value: float = min(max(0, low), high)
    if whole:
        value = math.ceil(value) if value == low else math.floor(value)
    if value == schema.get("exclusiveMinimum"):
        value += 1 if whole or high == math.inf else (high - value) / 2
    if value == schema.get("exclusiveMaximum"):
        value -= 1 if whole or low == -math.inf else (value - low) / 2
    return value


def _resolve_reference(reference: str, root: Mapping[str, Any]) -> Any:
    at: Any = root
    try:
        for step in reference.removeprefix("#").strip("/").split("/"):
            at = at[step.replace("~1", "/").replace("~0", "~")] if step else at
    except (KeyError, TypeError):
        raise _unsupported(f"it refers to {quoted(reference)}, which does not exist") from None
    return at


def _unsupported(why: str) -> UnsupportedGuide:
    return UnsupportedGuide(
        f"the memory backend has no model, and cannot make a value for this JSON schema: {why}. Use a "
        f"MemoryBackend whose reply is such JSON, or backend='vllm'"
    )
