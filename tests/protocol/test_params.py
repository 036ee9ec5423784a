"""Request parameters, errors and registries."""

from __future__ import annotations

import re
from typing import Any

import pytest

import cenote
from cenote.config.pooler import PoolerConfig
from cenote.errors import (
    BadRequest,
    EngineStopped,
    InputTooLong,
    LoadError,
    NumericalError,
    Overloaded,
    PoolingError,
    UnknownModel,
    Unsupported,
)
from cenote.protocol.params import PoolingParams, log_deprecated
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.utils.registry import Registry


def test_normalize_is_an_alias_of_use_activation() -> None:
    assert PoolingParams(normalize=False) == PoolingParams(use_activation=False)
    assert PoolingParams(normalize=True, use_activation=True).use_activation is True
    assert PoolingParams().use_activation is None


@pytest.mark.parametrize("old", [True, False])
def test_aliases_with_different_values_are_refused(old: bool) -> None:
    with pytest.raises(BadRequest, match="`normalize` is a deprecated alias of `use_activation`") as caught:
        PoolingParams(normalize=old, use_activation=not old)
    assert caught.value.param == "normalize"


@pytest.mark.parametrize("name", ["softmax", "activation"])
def test_older_names_of_use_activation_are_accepted_with_a_log_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_deprecated.cache_clear()
    for make in (PoolingParams, PoolerConfig):
        assert make(**{name: False}).use_activation is False  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match=f"`{name}` is a deprecated alias of `use_activation`"):
            make(**{name: False, "use_activation": True})  # type: ignore[arg-type]
    assert caplog.messages == [f"{name} is deprecated; use use_activation"]


@pytest.mark.parametrize(
    ("task", "params", "message"),
    [
        ("classify", {"normalize": False}, "Task 'classify' only supports ['use_activation'] parameters, does not "
         "support ['normalize'] parameters"),
        ("score", {"dimensions": 8}, "Task 'score' only supports ['use_activation'] parameters, does not support "
         "['dimensions'] parameters"),
        ("token_classify", {"normalize": True, "dimensions": 8}, "Task 'token_classify' only supports "
         "['use_activation'] parameters, does not support ['dimensions', 'normalize'] parameters"),
        ("embed", {"step_tag_id": 1}, "Task 'embed' only supports ['dimensions', 'normalize'] parameters, does not "
         "support ['step_tag_id'] parameters"),
    ],
)  # fmt: skip
def test_verify_refuses_parameters_of_other_tasks(task: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        PoolingParams(**params).verify(task)


def test_verify_fills_in_the_task_and_the_defaults() -> None:
    params = PoolingParams(normalize=False)
    params.verify("embed")
    assert params == PoolingParams(task="embed", use_activation=False)
    params = PoolingParams()
    params.verify("classify")
    assert params == PoolingParams(task="classify", use_activation=True)
    with pytest.raises(BadRequest, match="You cannot overwrite param.task='classify' with pooling_task='embed'!"):
        params.verify("embed")


def test_the_removed_task_encode_is_refused_with_its_replacements() -> None:
    with pytest.raises(BadRequest, match="use `token_embed` or `token_classify` instead") as caught:
        PoolingParams(task="encode")
    assert caught.value.param == "task"


def test_a_clone_shares_nothing() -> None:
    params = PoolingParams(returned_token_ids=[1, 2], extra_kwargs={"deep": {"er": 1}})

    clone = params.clone()
    clone.returned_token_ids.append(3)  # type: ignore[union-attr]
    clone.extra_kwargs["deep"]["er"] = 2  # type: ignore[index]

    assert params.returned_token_ids == [1, 2]
    assert params.extra_kwargs == {"deep": {"er": 1}}


def test_an_unknown_parameter_is_an_error() -> None:
    with pytest.raises(TypeError, match="dimension"):
        PoolingParams(dimension=5)  # type: ignore[call-arg]


def test_requests_are_frozen() -> None:
    for request in (PoolRequest(task="embed", inputs=["a"]), ScoreRequest(queries=["a"], documents=["b"])):
        with pytest.raises(AttributeError):
            request.params = None  # type: ignore[misc]


# errors


@pytest.mark.parametrize(
    ("error", "status", "base"),
    [
        (PoolingError, 500, Exception),
        (BadRequest, 400, ValueError),
        (InputTooLong, 400, BadRequest),
        (Unsupported, 400, BadRequest),
        (UnknownModel, 404, LookupError),
        (Overloaded, 429, PoolingError),
        (NumericalError, 500, PoolingError),
        (EngineStopped, 503, PoolingError),
        (LoadError, 500, ValueError),
    ],
)
def test_an_error_has_its_status_and_base_classes(error: type[PoolingError], status: int, base: type) -> None:
    assert error.status == status
    assert issubclass(error, PoolingError)
    assert issubclass(error, base)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({}, "no"),
        ({"param": "input"}, "no (parameter=input)"),
        ({"param": "input", "value": 5}, "no (parameter=input, value=5)"),
        ({"param": "input", "value": 0}, "no (parameter=input, value=0)"),
    ],
    ids=str,
)
def test_an_error_message_names_the_parameter_and_its_value(kwargs: dict[str, Any], text: str) -> None:
    error = BadRequest("no", **kwargs)

    assert str(error) == text
    assert error.message == "no"


# names


def test_a_registry_lists_its_names_in_errors() -> None:
    shapes: Registry[str] = Registry("shape")
    shapes.register("round")("a ball")
    shapes.register("flat")("a disc")

    assert shapes["round"] == "a ball"
    assert "flat" in shapes
    assert list(shapes) == ["round", "flat"]
    with pytest.raises(LookupError, match="unknown shape 'square'; available: flat, round"):
        shapes["square"]
    with pytest.raises(ValueError, match="shape 'flat' is registered twice"):
        shapes.register("flat")("a sheet")


def test_every_public_name_can_be_imported() -> None:
    for name in cenote.__all__:
        assert getattr(cenote, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        cenote.LLMs  # noqa: B018
