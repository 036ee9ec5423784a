"""EngineConfig reaches the engine process unchanged."""

from __future__ import annotations

import pytest

from cenote.config.engine import EngineConfig
from cenote.config.engine_json import decode_engine_config, encode_engine_config
from cenote.config.pooler import PoolerConfig
from cenote.errors import BadRequest


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(),
        EngineConfig.from_kwargs(
            "folder",
            dtype="half",
            max_model_len="8K",
            hf_overrides={"rope_theta": 1e6, "nested": {"a": [1, 2]}},
            pooler_config={"pooling_type": "STEP", "step_tag_id": 3, "returned_token_ids": [1, 2]},
            lora_modules=("a=b", "c=d"),
            allowed_media_domains=("a.example",),
            result_cache_bytes="1M",
            step_timeout_s=2.5,
            task="classify",
        ),
        EngineConfig(pooler_config=PoolerConfig(pooling_type="CLS", use_activation=False)),
    ],
    ids=["defaults", "many options", "pooler"],
)
def test_a_config_is_decoded_unchanged(config: EngineConfig) -> None:
    assert decode_engine_config(encode_engine_config(config)) == config


def test_a_function_cannot_be_sent() -> None:
    with pytest.raises(BadRequest, match="hf_overrides as a function"):
        encode_engine_config(EngineConfig(hf_overrides=lambda config: config))
