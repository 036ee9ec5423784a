"""Sizes of what a template is about to build, computed before it is built."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from string import Formatter
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

# of numbers, None, objects with a short text
SCALAR_CHARS = 32
# memory of a short string and its entry in a list, as made by split()
LIST_ITEM_BYTES = 64
# a list of that many parts, as in the sandbox's limit on range()
MAX_PARTS = 100_000
MAX_ROUND_DIGITS = 308
# textwrap takes about a second for a text of this length, and copies the rest of a long word for each line of it
MAX_WRAPPED_CHARS, MAX_WRAP_COPIES = 500_000, 1_000_000_000
CONTAINERS = (list, tuple, set, frozenset, Mapping, KeysView, ValuesView, ItemsView, Namespace)

PERCENT_FIELD = re.compile(r"%(\([^()]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?")
SizeEstimate = Callable[..., int]


def count_chars(value: Any, limit: int, *, per_item: int = 2, indent: int = 0) -> int:
    """Return about the length of str(value) without making it; stops above `limit`.

    `per_item`: characters between items; `indent`: characters before each item, for every level.
    """
    if isinstance(value, str):  # as nearly always
        return len(value)
    total, stack = 0, [(value, 1)]
    while stack and total <= limit:
        item, depth = stack.pop()
        if isinstance(item, str):
            total += len(item) + 2
        elif isinstance(item, bytes):
            total += 4 * len(item)
        elif isinstance(item, int):
            total += SCALAR_CHARS + item.bit_length() // 3
        elif isinstance(item, CONTAINERS):
            children = _children(item)
            total += len(children) * (per_item + indent * depth) + 2
            if total <= limit:
                stack.extend((child, depth + 1) for child in children)
        else:
            total += SCALAR_CHARS
    return total


def _children(container: Any) -> Sequence[Any]:
    if isinstance(container, Namespace):
        container = container._Namespace__attrs
    if isinstance(container, Mapping):
        return [*container.keys(), *container.values()]
    return container if isinstance(container, list | tuple) else list(container)


def count_bytes(value: Any) -> int:
    """Return about the memory that an operation has allocated for its result."""
    size = sys.getsizeof(value, 0)
    return size + LIST_ITEM_BYTES * len(value) if isinstance(value, list | tuple) else size


def percent_format_chars(text: str | bytes, values: Any, limit: int) -> int:
    """Return the length of `text % values`, or more."""
    text = text if isinstance(text, str) else text.decode("latin-1")  # bytes have the same fields
    width = 0
    for match in PERCENT_FIELD.finditer(text):
        if text[match.end() : match.end() + 1] == "(":
            raise SecurityError("parentheses in the name of a % field are not supported")
        width += sum(_number(part, values) for part in match.groups()[1:] if part)
    return len(text) + width + text.count("%") * (count_chars(values, limit) + SCALAR_CHARS)


def brace_format_chars(text: str, values: Any, limit: int) -> int:
    """Return the length of `text.format(...)`, or more."""
    width = num_fields = 0
    for _, field, spec, _ in Formatter().parse(text):
        if field is not None:
            num_fields += 1
            width += sum(_number(part, values) for part in re.findall(r"\d+|\{", spec or ""))
    return len(text) + width + num_fields * (count_chars(values, limit) + SCALAR_CHARS)


def _number(digits: str, values: Any) -> int:
    """Return a width; the largest of the values where it is one of them."""
    if digits.isdecimal():
        return int(digits)
    items = _children(values) if isinstance(values, Mapping | list | tuple) else [values]
    flat: list[Any] = [
        part for item in items for part in (_children(item) if isinstance(item, Mapping | tuple) else [item])
    ]
    return max((abs(item) for item in flat if isinstance(item, int)), default=0)


def replaced_chars(text: Any, old: Any, new: Any, count: int | None = None, *, limit: int) -> int:
    """Return the length of `text.replace(old, new)`, or more."""
    length, new_length = count_chars(text, limit), count_chars(new, limit)
    if isinstance(text, str | bytes) and isinstance(old, str | bytes):
        num_found = text.count(old) if old else len(text) + 1  # type: ignore[arg-type]
    else:
        num_found = length + 1
    if isinstance(count, int) and count >= 0:
        num_found = min(num_found, count)
    return length + num_found * new_length


def joined_chars(separator: Any, items: Any, limit: int) -> int:
    if not hasattr(items, "__len__"):
        return 0  # the join raises
    num_items: int = len(items)
    return count_chars(items, limit) + num_items * count_chars(separator, limit)


def indented_chars(text: Any, width: Any, limit: int) -> int:
    line_chars = width if isinstance(width, int) else count_chars(width, limit)
    lines = len(text.splitlines()) + 1 if isinstance(text, str) else 1
    return count_chars(text, limit) + lines * max(0, line_chars)


def wrapped_chars(text: Any, width: Any, separator: Any, limit: int) -> int:
    if not isinstance(text, str) or not isinstance(width, int):
        return 0  # the filter raises
    width = int(max(1, width))
    if len(text) > MAX_WRAPPED_CHARS or len(text) ** 2 // width > MAX_WRAP_COPIES:
        raise SecurityError(f"a text of {len(text)} characters is too long to be wrapped at width {width}")
    lines: int = 2 * len(text) // width + len(text.splitlines()) + 1
    return len(text) + lines * count_chars("\n" if separator is None else separator, limit)


def added_lists_chars(items: Any, start: Any) -> int:
    """Return the items that are copied when lists are added one by one; 0 for numbers."""
    if not isinstance(items, list | tuple):
        return 0
    lengths = [len(item) for item in (start, *items) if isinstance(item, str | list | tuple)]
    return sum(lengths) * len(lengths)


def check_parts(number: Any) -> int:
    if isinstance(number, int) and number > MAX_PARTS:
        raise SecurityError(f"{number} parts are too many; the limit is {MAX_PARTS}")
    return 0


def check_digits(number: Any) -> int:
    if isinstance(number, int) and abs(number) > MAX_ROUND_DIGITS:
        raise SecurityError(f"{number} digits are too many; the limit is {MAX_ROUND_DIGITS}")
    return 0


def make_filter_estimates(limit: Callable[[], int]) -> dict[str, SizeEstimate]:
    """Return by filter a function of the filter's arguments: the characters that the filter writes, or more."""
    return {
        "batch": lambda value, linecount, fill_with=None: check_parts(linecount),
        "center": lambda value, width=80: max(count_chars(value, limit()), width if isinstance(width, int) else 0),
        "format": lambda value, *args, **kwargs: percent_format_chars(str(value), kwargs or args, limit()),
        "indent": lambda s, width=4, first=False, blank=False: indented_chars(s, width, limit()),
        "join": lambda value, d="", attribute=None: joined_chars(d, value, limit()),
        "replace": lambda s, old, new, count=None: replaced_chars(s, old, new, count, limit=limit()),
        "round": lambda value, precision=0, method="common": check_digits(precision),
        "slice": lambda value, slices, fill_with=None: check_parts(slices),
        "sum": lambda value, attribute=None, start=0: added_lists_chars(value, start),
        "tojson": lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: count_chars(
            value,
            limit(),
            per_item=4 + count_chars(separators, limit()),
            indent=indent if isinstance(indent, int) else count_chars(indent, limit()),
        ),
        "wordwrap": lambda s, width=79, break_long_words=True, wrapstring=None, break_on_hyphens=True: wrapped_chars(
            s, width, wrapstring, limit()
        ),
    }


def estimate_method(owner: Any, name: str, args: Sequence[Any], limit: int) -> int:
    """Return the length of what a method of a string or a number returns, or more; 0 where it is not longer."""
    width = next((arg for arg in args if isinstance(arg, int)), 0)
    if isinstance(owner, int):
        return width if name == "to_bytes" else 0
    if not isinstance(owner, str | bytes):
        return 0
    if name in ("center", "ljust", "rjust", "zfill"):
        return width
    if name == "expandtabs":
        return len(owner) * (1 + max(0, width)) if isinstance(owner, bytes) else len(owner) + owner.count("\t") * width
    if name == "replace" and len(args) >= 2:
        return replaced_chars(owner, *args[:3], limit=limit)
    if name == "join" and args:
        return joined_chars(owner, args[0], limit)
    if name == "translate" and args:
        table = args[0]
        longest = max((count_chars(value, limit) for value in _children(table)), default=1) if table else 1
        return len(owner) * longest
    return 0


def materialize(value: Any) -> Any:
    """Return an iterator's items as a list, whose size is known."""
    return list(value) if isinstance(value, Iterator) else value
