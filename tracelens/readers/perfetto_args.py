"""Perfetto's debug annotations → JSON values. Entries of one name merge; bytes become base64; NaN becomes null."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tracelens.readers.perfetto_sequence import Sequence, text

_PLAIN = frozenset(("int_value", "bool_value", "uint_value", "double_value", "pointer_value"))
_encoder = msgspec.json.Encoder()
NESTED_DICT, NESTED_ARRAY = 1, 2
MAX_NESTING = 200
"""Brackets in a JSON text up to which it is parsed; protobuf itself stops at 100 levels."""


def arguments(annotations: Any, sequence: Sequence) -> dict[str, Any]:
    """The values of a list of annotations by name."""
    made: dict[str, Any] = {}
    names = sequence.argument_names
    for each in annotations:
        name = names.get(each.name_iid, "unknown") if each.name_iid else text(each.name)
        kind = each.WhichOneof("value")
        value = getattr(each, kind) if kind in _PLAIN else _value(each, kind, sequence)
        _put(made, name, value)
    return made


def _put(made: dict[str, Any], name: str, value: Any) -> None:
    old = made.get(name)
    if isinstance(old, dict) and isinstance(value, dict):
        for key, each in value.items():
            _put(old, key, each)
    else:
        made[name] = value


def _value(each: Any, kind: str | None, sequence: Sequence) -> Any:
    """The value of one annotation that is not a plain number."""
    match kind:
        case "string_value_iid":
            return sequence.argument_texts.get(each.string_value_iid)
        case "string_value":
            return text(each.string_value)
        case "nested_value":
            return _nested(each.nested_value)
        case "legacy_json_value":
            return _parsed(text(each.legacy_json_value))
        case None:
            pass
        case _:
            return getattr(each, kind)
    if each.dict_entries:
        return arguments(each.dict_entries, sequence)
    if each.array_values:
        return [_value(one, one.WhichOneof("value"), sequence) for one in each.array_values]
    return each.proto_value if each.HasField("proto_value") else None


def _parsed(content: str) -> Any:
    """The value of JSON text; the text itself where it is none, or nested deeper than anybody reads."""
    if content.count("[") + content.count("{") > MAX_NESTING:
        return content
    try:
        value = json.loads(content)
    except ValueError:
        return content
    return _plain(value) if "\\u" in content else value


def _nested(value: Any) -> Any:
    if value.nested_type == NESTED_DICT:
        return {text(k): _nested(v) for k, v in zip(value.dict_keys, value.dict_values, strict=False)}
    if value.nested_type == NESTED_ARRAY:
        return [_nested(each) for each in value.array_values]
    for name in ("int_value", "double_value", "bool_value"):
        if value.HasField(name):
            return getattr(value, name)
    return text(value.string_value) if value.HasField("string_value") else None


def encoded(values: dict[str, Any]) -> bytes:
    """The arguments as compact strict JSON."""
    try:
        return _encoder.encode(values)
    except (TypeError, ValueError, OverflowError):
        return json.dumps(_plain(values), separators=(",", ":"), ensure_ascii=False, default=repr).encode()


def _plain(value: Any) -> Any:
    """The value without what strict JSON lacks: lone surrogates, NaN and infinity."""
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return None if isinstance(value, float) and value - value != 0 else value


def merged(first: bytes | None, second: bytes) -> bytes:
    """Arguments of a slice's begin and end together."""
    if first is None:
        return second
    made = msgspec.json.decode(first)
    for key, value in msgspec.json.decode(second).items():
        _put(made, key, value)
    return encoded(made)
