"""The template sandbox: available functions, resource limits and isolation."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from datetime import datetime
from typing import Any

import pytest

from cenote.errors import BadRequest
from cenote.inputs import jinja_sandbox as subject
from cenote.inputs.jinja_sandbox import run_template


def run(template: str, num_chars: int = 0, **variables: Any) -> str:
    return run_template(template, variables, name="chat", num_chars=num_chars)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}"
         "{% endfor %}", "023"),
        ("{{ {'b': '<é>', 'a': [1]} | tojson }}", '{"b": "<é>", "a": [1]}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}",
         r'{"a":"\u00e9","b":1}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("a {% generation %}b{% set x = 1 %}{% endgeneration %} c{{ x }}", "a b c"),
        ("{% for i in [1, 2] %}\n  {%- generation %} {{ i }}{{ loop.last }}{% endgeneration %}\n{% endfor %}",
         " 1False 2True"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') * 2 }}", "abababab"),
        ("{{ 2 ** 10 }} {{ 3 * 4 }} {{ '=' * 3 }} {{ [0] * 2 }} {{ 2 ** 0.5 > 1 }}", "1024 12 === [0, 0] True"),
    ],
)  # fmt: skip
def test_the_usual_template_functions_are_available(template: str, expected: str) -> None:
    assert run(template) == expected


def test_a_template_can_format_the_current_date() -> None:
    before, rendered, after = datetime.now(), run("{{ strftime_now('%Y-%m-%d %H') }}"), datetime.now()

    assert rendered in (before.strftime("%Y-%m-%d %H"), after.strftime("%Y-%m-%d %H"))


def test_a_template_can_raise_an_exception() -> None:
    with pytest.raises(BadRequest, match="the chat template failed: roles must alternate") as caught:
        run("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "chat_template"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "exceeded the CPU time limit",
        ),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
            "exceeded the CPU time limit",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion|CPU time limit"),
        ("{% for x in [[]] recursive %}{{ loop([[], []]) }}{% endfor %}", "recursion|CPU time limit"),
        ("{% for a in range(1000000000) %}{% endfor %}", "[Rr]ange too big"),
        (
            "{% for a in range(90000) %}" + "x" * 1000 + "{% endfor %}",
            "8001000 characters or more; the limit for a text of this length is 8000000",
        ),
        ("{{ 'a' * 10 ** 9 }}", "1000000000 characters or more"),
        ("{% set x = 10 ** 9 * [0] %}", "1000000000 characters or more"),
        ("{{ 10 ** 10 ** 10 }}", "bits is too large"),
        (
            "{% set ns = namespace(x=9) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
            "bits is too",
        ),
        ("{{ (" * 5000, "is not valid Jinja: .*recursion"),
        ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "is not valid Jinja"),
        ("{% generation %}", "is not valid Jinja"),
    ],
    ids=lambda value: value[:40],
)
def test_an_endless_template_is_stopped(template: str, message: str) -> None:
    start = time.thread_time()

    with pytest.raises(BadRequest, match=message):
        run(template)

    assert time.thread_time() - start < 2


@pytest.mark.parametrize(
    "template",
    [
        "{{ '%0200000000d' % 1 }}",
        "{{ '%*d' % (200000000, 1) }}",
        "{{ '%.200000000f' % 1 }}",
        "{{ '%(a)0200000000d' % {'a': 1} }}",
        "{{ '%(a(b))0200000000d' % {'a(b)': 1} }}",
        "{{ '%0200000000d' | format(1) }}",
        "{{ ['%0200000000d'] | map('format', 1) | list }}",
        "{{ '{:0200000000d}'.format(1) }}",
        "{{ '{:{}}'.format('a', 200000000) }}",
        "{{ '{a:{b}}'.format(a='a', b=200000000) }}",
        "{{ '{a:200000000}'.format_map({'a': 1}) }}",
        "{{ ('{:200000000}' | attr('format'))('a') }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a'.center(1000000000) }}{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ '\t'.expandtabs(1000000000) }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ 'a\nb' | indent(1000000000) }}",
        "{{ ('\n' * 100000) | indent(100000) }}",
        "{{ ('\n' * 100000) | indent('x' * 100000) }}",
        "{{ ('a ' * 4000000) | wordwrap(1) }}",
        "{{ ('a ' * 1000) | wordwrap(1, wrapstring='x' * 100000) }}",
        "{{ ('a' * 7000000).replace('a', 'b' * 1000) }}",
        "{{ 'aaaa' * 100000 | replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
        "{{ ('b' * 100000).join(range(10000) | map('string')) }}",
        "{{ range(10000) | join('b' * 100000) }}",
        "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
        "{{ [0] | batch(1000000000, 0) | list }}",
        "{{ [0] | slice(1000000000) | list }}",
        "{{ 1.5 | round(-1000000000) }}{{ 1.5 | round(1000000000, 'ceil') }}",
        "{{ [[[1]]] | tojson(indent=1000000000) }}",
        "{{ range(1000) | list | tojson(separators=('x' * 100000, ':')) }}",
        "{{ ([('a' * 5000000)] * 1000) }}",
        "{{ ([('a' * 5000000)] * 1000) | string }}",
        "{{ ([('a' * 5000000)] * 1000) | upper }}",
        "{{ ([('a' * 5000000)] * 1000) | tojson }}",
        "{{ ([('a' * 5000000)] * 1000) | join }}",
        "{{ '%s' % [[('a' * 5000000)] * 1000] }}",
        "{{ '' ~ [('a' * 5000000)] * 1000 }}",
        "{% set x = 'a' * 5000000 %}{{ (" + " ~ ".join(["x"] * 1000) + ") | length }}",
        "{% set ns = namespace(x='abc') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='abc') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
        "{% set ns = namespace(x={}) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}",
        "{% set x = 'abc' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
        "{% set ns = namespace(x='a' * 5000000, y=[]) %}{% for i in range(9999) %}{% set ns.y = ns.y + [ns.x[1:]] %}"
        "{% endfor %}",
        "{% set y %}{% for a in range(99999) %}" + "x" * 10000 + "{% endfor %}{% endset %}",
        "{% set ns = namespace(n=0) %}{% for a in range(99) %}{% set ns.n = ns.n + ('ab ' * 300000).split()|length %}"
        "{% endfor %}",
        "{% set a = ['a' * 5000000] * 5000000 %}{% set b = ['a' * 5000000] * 5000000 %}{{ a == b }}",
        "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
        "{{ lipsum(n=1000000) }}",
    ],
    ids=lambda value: value[:60],
)
def test_memory_and_time_of_one_operation_are_limited(template: str) -> None:
    tracemalloc.start()
    start = time.thread_time()
    try:
        with pytest.raises(BadRequest, match="the chat template failed"):
            run(template)
        assert tracemalloc.get_traced_memory()[1] < 350 << 20
    finally:
        tracemalloc.stop()
    assert time.thread_time() - start < 4  # the measurement of memory takes most of it


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '%05d|%s|%(a)s' | replace('|%(a)s', '') | format(7, 'x') }}", "00007|x"),
        ("{{ '%s is %d%%' % ('it', 5) }} {{ '%(a)s' % {'a': 1} }}", "it is 5% 1"),
        ("{{ '{:>5}|{a}'.format('x', a=[1]) }} {{ '{a}'.format_map({'a': 2}) }}", "    x|[1] 2"),
        ("{{ 'a' | center(5) }}|{{ 'a\nb' | indent(2) }}|{{ 'aa bb' | wordwrap(2) }}", "  a  |a\n  b|aa\nbb"),
        ("{{ ['a', 1] | join(', ') }} {{ 'a-b'.replace('-', '+') }} {{ ' x '.strip() }}", "a, 1 a+b x"),
        ("{{ 'a' ~ 1 ~ none ~ [2] }} {{ 'abc'[1:] ~ 'abc'[::-1] ~ 'abc'[:-1] }}", "a1None[2] bccbaab"),
        ("{{ [1, 2, 3] | sum }} {{ [[1], [2]] | sum(start=[]) }} {{ 2.567 | round(1) }}", "6 [1, 2] 2.6"),
        ("{% set m = [{'r': 'u', 'c': 'x'}] %}{{ m | selectattr('r', 'equalto', 'u') | map(attribute='c') | list }}",
         "['x']"),
        ("{% for k, v in {'a': 1} | dictsort %}{{ k }}={{ v }}{% endfor %} {{ [3, 1] | sort | first }}", "a=1 1"),
        ("{% set a, b = 1, x %}{{ a }}{{ b }} {{ a == b }} {{ x is undefined }} {{ [a, a] == [1, 1] }}",
         "1 False True True"),
    ],
)  # fmt: skip
def test_operations_of_ordinary_size_are_not_limited(template: str, expected: str) -> None:
    assert run(template) == expected


def test_a_template_is_limited_in_length() -> None:
    with pytest.raises(BadRequest, match="it has 2000000 characters; the limit is 1000000"):
        run("x" * 2_000_000)


def test_the_deadline_grows_with_the_length_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "BASE_CPU_S", 0.0)
    template = "{% for i in range(1000) %}{% endfor %}done"

    assert run(template, num_chars=5_000_000) == "done"
    with pytest.raises(BadRequest, match="exceeded the CPU time limit"):
        run(template, num_chars=0)


def test_a_full_garbage_collection_extends_the_deadline_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect() -> str:
        gc.collect()
        until = time.thread_time() + 0.06
        while time.thread_time() < until:
            pass
        return ""

    monkeypatch.setattr(subject, "BASE_CPU_S", 0.05)
    assert run("{{ collect() }}{% for i in [1, 2] %}{{ i }}{% endfor %}", collect=collect) == "12"
    with pytest.raises(BadRequest, match="exceeded the CPU time limit"):
        run("{% for i in [1, 2, 3] %}{{ collect() }}{% endfor %}", collect=collect)


def test_the_output_limit_grows_with_the_length_of_the_text() -> None:
    text = "x" * 9_000_000

    assert run("{{ text }}", num_chars=len(text), text=text) == text
    with pytest.raises(
        BadRequest, match="18000000 characters or more; the limit for a text of this length is 17000000"
    ):
        run("{{ text }}{{ text }}", num_chars=len(text), text=text)


def test_each_thread_has_its_own_deadline() -> None:
    outcomes: list[str] = []

    def run_endless_template() -> None:
        with pytest.raises(BadRequest):
            run("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
        outcomes.append("stopped")

    def run_long_template() -> None:
        outcomes.append(run("{% for a in range(20000) %}{% endfor %}fine", num_chars=10_000_000))

    threads = [threading.Thread(target=target) for target in (run_endless_template, run_long_template)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert sorted(outcomes) == ["fine", "stopped"]


def test_an_error_message_is_shortened() -> None:
    with pytest.raises(BadRequest) as caught:
        run("{{ raise_exception(text) }}", text="x" * 100_000)

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "template",
    [
        "{{ x.__class__ }}",
        "{{ '{0.__class__.__mro__}'.format(x) }}",
        "{{ ('%s' | format(x.__class__)) }}",
        "{{ x.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ namespace.__init__ }}",
    ],
)
def test_a_template_cannot_access_python_internals(template: str) -> None:
    try:
        rendered = run(template, x=[1])
    except BadRequest as error:
        assert "unsafe" in str(error)
    else:
        assert rendered == ""
