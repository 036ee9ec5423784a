"""Whether a chat template reads content as one string or part by part, told from the template itself."""

from __future__ import annotations

import pytest

from cenote.inputs.content_format import Reading, reading_of

EACH = "{% for message in messages %}"
PARTS = "{{ part.text }}{% endfor %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        "",
        "plain text",
        f"{EACH}{{{{ message.content }}}}{END}",
        f"{EACH}{{{{ message['role'] + message['content'] | trim }}}}{END}",
        f"{EACH}{{% for call in message.tool_calls %}}{{{{ call }}}}{END}{END}",
        f"{EACH}{{% for line in message.content.split('x') %}}{{{{ line }}}}{END}{END}",
        f"{EACH}{{% if message.content is string %}}{{{{ message.content }}}}{{% endif %}}{END}",
        "{% for content in messages %}{{ content }}{% endfor %}",
        "{% for part in content %}{{ part }}{% endfor %}",
        "{{ messages[0].content[0] }}",
        "{% for part in other.content %}{% endfor %}",
        "{% macro show(content) %}{% for part in content %}{% endfor %}{% endmacro %}{{ show(tools) }}",
        "{{ messages | map(attribute='content') | join }}",
    ],
)
def test_a_template_that_never_goes_through_content_wants_a_string(template: str) -> None:
    assert reading_of(template) == "string"


@pytest.mark.parametrize(
    "template",
    [
        f"{EACH}{{% for part in message.content %}}{PARTS}{END}",
        f"{EACH}{{% for part in message['content'] %}}{PARTS}{END}",
        f"{EACH}{{% for part in message.get('content') %}}{PARTS}{END}",
        f"{EACH}{{% for part in message.content or [] %}}{PARTS}{END}",
        f"{EACH}{{% for part in message.content | reject('none') %}}{PARTS}{END}",
        f"{EACH}{{{{ message.content | map(attribute='text') | join }}}}{END}",
        f"{EACH}{{% for part in message.content if part.type == 'text' %}}{PARTS}{END}",
        f"{EACH}{{% for part in message.content[1:] %}}{PARTS}{END}",
        f"{EACH}{{% set content = message.content %}}{{% for part in content %}}{PARTS}{END}",
        f"{EACH}{{% set body = message['content'] if message else [] %}}{{% for part in body %}}{PARTS}{END}",
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
        + EACH
        + "{{ show(message.content) }}"
        + END,
        "{% macro show(role, body=none) %}{% for part in body %}"
        + PARTS
        + "{% endmacro %}"
        + EACH
        + "{{ show('x', body=message.content) }}"
        + END,
        f"{EACH}{{% generation %}}{{% for part in message.content %}}{PARTS}{{% endgeneration %}}{END}",
    ],
)
def test_a_template_that_goes_through_content_wants_parts(template: str) -> None:
    assert reading_of(template) == "openai"


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("message.content is string", "either"),
        ("message.content is not string", "either"),
        ("role is string", "openai"),
    ],
)
def test_a_template_that_asks_whether_content_is_a_string_may_have_one(test: str, expected: Reading) -> None:
    template = f"{EACH}{{% if {test} %}}x{{% else %}}{{% for part in message.content %}}{PARTS}{{% endif %}}{END}"

    assert reading_of(template) == expected
