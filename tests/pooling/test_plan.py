"""Resolution of pooling settings, field by field: request, options, Sentence Transformers files, model."""

from __future__ import annotations

from typing import Any

import pytest

from cenote import PoolerConfig, PoolingParams
from cenote.config.options import Sourced
from cenote.errors import BadRequest, LoadError, Unsupported
from cenote.pooling.plan import PoolingFileSettings, PoolingPlan, resolve_plan
from cenote.protocol.matryoshka import Matryoshka
from cenote.protocol.params import PoolingOptions

FILE_SETTINGS = PoolingFileSettings(Sourced(("MEAN",), "1_Pooling/config.json"), Sourced(False, "modules.json"))


def make_plan(
    user: PoolerConfig | None = None, files: PoolingFileSettings | None = None, **changes: Any
) -> PoolingPlan:
    settings: dict[str, Any] = {
        "model": "tiny",
        "pooler_config": user or PoolerConfig(),
        "file_settings": files,
        "method": Sourced("CLS", "default of TinyModel"),
        "activation": Sourced("auto", "number of labels"),
        "tasks": ("embed", "token_embed"),
        "matryoshka": Matryoshka(is_supported=True, sizes=(), full_size=32),
    }
    return resolve_plan(**settings | changes)


def test_the_model_sets_the_defaults() -> None:
    resolved = make_plan()

    assert resolved.seq_pooling_types == Sourced(("CLS",), "default of TinyModel")
    assert resolved.tok_pooling_type.value == "ALL"
    assert resolved.use_activation == Sourced(True, "default")


def test_sentence_transformers_files_override_the_model() -> None:
    resolved = make_plan(files=FILE_SETTINGS)

    assert resolved.seq_pooling_types == Sourced(("MEAN",), "1_Pooling/config.json")
    assert resolved.use_activation == Sourced(False, "modules.json")


def test_a_user_option_overrides_one_field_only() -> None:
    pooled = make_plan(PoolerConfig(pooling_type="LAST"), FILE_SETTINGS)
    normed = make_plan(PoolerConfig(use_activation=True), FILE_SETTINGS)

    assert pooled.seq_pooling_types == Sourced(("LAST",), "pooler config")
    assert pooled.use_activation == Sourced(False, "modules.json")
    assert normed.seq_pooling_types.value == ("MEAN",)
    assert normed.use_activation == Sourced(True, "pooler config")


def test_request_parameters_override_everything() -> None:
    resolved = make_plan(PoolerConfig(use_activation=False, dimensions=8))

    assert resolved.resolve_options("embed", None) == PoolingOptions(False, 8)
    assert resolved.resolve_options("embed", PoolingParams(use_activation=True, dimensions=4)) == PoolingOptions(
        True, 4
    )


@pytest.mark.parametrize("given", ["mean", "Mean", "MEAN"])
def test_a_pooling_type_may_be_written_in_any_case(given: str) -> None:
    assert make_plan(PoolerConfig(pooling_type=given)).seq_pooling_types.value == ("MEAN",)
    assert make_plan(PoolerConfig(seq_pooling_type=given)).seq_pooling_types.value == ("MEAN",)


def test_token_pooling_does_not_change_sequence_pooling() -> None:
    resolved = make_plan(PoolerConfig(pooling_type="STEP"), FILE_SETTINGS)

    assert resolved.tok_pooling_type == Sourced("STEP", "pooler config")
    assert resolved.seq_pooling_types.value == ("MEAN",)


@pytest.mark.parametrize("config", [{"pooling_type": "MEDIAN"}, {"tok_pooling_type": "MEAN"}])
def test_an_unknown_pooling_lists_the_known_ones(config: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match="expected one of: "):
        make_plan(PoolerConfig(**config))


@pytest.mark.parametrize(
    ("task", "params", "invalid"),
    [
        ("classify", {"dimensions": 4}, "dimensions"),
        ("token_classify", {"dimensions": 4}, "dimensions"),
        ("embed", {"step_tag_id": 4}, "step_tag_id"),
        ("token_embed", {"returned_token_ids": [1, 2]}, "returned_token_ids"),
    ],
)
def test_a_parameter_of_another_task_is_refused(task: Any, params: dict[str, Any], invalid: str) -> None:
    with pytest.raises(
        BadRequest, match=rf"Task '{task}' only supports .* does not support \['{invalid}'\] parameters"
    ):
        make_plan().resolve_options(task, PoolingParams(**params))


def test_step_settings_of_the_request_override_the_options() -> None:
    resolved = make_plan(PoolerConfig(pooling_type="STEP", step_tag_id=5, returned_token_ids=[1, 2]))

    assert resolved.resolve_options("token_embed", None) == PoolingOptions(True, None, 5, (1, 2))
    assert resolved.resolve_options(
        "token_embed", PoolingParams(step_tag_id=6, returned_token_ids=[3])
    ) == PoolingOptions(True, None, 6, (3,))
    assert resolved.resolve_options("embed", None) == PoolingOptions(True)  # one vector has no steps


@pytest.mark.parametrize(
    ("matryoshka", "dimensions", "error", "message"),
    [
        (Matryoshka(False, (), 32), 8, Unsupported, "does not support matryoshka"),
        (Matryoshka(True, (8, 16), 32), 4, BadRequest, r"only supports \[8, 16\]"),
        (Matryoshka(True, (), 32), 33, BadRequest, r"range \[1, 32\], got 33"),
        (Matryoshka(True, (), 32), 0, BadRequest, r"range \[1, 32\], got 0"),
    ],
)
def test_dimensions_the_model_was_not_trained_for_are_refused(
    matryoshka: Matryoshka, dimensions: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_plan(matryoshka=matryoshka).resolve_options("embed", PoolingParams(dimensions=dimensions))
    with pytest.raises(error, match=message):
        make_plan(PoolerConfig(dimensions=dimensions), matryoshka=matryoshka)


def test_the_full_embedding_size_is_always_accepted() -> None:
    resolved = make_plan(matryoshka=Matryoshka(False, (), 32))

    assert resolved.resolve_options("embed", PoolingParams(dimensions=32)) == PoolingOptions(True, 32)
