"""Options: declarations, deprecated names, and errors for unknown names and invalid values."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from cenote.api.http.request_head import MAX_HEADER_BYTES, MAX_HEADERS
from cenote.config.engine import EngineConfig
from cenote.config.options import option_fields, parse_token_count
from cenote.config.pooler import PoolerConfig
from cenote.config.vllm_options import REFUSAL_REASONS, VLLM_OPTIONS, Values, list_accepted_values
from cenote.errors import BadRequest, LoadError

# numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        (4096, 4096),
        ("8k", 8000),
        ("8K", 8192),
        ("1m", 10**6),
        ("1M", 2**20),
        ("1g", 10**9),
        ("1.5k", 1500),
        ("25.6k", 25600),
        ("-1", -1),
        (-1, -1),
    ],
)
def test_token_counts_may_have_a_unit(text: str | int, number: int) -> None:
    assert parse_token_count(text) == number


@pytest.mark.parametrize("text", ["", "k", "many", "1.5", "8kk", "8 k k", "0x10", "infk", "nank"])
def test_an_invalid_token_count_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="invalid token count"):
        parse_token_count(text)


# the pooler


def test_an_alias_sets_the_same_option() -> None:
    assert PoolerConfig(normalize=False) == PoolerConfig(use_activation=False)
    assert PoolerConfig(normalize=True, use_activation=True) == PoolerConfig(use_activation=True)
    assert PoolerConfig(logit_bias=1.5) == PoolerConfig(logit_mean=1.5)
    assert PoolerConfig(logit_bias=0.0) == PoolerConfig(logit_mean=0.0)
    assert PoolerConfig(logit_bias=1.5, logit_mean=1.5).logit_mean == 1.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize": True, "use_activation": False}, "`normalize` is a deprecated alias of `use_activation`"),
        ({"logit_bias": 1.0, "logit_mean": 2.0}, "`logit_bias` is a deprecated alias of `logit_mean`; .*: 1.0 and 2.0"),
        ({"logit_sigma": 0}, r"logit_sigma cannot be 0 \(division by zero\)"),
        ({"logit_sigma": 0.0}, r"logit_sigma cannot be 0 \(division by zero\)"),
        ({"pooling_type": "MEAN", "seq_pooling_type": "CLS"}, "Cannot set both `pooling_type` and `seq_pooling_type`"),
        ({"pooling_type": "ALL", "tok_pooling_type": "STEP"}, "Cannot set both `pooling_type` and `tok_pooling_type`"),
        ({"task": "encode"}, "`encode` task was removed; use `token_embed` or `token_classify` instead."),
    ],
    ids=str,
)
def test_conflicting_and_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        PoolerConfig(**options)


@pytest.mark.parametrize(
    ("kind", "sequence", "token"),
    [
        ("CLS", "CLS", None),
        ("LAST", "LAST", None),
        ("MEAN", "MEAN", None),
        ("mean", "MEAN", None),
        ("ALL", None, "ALL"),
        ("STEP", None, "STEP"),
        ("step", None, "STEP"),
    ],
)
def test_pooling_type_sets_the_sequence_or_the_token_pooling_type(
    kind: str, sequence: str | None, token: str | None
) -> None:
    config = PoolerConfig(pooling_type=kind)

    assert (config.seq_pooling_type, config.tok_pooling_type) == (sequence, token)


def test_a_pooler_config_may_be_an_object_a_mapping_or_nothing() -> None:
    config = PoolerConfig(pooling_type="MEAN")

    assert PoolerConfig.from_value(config) is config
    assert PoolerConfig.from_value({"pooling_type": "MEAN"}) == config
    assert PoolerConfig.from_value(None) == PoolerConfig()
    PoolerConfig.from_value({"enable_flash_late_interaction": False})  # of vLLM, without effect
    with pytest.raises(BadRequest, match="pooler_config must be a PoolerConfig or a mapping, got str"):
        PoolerConfig.from_value("MEAN")  # type: ignore[arg-type]


def test_an_unknown_pooler_config_field_is_refused_with_the_closest_name() -> None:
    with pytest.raises(BadRequest, match="unknown pooler_config field 'poolingtype'; did you mean 'pooling_type'"):
        PoolerConfig.from_value({"poolingtype": "MEAN"})
    with pytest.raises(BadRequest, match="available: activation, dimensions, enable_chunked_processing"):
        PoolerConfig.from_value({"zzz": 1})


# the engine


def test_options_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineConfig().model = "another"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        PoolerConfig().task = "embed"  # type: ignore[misc]


@pytest.mark.parametrize("config", [EngineConfig, PoolerConfig])
def test_every_option_has_a_help_text(config: type) -> None:
    names = [item.name for item in fields(config)]
    if config is EngineConfig:
        names.remove("task")  # deprecated; commands have a --task of their own
    assert [item.name for item in option_fields(config)] == names
    assert all(item.metadata["help"] for item in option_fields(config))


def test_an_unknown_option_is_refused_with_the_closest_name() -> None:
    with pytest.raises(BadRequest, match="unknown engine option 'max_model_length'; did you mean 'max_model_len'"):
        EngineConfig.from_kwargs("m", max_model_length=8)


@pytest.mark.parametrize("old", [{"pooling_type": "MEAN"}, PoolerConfig(pooling_type="MEAN")], ids=["dict", "object"])
def test_override_pooler_config_is_a_deprecated_alias(old: Any) -> None:
    assert EngineConfig.from_kwargs("m", override_pooler_config=old) == EngineConfig.from_kwargs("m", pooler_config=old)
    assert (
        EngineConfig.from_kwargs("m", override_pooler_config=old, pooler_config=old).pooler_config.seq_pooling_type
        == "MEAN"
    )
    with pytest.raises(BadRequest, match="`override_pooler_config` is a deprecated alias of `pooler_config`"):
        EngineConfig.from_kwargs("m", override_pooler_config=old, pooler_config={"pooling_type": "CLS"})


@pytest.mark.parametrize(
    ("task", "convert", "message"),
    [
        ("embed", "embed", "task=embed is deprecated; use --runner pooling --convert embed"),
        ("embedding", "embed", "task=embedding is deprecated; use --runner pooling --convert embed"),
        ("classify", "classify", "task=classify is deprecated; use --runner pooling --convert classify"),
        ("score", "auto", "task=score is deprecated; use --runner pooling"),
        ("reward", "reward", "task=reward is deprecated; use --runner pooling --convert reward"),
    ],
)
def test_the_deprecated_task_option_is_logged_with_its_replacement(
    task: str, convert: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "cenote"):
        config = EngineConfig.from_kwargs("m", task=task)

    assert (config.runner, config.convert) == ("pooling", convert)
    assert caplog.messages == [message]


def test_an_explicit_convert_option_overrides_the_deprecated_task() -> None:
    assert EngineConfig.from_kwargs("m", task="embed", convert="classify").convert == "classify"
    assert EngineConfig.from_kwargs("m", task="auto") == EngineConfig.from_kwargs("m")


def test_an_unknown_task_is_refused_with_the_known_tasks() -> None:
    with pytest.raises(BadRequest, match="invalid task='generate'; expected one of: embed, embedding, classify"):
        EngineConfig.from_kwargs("m", task="generate")


def test_the_first_served_model_name_is_used() -> None:
    assert EngineConfig.from_kwargs("m", served_model_name=["one", "two"]).served_model_name == "one"
    assert EngineConfig.from_kwargs("m", served_model_name="one").served_model_name == "one"
    assert EngineConfig.from_kwargs("m", served_model_name=[]).served_model_name is None


def test_the_limit_of_the_model_may_be_called_auto_as_in_vllm() -> None:
    assert EngineConfig.from_kwargs("m", max_model_len="auto").max_model_len == -1


@pytest.mark.parametrize("given", ["8k", 8000])
def test_max_model_len_may_have_a_unit(given: str | int) -> None:
    assert EngineConfig.from_kwargs("m", max_model_len=given).max_model_len == 8000


def test_vllm_options_without_effect_are_named_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    unused = dict.fromkeys((name for name in VLLM_OPTIONS if name not in REFUSAL_REASONS), "anything")

    configs = [EngineConfig.from_kwargs("m", **unused, model_weights=None) for _ in range(2)]

    assert configs == [EngineConfig.from_kwargs("m")] * 2
    names = ", ".join(unused)
    note = f"a request may have up to {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in all"
    assert caplog.messages == [f"options of vLLM without effect: {names}; {note}"]


@pytest.mark.parametrize("name", REFUSAL_REASONS)
def test_vllm_options_that_would_change_something_have_their_default_value_or_are_refused(name: str) -> None:
    accepted = [*list_accepted_values(name), None, "", {}, []]
    other: Any = ("other",) if VLLM_OPTIONS[name] == Values else "other"

    for value in accepted:
        assert EngineConfig.from_kwargs("m", **{name: value}) == EngineConfig.from_kwargs("m")
    with pytest.raises(LoadError) as caught:
        EngineConfig.from_kwargs("m", **{name: other})
    assert caught.value.message.startswith(f"{name}={other!r} is not supported: {REFUSAL_REASONS[name]}; remove it")


@pytest.mark.parametrize("name", REFUSAL_REASONS)
def test_a_list_for_a_vllm_option_is_refused_unless_it_is_the_default(name: str) -> None:
    with pytest.raises(LoadError, match=f"^{name}=\\['other'\\] is not supported: "):
        EngineConfig.from_kwargs("m", **{name: ["other"]})


def test_a_refused_vllm_option_is_one_line_with_the_value_that_is_accepted() -> None:
    reason = "the processes of a model run on one machine and share its layers by tensor_parallel_size"

    with pytest.raises(LoadError) as caught:
        EngineConfig.from_kwargs("m", nnodes=2)

    assert caught.value.message == f"nnodes=2 is not supported: {reason}; remove it or use 1"


def test_the_keywords_of_vllms_own_test_runner_are_accepted() -> None:
    keywords = {"tokenizer_mode": "auto", "trust_remote_code": True, "seed": 0, "enforce_eager": False}
    keywords |= {"disable_log_stats": True, "block_size": 16, "enable_chunked_prefill": False}

    config = EngineConfig.from_kwargs("m", **keywords, kernel_config={"enable_jit_warmup": False})

    assert config == EngineConfig.from_kwargs("m", trust_remote_code=True)


@pytest.mark.parametrize("given", ["0, 2", [0, 2], ["0", "2"]])
def test_device_ids_of_vllm_are_devices(given: Any) -> None:
    config = EngineConfig.from_kwargs("m", device_ids=given, tensor_parallel_size=2)

    assert config.devices == ("cuda:0", "cuda:2")
    with pytest.raises(BadRequest, match="both were given"):
        EngineConfig.from_kwargs("m", device_ids=given, devices="cuda:0")


def test_an_unknown_quantization_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadRequest, match="invalid quantization='awq'; expected one of: int8, fp8"):
        EngineConfig.from_kwargs("m", quantization="awq")


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "step_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_that_are_not_positive_are_refused(name: str, value: float) -> None:
    with pytest.raises(BadRequest, match=f"{name} must be greater than 0"):
        EngineConfig.from_kwargs("m", **{name: value})
