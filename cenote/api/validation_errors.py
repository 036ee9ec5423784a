"""Schema errors in the format of vLLM's server: a count, then a line per error with the keys of pydantic's errors."""

from __future__ import annotations

import re
import reprlib

from cenote.errors import InvalidBody

# pydantic's names of type errors, by msgspec's name of the expected type; of several expected types, the first one here
TYPE_ERROR_KINDS = {
    "str": "string_type",
    "int": "int_type",
    "float": "float_type",
    "bool": "bool_type",
    "array": "list_type",
    "object": "dict_type",
}
# pydantic parses numbers and booleans in strings, so that any other string is an error of the parser
PARSING_ERROR_KINDS = {"int": "int_parsing", "float": "float_parsing", "bool": "bool_parsing"}
BOUND_ERROR_KINDS = {"<=": "less_than_equal", ">=": "greater_than_equal", "<": "less_than", ">": "greater_than"}

EXPECTED_TYPE_PATTERN = re.compile(r"Expected `(?P<types>[^`]+)`(?:, got `(?P<got>\w+)`| (?P<bound>[<>]=?) )?")


def _make_input_repr() -> reprlib.Repr:
    """Return the shortened repr of invalid values: they may be whole bodies."""
    short_repr = reprlib.Repr()
    short_repr.maxlevel = 4
    short_repr.maxstring = short_repr.maxother = 200
    return short_repr


INPUT_REPR = _make_input_repr()


def classify_error(msgspec_message: str) -> str:
    """Return pydantic's name for an error of msgspec."""
    if msgspec_message.startswith("Object missing required field"):
        return "missing"
    if msgspec_message.startswith("Invalid enum value"):
        return "literal_error"
    match = EXPECTED_TYPE_PATTERN.match(msgspec_message)
    if match is None:
        return "value_error"
    if match["bound"]:
        return BOUND_ERROR_KINDS[match["bound"]]
    expected_types = match["types"].split(" | ")
    expected = next((name for name in TYPE_ERROR_KINDS if name in expected_types), "")
    kinds = PARSING_ERROR_KINDS if match["got"] == "str" and expected in PARSING_ERROR_KINDS else TYPE_ERROR_KINDS
    return kinds.get(expected, "value_error")


def format_validation_error(error: InvalidBody) -> str:
    """Return the message of a response: the error as Python's repr of a dict, with `input` if it is known."""
    if error.kind is None:
        return error.message
    location = tuple(int(part) if part.isdecimal() else part for part in (error.param or "body").split("."))
    fields = f"'type': {error.kind!r}, 'loc': {location!r}, 'msg': {error.message!r}"
    if error.value is not None:
        fields += f", 'input': {INPUT_REPR.repr(error.value)}"
    return f"1 validation error:\n  {{{fields}}}"
