"""Jinja templates in a sandbox: a program that turns texts into one text may reach nothing else, and must end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cenote.errors import BadRequest

# what a template may write beyond the characters it was given, and what it may repeat at once
MAX_ADDED_CHARS = 8_000_000
# processor time for any template at all, and for each character it was given
BASE_CPU_S, CPU_S_PER_CHAR = 0.1, 1e-6
# numbers of a template count messages and characters
MAX_INTEGER_BITS = 256
MAX_ERROR_CHARS = 500


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _TemplateDeadline(threading.local):
    """The processor time at which the template that runs in this thread must have ended."""

    expires_at = float("inf")


class _GenerationTag(Extension):
    """{% generation %} marks what an assistant said, for training; here it is only text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """What the authors of chat templates count on, and no way to spend more than a moment."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag])
        self.deadline = _TemplateDeadline()
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }
        self.filters["tojson"] = _to_json  # Jinja's own escapes for web pages

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * right
            if bits > MAX_INTEGER_BITS:
                raise SecurityError(f"a number of {bits} bits is too large; at most {MAX_INTEGER_BITS}")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    _check_chars(len(many) * times, MAX_ADDED_CHARS)
        return super().call_binop(context, operator, left, right)

    def compile_with_deadline(self, template: str) -> jinja2.Template:
        """With a look at the clock in every turn of a loop and every call of a macro."""
        tree = self.parse(template)
        for block in tree.find_all((nodes.For, nodes.Macro)):
            look = nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("check_deadline"), [], [], None, None))
            block.body.insert(0, look.set_lineno(block.lineno))  # type: ignore[attr-defined]
        return self.from_string(tree)

    def check_deadline(self) -> None:
        if time.thread_time() > self.deadline.expires_at:
            raise SecurityError("it did not end in the time that a text of this length may take")


SANDBOX = _Sandbox()
compile_template = lru_cache(maxsize=32)(SANDBOX.compile_with_deadline)


def run_template(template: str, variables: Mapping[str, Any], *, name: str, num_chars: int) -> str:
    """What a template writes. `name` is for errors; by `num_chars`, what it was given, its limits are measured."""
    try:
        program = compile_template(template)
    except Exception as error:  # besides syntax errors, nesting that is too deep for Python
        raise BadRequest(
            f"the {name} template is not valid Jinja: {_error_text(error)}", param="chat_template"
        ) from error
    SANDBOX.deadline.expires_at = time.thread_time() + BASE_CPU_S + CPU_S_PER_CHAR * num_chars
    written, length = [], 0
    try:
        for part in program.generate(variables):
            length += len(part)
            _check_chars(length, num_chars + MAX_ADDED_CHARS)
            written.append(part)
    except Exception as error:  # a template is a program of its own and can fail in any way
        raise BadRequest(f"the {name} template failed: {_error_text(error)}", param="chat_template") from error
    return "".join(written)


def _check_chars(length: int, max_chars: int) -> None:
    if length > max_chars:
        raise SecurityError(f"it writes {length} characters or more; at most {max_chars} for a text of this length")


def _error_text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}..."
