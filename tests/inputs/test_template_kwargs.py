"""The check of chat_template_kwargs, shared by chat and score templates."""

from __future__ import annotations

from typing import Any

import pytest

from cenote.errors import BadRequest
from cenote.inputs.template_kwargs import RESERVED_KWARGS, TemplateKind, check_template_kwargs


@pytest.mark.parametrize("kind", ["chat", "score"])
@pytest.mark.parametrize("kwargs", [None, "tools", ["tools"], 7], ids=repr)
def test_template_kwargs_must_be_a_mapping(kind: TemplateKind, kwargs: Any) -> None:
    with pytest.raises(BadRequest, match="chat_template_kwargs must be a mapping") as caught:
        check_template_kwargs(kwargs, kind)
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in RESERVED_KWARGS.items() for name in sorted(names)]
)
def test_reserved_names_are_refused_by_name(kind: TemplateKind, name: str) -> None:
    with pytest.raises(BadRequest, match=rf"contains reserved keys.*\['{name}'\]"):
        check_template_kwargs({"instruction": "x", name: 1}, kind)


def test_names_reserved_for_one_kind_are_allowed_for_the_other() -> None:
    check_template_kwargs({"tools": [], "enable_thinking": False}, "chat")
    check_template_kwargs({"add_generation_prompt": True, "instruction": "x"}, "score")
