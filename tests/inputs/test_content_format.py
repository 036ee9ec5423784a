"""Detection of the content format that a chat template expects: string or list of parts."""

from __future__ import annotations

import pytest

from cenote.inputs.content_format import ResolvedContentFormat, detect_content_format

LOOP = "{% for message in messages %}"
PARTS = "{{ part.text }}{% endfor %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        "",
        "plain text",
        f"{LOOP}{{{{ message.content }}}}{END}",
        f"{LOOP}{{{{ message['role'] + message['content'] | trim }}}}{END}",
        f"{LOOP}{{% for call in message.tool_calls %}}{{{{ call }}}}{END}{END}",
        f"{LOOP}{{% for line in message.content.split('x') %}}{{{{ line }}}}{END}{END}",
        f"{LOOP}{{% if message.content is string %}}{{{{ message.content }}}}{{% endif %}}{END}",
        "{% for content in messages %}{{ content }}{% endfor %}",
        "{% for part in content %}{{ part }}{% endfor %}",
        "{{ messages[0].content[0] }}",
        "{% for part in other.content %}{% endfor %}",
        "{% macro show(content) %}{% for part in content %}{% endfor %}{% endmacro %}{{ show(tools) }}",
        "{{ messages | map(attribute='content') | join }}",
    ],
)
def test_a_template_that_does_not_iterate_over_content_takes_a_string(template: str) -> None:
    assert detect_content_format(template) == "string"


@pytest.mark.parametrize(
    "template",
    [
        f"{LOOP}{{% for part in message.content %}}{PARTS}{END}",
        f"{LOOP}{{% for part in message['content'] %}}{PARTS}{END}",
        f"{LOOP}{{% for part in message.get('content') %}}{PARTS}{END}",
        f"{LOOP}{{% for part in message.content or [] %}}{PARTS}{END}",
        f"{LOOP}{{% for part in message.content | reject('none') %}}{PARTS}{END}",
        f"{LOOP}{{{{ message.content | map(attribute='text') | join }}}}{END}",
        f"{LOOP}{{% for part in message.content if part.type == 'text' %}}{PARTS}{END}",
        f"{LOOP}{{% for part in message.content[1:] %}}{PARTS}{END}",
        f"{LOOP}{{% set content = message.content %}}{{% for part in content %}}{PARTS}{END}",
        f"{LOOP}{{% set body = message['content'] if message else [] %}}{{% for part in body %}}{PARTS}{END}",
        "{% for m in messages[1:] %}{% for part in m.content %}" + PARTS + END,
        "{% set rest = messages[1:] %}{% for m in rest %}{% for part in m.content %}" + PARTS + END,
        "{% set rest = [first] + messages %}{% for m in rest %}{% for part in m.content %}" + PARTS + END,
        "{% for part in messages[0].content %}" + PARTS,
        "{% set last = messages[-1] %}{% for part in last['content'] %}" + PARTS,
        "{% set ns = namespace() %}{% set ns.all = messages %}{% for m in ns.all %}{% for part in m.content %}"
        + PARTS
        + END,
        "{% macro show(body) %}{% for part in body %}"
        + PARTS
        + "{% endmacro %}"
        + LOOP
        + "{{ show(message.content) }}"
        + END,
        "{% macro show(role, body=none) %}{% for part in body %}"
        + PARTS
        + "{% endmacro %}"
        + LOOP
        + "{{ show('x', body=message.content) }}"
        + END,
        f"{LOOP}{{% generation %}}{{% for part in message.content %}}{PARTS}{{% endgeneration %}}{END}",
    ],
)
def test_a_template_that_iterates_over_content_takes_parts(template: str) -> None:
    assert detect_content_format(template) == "openai"


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("message.content is string", "either"),
        ("message.content is not string", "either"),
        ("role is string", "openai"),
    ],
)
def test_a_template_that_tests_for_a_string_takes_either(test: str, expected: ResolvedContentFormat) -> None:
    template = f"{LOOP}{{% if {test} %}}x{{% else %}}{{% for part in message.content %}}{PARTS}{{% endif %}}{END}"

    assert detect_content_format(template) == expected
