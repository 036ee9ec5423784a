"""Who decides about pooling, field by field: the request, then the user's options, the files, the model."""

from __future__ import annotations

from typing import Any

import pytest

from cenote import PoolerConfig, PoolingParams
from cenote.config.engine import Sourced
from cenote.errors import BadRequest, LoadError, Unsupported
from cenote.pooling.plan import Matryoshka, PoolingFiles, PoolingPlan, resolve_plan
from cenote.protocol.requests import Options

FILES = PoolingFiles(Sourced(("MEAN",), "1_Pooling/config.json"), Sourced(False, "modules.json"))


def plan(user: PoolerConfig | None = None, files: PoolingFiles | None = None, **changes: Any) -> PoolingPlan:
    settings: dict[str, Any] = {
        "model": "tiny",
        "user": user or PoolerConfig(),
        "files": files,
        "method": Sourced("CLS", "default of TinyModel"),
        "activation": Sourced("auto", "number of labels"),
        "tasks": ("embed", "token_embed"),
        "matryoshka": Matryoshka(supported=True, sizes=(), full_size=32),
    }
    return resolve_plan(**settings | changes)


def test_the_model_decides_when_nobody_else_does() -> None:
    resolved = plan()

    assert resolved.sequence == Sourced(("CLS",), "default of TinyModel")
    assert resolved.token.value == "ALL"
    assert resolved.use_activation == Sourced(True, "default")


def test_files_come_before_the_model() -> None:
    resolved = plan(files=FILES)

    assert resolved.sequence == Sourced(("MEAN",), "1_Pooling/config.json")
    assert resolved.use_activation == Sourced(False, "modules.json")


def test_a_user_decides_one_field_and_leaves_the_others_to_the_files() -> None:
    pooled = plan(PoolerConfig(pooling_type="LAST"), FILES)
    normed = plan(PoolerConfig(use_activation=True), FILES)

    assert pooled.sequence == Sourced(("LAST",), "pooler config")
    assert pooled.use_activation == Sourced(False, "modules.json")
    assert normed.sequence.value == ("MEAN",)
    assert normed.use_activation == Sourced(True, "pooler config")


def test_a_request_has_the_last_word() -> None:
    resolved = plan(PoolerConfig(use_activation=False, dimensions=8))

    assert resolved.options("embed", None) == Options(False, 8)
    assert resolved.options("embed", PoolingParams(use_activation=True, dimensions=4)) == Options(True, 4)


@pytest.mark.parametrize("given", ["mean", "Mean", "MEAN"])
def test_a_pooling_type_may_be_written_in_any_case(given: str) -> None:
    assert plan(PoolerConfig(pooling_type=given)).sequence.value == ("MEAN",)
    assert plan(PoolerConfig(seq_pooling_type=given)).sequence.value == ("MEAN",)


def test_token_pooling_is_no_sequence_pooling() -> None:
    resolved = plan(PoolerConfig(pooling_type="STEP"), FILES)

    assert resolved.token == Sourced("STEP", "pooler config")
    assert resolved.sequence.value == ("MEAN",)


@pytest.mark.parametrize("config", [{"pooling_type": "MEDIAN"}, {"tok_pooling_type": "MEAN"}])
def test_an_unknown_pooling_lists_the_known_ones(config: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match="there are: "):
        plan(PoolerConfig(**config))


@pytest.mark.parametrize("target", ["seq_pooling_type", "tok_pooling_type"])
def test_two_words_for_one_pooling_are_refused(target: str) -> None:
    kinds = {"seq_pooling_type": ("MEAN", "CLS"), "tok_pooling_type": ("STEP", "ALL")}[target]

    with pytest.raises(BadRequest, match=f"Cannot set both `pooling_type` and `{target}`"):
        PoolerConfig(pooling_type=kinds[0], **{target: kinds[1]})


def test_a_task_may_be_singled_out() -> None:
    assert plan(PoolerConfig(task="token_embed")).tasks == ("token_embed",)
    with pytest.raises(LoadError, match="Unsupported task: 'classify' Supported tasks: "):
        plan(PoolerConfig(task="classify"))


@pytest.mark.parametrize(
    ("task", "params", "foreign"),
    [
        ("classify", {"dimensions": 4}, "dimensions"),
        ("token_classify", {"dimensions": 4}, "dimensions"),
        ("embed", {"step_tag_id": 4}, "step_tag_id"),
        ("token_embed", {"returned_token_ids": [1, 2]}, "returned_token_ids"),
    ],
)
def test_a_parameter_of_another_task_is_refused(task: Any, params: dict[str, Any], foreign: str) -> None:
    with pytest.raises(
        BadRequest, match=rf"Task '{task}' only supports .* does not support \['{foreign}'\] parameters"
    ):
        plan().options(task, PoolingParams(**params))


def test_step_fields_come_from_the_request_then_from_the_options() -> None:
    resolved = plan(PoolerConfig(pooling_type="STEP", step_tag_id=5, returned_token_ids=[1, 2]))

    assert resolved.options("token_embed", None) == Options(True, None, 5, (1, 2))
    assert resolved.options("token_embed", PoolingParams(step_tag_id=6, returned_token_ids=[3])) == Options(
        True, None, 6, (3,)
    )
    assert resolved.options("embed", None) == Options(True)  # one vector has no steps


@pytest.mark.parametrize(
    ("matryoshka", "dimensions", "error", "words"),
    [
        (Matryoshka(False, (), 32), 8, Unsupported, "does not support matryoshka"),
        (Matryoshka(True, (8, 16), 32), 4, BadRequest, r"only supports \[8, 16\]"),
        (Matryoshka(True, (), 32), 33, BadRequest, r"range \[1, 32\], got 33"),
        (Matryoshka(True, (), 32), 0, BadRequest, r"range \[1, 32\], got 0"),
    ],
)
def test_a_length_the_model_was_not_trained_for_is_refused(
    matryoshka: Matryoshka, dimensions: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        plan(matryoshka=matryoshka).options("embed", PoolingParams(dimensions=dimensions))
    with pytest.raises(error, match=words):
        plan(PoolerConfig(dimensions=dimensions), matryoshka=matryoshka)


def test_the_length_that_a_model_has_anyway_needs_no_training() -> None:
    resolved = plan(matryoshka=Matryoshka(False, (), 32))

    assert resolved.options("embed", PoolingParams(dimensions=32)) == Options(True, 32)


def test_sigma_must_divide() -> None:
    with pytest.raises(BadRequest, match=r"logit_sigma cannot be 0 \(division by zero\)"):
        PoolerConfig(logit_sigma=0.0)


def test_both_names_of_the_mean_must_agree() -> None:
    assert PoolerConfig(logit_bias=2.0).logit_mean == 2.0
    assert PoolerConfig(logit_bias=2.0, logit_mean=2.0).logit_mean == 2.0
    with pytest.raises(BadRequest, match="`logit_bias` is the older name of `logit_mean`"):
        PoolerConfig(logit_bias=2.0, logit_mean=1.0)
