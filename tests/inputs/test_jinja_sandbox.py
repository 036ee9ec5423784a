"""The template sandbox: available functions, resource limits and isolation."""

from __future__ import annotations

import threading
import time
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


def test_the_deadline_grows_with_the_length_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "BASE_CPU_S", 0.0)
    template = "{% for i in range(1000) %}{% endfor %}done"

    assert run(template, num_chars=5_000_000) == "done"
    with pytest.raises(BadRequest, match="exceeded the CPU time limit"):
        run(template, num_chars=0)


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
