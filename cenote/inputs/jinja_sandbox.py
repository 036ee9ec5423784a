"""Run Jinja templates in a sandbox, with limits on CPU time and output size."""

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

# limit on the output beyond the length of the input, and on one string or list repetition
MAX_ADDED_CHARS = 8_000_000
# CPU time limit: base (a garbage collection in between can take 0.2 s), and per character of input
BASE_CPU_S, CPU_S_PER_CHAR = 0.4, 1e-6
# enough to count messages and characters
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
    """CPU time at which the template running in this thread must stop."""

    expires_at = float("inf")


class _GenerationTag(Extension):
    """Render {% generation %} blocks, which mark assistant turns for training, as plain text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Sandbox with the extensions that Transformers gives to chat templates, and with resource limits."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag])
        self.deadline = _TemplateDeadline()
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }
        self.filters["tojson"] = _to_json  # Jinja's filter escapes for HTML

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * right
            if bits > MAX_INTEGER_BITS:
                raise SecurityError(f"a number of {bits} bits is too large; the limit is {MAX_INTEGER_BITS}")
        elif operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                    _check_chars(len(sequence) * count, MAX_ADDED_CHARS)
        return super().call_binop(context, operator, left, right)

    def compile_with_deadline(self, template: str) -> jinja2.Template:
        """Compile a template with a deadline check in every loop iteration and macro call."""
        tree = self.parse(template)
        for block in tree.find_all((nodes.For, nodes.Macro)):
            check = nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("check_deadline"), [], [], None, None))
            block.body.insert(0, check.set_lineno(block.lineno))  # type: ignore[attr-defined]
        return self.from_string(tree)

    def check_deadline(self) -> None:
        if time.thread_time() > self.deadline.expires_at:
            raise SecurityError("it exceeded the CPU time limit for a text of this length")


SANDBOX = _Sandbox()
compile_template = lru_cache(maxsize=32)(SANDBOX.compile_with_deadline)


def run_template(template: str, variables: Mapping[str, Any], *, name: str, num_chars: int) -> str:
    """Return the output of a template. `name` appears in errors; `num_chars`, the input length, sets the limits."""
    try:
        program = compile_template(template)
    except Exception as error:  # syntax errors, and RecursionError for deep nesting
        raise BadRequest(
            f"the {name} template is not valid Jinja: {_error_text(error)}", param="chat_template"
        ) from error
    SANDBOX.deadline.expires_at = time.thread_time() + BASE_CPU_S + CPU_S_PER_CHAR * num_chars
    parts, length = [], 0
    try:
        for part in program.generate(variables):
            length += len(part)
            _check_chars(length, num_chars + MAX_ADDED_CHARS)
            parts.append(part)
    except Exception as error:  # a template can raise any exception
        raise BadRequest(f"the {name} template failed: {_error_text(error)}", param="chat_template") from error
    return "".join(parts)


def _check_chars(length: int, max_chars: int) -> None:
    if length > max_chars:
        raise SecurityError(
            f"it writes {length} characters or more; the limit for a text of this length is {max_chars}"
        )


def _error_text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}..."
