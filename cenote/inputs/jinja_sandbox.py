"""Run Jinja templates in a sandbox, with limits on CPU time, memory and output size."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, update_wrapper, wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from cenote.errors import BadRequest
from cenote.inputs.jinja_limits import (
    SizeEstimate,
    brace_format_chars,
    count_bytes,
    count_chars,
    estimate_method,
    make_filter_estimates,
    materialize,
    percent_format_chars,
)

# limit on the output and on each string and list beyond the length of the input, and on one repetition
MAX_ADDED_CHARS = 8_000_000
# limit on the memory of all strings and lists that a template makes, freed or not; a text that a loop appends to is
# copied each time
MAX_ALLOCATED_BYTES, ALLOCATED_BYTES_PER_CHAR = 256 << 20, 256
MAX_TEMPLATE_CHARS = 1_000_000
# texts up to this length are not counted: in the time that a template has, they take no more than the limit
SMALL_CHARS = 256
# filters that take the same time and memory for any value, and tests that may compare lists
UNLIMITED_FILTERS = {"abs", "attr", "count", "d", "default", "first", "last", "length", "safe"}
COMPARING_TESTS = {"==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<="}
COMPARING_TESTS |= {"le", "in"}
# CPU time limit: base, and per character of input
BASE_CPU_S, CPU_S_PER_CHAR = 0.4, 1e-6
NO_MORE_COLLECTIONS = 2**62  # the time is extended once
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


class _TemplateLimits(threading.local):
    """Limits of the template running in this thread."""

    expires_at = float("inf")  # CPU time
    cpu_s = 0.0  # from the start until then
    num_collections = 0  # full garbage collections of this process, when the time began
    max_chars = MAX_ADDED_CHARS  # of the output, and of one string
    bytes_left = MAX_ALLOCATED_BYTES


class _GenerationTag(Extension):
    """Render {% generation %} blocks, which mark assistant turns for training, as plain text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _LimitedOperations(NodeTransformer):
    """Replace the operations that Jinja compiles to plain Python by calls of the sandbox, which check sizes."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call_sandbox("join_texts", node.nodes, node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [part or nodes.Const(None) for part in (node.arg.start, node.arg.stop, node.arg.step)]
        return _call_sandbox("get_slice", [node.node, *bounds], node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        if not any(isinstance(side, nodes.Const) for side in sides):  # to compare with a constant takes no time
            node.expr = _call_sandbox("check_container", [node.expr], node.lineno)
            for operand in node.ops:
                operand.expr = _call_sandbox("check_container", [operand.expr], node.lineno)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._check_items(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._check_items(node, node.items) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._check_items(node, [pair.value for pair in node.items])

    def _check_items(self, node: nodes.Expr, items: Sequence[nodes.Node]) -> nodes.Node:
        """Check the size of a list that is not constant: one that contains another twice, and so on, has any size."""
        self.generic_visit(node)
        if all(isinstance(item, nodes.Const) for item in items):
            return node
        return _call_sandbox("check_container", [node], node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._check_in_body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._check_in_body(node)

    def _check_in_body(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        """Check the limits in every iteration and call; the text of the body counts as written."""
        num_chars = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        check = nodes.ExprStmt(_call_sandbox("check_limits", [nodes.Const(num_chars)], node.lineno))
        node.body.insert(0, check.set_lineno(node.lineno))
        return node


def _call_sandbox(method: str, args: Sequence[nodes.Expr], line: int) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)
    call.set_lineno(line)
    return call


class _Sandbox(ImmutableSandboxedEnvironment):
    """Sandbox with the extensions that Transformers gives to chat templates, and with resource limits."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            finalize=self.check_written,
        )
        self.limits = _TemplateLimits()
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }
        self.filters["tojson"] = _to_json  # Jinja's filter escapes for HTML
        del self.globals["lipsum"], self.filters["pprint"], self.filters["urlize"]  # no chat template needs them
        estimates = make_filter_estimates(lambda: self.limits.max_chars)
        for name in self.filters.keys() - UNLIMITED_FILTERS:
            self.filters[name] = self._limit(self.filters[name], estimates.get(name))
        for name in COMPARING_TESTS:
            self.tests[name] = self._limit(self.tests[name], None)  # type: ignore[arg-type]  # functions of operator

    def _limit(self, function: Callable[..., Any], estimate: SizeEstimate | None) -> Callable[..., Any]:
        """Return a filter or test that checks the size of its arguments and of its result."""
        num_skipped = int(hasattr(function, "jinja_pass_arg"))  # the context or the environment

        @wraps(function)  # keeps the mark of Jinja that says what is passed
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.check_limits()
            if estimate is not None:
                args = (*args[:num_skipped], materialize(args[num_skipped]), *args[num_skipped + 1 :])
                self.check_chars(estimate(*args[num_skipped:], **kwargs))
            for value in (*args[num_skipped:], *kwargs.values()):
                self.check_container(value)
            return self.count_allocated(function(*args, **kwargs))

        return limited

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is type(right) is str and len(left) + len(right) <= SMALL_CHARS:
            return left + right
        self.check_limits()
        if isinstance(left, int) and isinstance(right, int):
            if operator in ("*", "**"):
                bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * right
                if bits > MAX_INTEGER_BITS:
                    raise SecurityError(f"a number of {bits} bits is too large; the limit is {MAX_INTEGER_BITS}")
            return super().call_binop(context, operator, left, right)
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, str | bytes | list | tuple) and isinstance(count, int):
                    _check_chars(len(sequence) * count, MAX_ADDED_CHARS)
        elif operator == "%" and isinstance(left, str | bytes):
            self.check_chars(percent_format_chars(left, right, self.limits.max_chars))
        return self.count_allocated(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if (owner := getattr(__obj, "__self__", None)) is __self:  # its own checks
            return __obj(*args)
        __self.check_limits()
        if isinstance(owner, str | bytes | int):
            args = tuple(map(materialize, args))
            name = getattr(__obj, "__name__", "")
            __self.check_chars(estimate_method(owner, name, (*args, *kwargs.values()), __self.limits.max_chars))
        return __self.count_allocated(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if (wrapper := super().wrap_str_format(value)) is None:
            return None

        def limited(*args: Any, **kwargs: Any) -> str:
            self.check_chars(brace_format_chars(value.__self__, (*args, kwargs), self.limits.max_chars))
            return wrapper(*args, **kwargs)

        return update_wrapper(limited, value)

    def compile_with_limits(self, template: str) -> jinja2.Template:
        """Compile a template with checks in every loop iteration, macro call and operation on texts and lists."""
        if len(template) > MAX_TEMPLATE_CHARS:
            raise SecurityError(f"it has {len(template)} characters; the limit is {MAX_TEMPLATE_CHARS}")
        tree: nodes.Template = _LimitedOperations().visit(self.parse(template))
        return self.from_string(tree)

    def join_texts(self, *values: Any) -> str:
        """Run the operator ~."""
        if (num_chars := sum(count_chars(value, self.limits.max_chars) for value in values)) <= SMALL_CHARS:
            return "".join(map(str, values))
        self.check_chars(num_chars)
        return self.count_allocated("".join(map(str, values)))  # type: ignore[no-any-return]

    def get_slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        return self.count_allocated(value[start:stop:step])

    def check_container(self, value: Any) -> Any:
        """Return a value after a check that a loop over all it contains ends."""
        if isinstance(value, list | tuple | dict):
            self.check_chars(count_chars(value, self.limits.max_chars))
        return value

    def check_written(self, value: Any) -> Any:
        """Return a value that is written; a block of text that a template assigns holds another copy."""
        if type(value) is str and len(value) <= SMALL_CHARS:
            return value
        num_chars = count_chars(value, self.limits.max_chars)
        self.check_chars(num_chars)
        self.check_limits(num_chars)
        return value

    def check_chars(self, num_chars: int) -> None:
        _check_chars(num_chars, self.limits.max_chars)

    def count_allocated(self, value: Any) -> Any:
        """Return the result of an operation, after a check that it is not too much memory with all before it."""
        if isinstance(value, str | bytes | list | tuple):
            self._spend(count_bytes(value))
        return value

    def check_limits(self, num_bytes: int = 0) -> None:
        if num_bytes:
            self._spend(num_bytes)
        limits = self.limits
        if time.thread_time() > limits.expires_at:
            if limits.num_collections < _count_collections():
                # a full collection in this thread takes longer than any template where there are many objects
                limits.expires_at, limits.num_collections = time.thread_time() + limits.cpu_s, NO_MORE_COLLECTIONS
                return
            raise SecurityError("it exceeded the CPU time limit for a text of this length")

    def _spend(self, num_bytes: int) -> None:
        self.limits.bytes_left -= num_bytes
        if self.limits.bytes_left < 0:
            raise SecurityError("it exceeded the memory limit for a text of this length")


SANDBOX = _Sandbox()
compile_template = lru_cache(maxsize=32)(SANDBOX.compile_with_limits)


def run_template(template: str, variables: Mapping[str, Any], *, name: str, num_chars: int) -> str:
    """Return the output of a template. `name` appears in errors; `num_chars`, the input length, sets the limits."""
    limits = SANDBOX.limits
    _start_clock(limits, num_chars)
    limits.max_chars = num_chars + MAX_ADDED_CHARS
    limits.bytes_left = MAX_ALLOCATED_BYTES + ALLOCATED_BYTES_PER_CHAR * num_chars
    try:
        program = compile_template(template)
    except Exception as error:  # syntax errors, and RecursionError for deep nesting
        raise BadRequest(
            f"the {name} template is not valid Jinja: {_error_text(error)}", param="chat_template"
        ) from error
    _start_clock(limits, num_chars)  # without the time to compile it
    parts, length = [], 0
    try:
        for part in program.generate(variables):
            length += len(part)
            _check_chars(length, limits.max_chars)
            parts.append(part)
    except Exception as error:  # a template can raise any exception
        raise BadRequest(f"the {name} template failed: {_error_text(error)}", param="chat_template") from error
    return "".join(parts)


def _start_clock(limits: _TemplateLimits, num_chars: int) -> None:
    limits.cpu_s = BASE_CPU_S + CPU_S_PER_CHAR * num_chars
    limits.num_collections = _count_collections()
    limits.expires_at = time.thread_time() + limits.cpu_s


def _count_collections() -> int:
    return int(gc.get_stats()[-1]["collections"])


def _check_chars(length: int, max_chars: int) -> None:
    if length > max_chars:
        raise SecurityError(
            f"it writes {length} characters or more; the limit for a text of this length is {max_chars}"
        )


def _error_text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}..."
