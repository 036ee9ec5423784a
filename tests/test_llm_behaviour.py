"""LLM as part of a program: memory, pickling, forks, configuration values and errors at load time."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import cenote
from cenote import LLM, LoadError, PoolerConfig, PoolingParams
from cenote.config.engine import EngineConfig
from cenote.engine.engine import PoolingEngine
from cenote.errors import BadRequest, EngineStopped
from cenote.loading.load import load_model
from cenote.loading.loaded_model import LoadedModel
from cenote.protocol.requests import PoolRequest
from tests.tiny import change_config, tiny_bert, tiny_bert_classifier, tiny_qwen3


def test_a_pickled_output_does_not_contain_its_batch(llm: LLM) -> None:
    outputs = llm.embed(["one text of many"] * 64, use_tqdm=False)

    pickled = pickle.dumps(outputs[0])
    assert len(pickled) < 3000  # 384 float32 values and the objects around them
    assert pickle.loads(pickled).outputs.embedding == outputs[0].outputs.embedding


def test_outputs_are_freed_when_the_caller_drops_them(llm: LLM) -> None:
    state = llm.engine.submit(PoolRequest(task="embed", inputs=["a", "b"]))
    state.wait()
    reference = weakref.ref(state)
    del state
    for _ in range(100):  # the engine thread may still hold a reference for a moment
        gc.collect()
        if reference() is None:
            break
        signal.sigtimedwait([], 0.05)

    assert reference() is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python warns of forks with running threads
def test_using_the_engine_after_fork_raises(llm: LLM) -> None:
    child = os.fork()
    if child == 0:  # no pytest in the child: its exit status is the result
        try:
            llm.engine.submit(PoolRequest(task="embed", inputs=["a"]))
        except EngineStopped as error:
            os._exit(7 if "after fork()" in str(error) else 1)
        os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_short_text_overtakes_the_chunks_of_a_long_one() -> None:
    chunked = PoolerConfig(enable_chunked_processing=True)
    config = EngineConfig.from_kwargs(device="cpu", pooler_config=chunked, max_num_batched_tokens=512)
    engine = PoolingEngine(load_model(config), config)
    try:
        long = engine.submit(PoolRequest(task="embed", inputs=["river stone " * 60_000]))
        short = engine.submit(PoolRequest(task="embed", inputs=["short"]))
        short.wait()

        assert not long.future.done()
        assert engine.core.loop.scheduler.num_waiting_tokens <= 2 * engine.tokenizer_worker.max_waiting_tokens
    finally:
        engine.stop()


def test_a_default_device_of_the_program_changes_nothing_and_stays(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path, num_labels=1)

    def run() -> list[Any]:
        with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
            (matrix,) = llm.encode("a b c", pooling_task="token_classify")
            (score,) = llm.score("a b", "c")
            return [llm.classify("a b c")[0].outputs.probs, matrix.outputs.data.tolist(), score.outputs.score]

    expected = run()
    torch.set_default_device("meta")
    try:
        assert run() == expected
        assert torch.get_default_device() == torch.device("meta")
    finally:
        torch.set_default_device(None)


def test_none_is_the_default_of_an_option_and_torch_dtypes_are_accepted() -> None:
    config = EngineConfig.from_kwargs(
        max_num_seqs=None, io_processor_plugin=None, kv_cache_dtype="auto", dtype=torch.bfloat16
    )

    assert config == EngineConfig(dtype="bfloat16")


@pytest.mark.parametrize("options", [{"convert": "clasify"}, {"runner": "poling"}, {"scheduling_policy": "prio"}])
def test_a_value_outside_the_choices_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match="expected one of: "):
        EngineConfig.from_kwargs(**options)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_activation": "False"},
        {"enable_chunked_processing": "false"},
        {"pooling_type": 5},
        {"max_embed_len": "100"},
        {"max_embed_len": -5},
        {"logit_mean": "a"},
        {"returned_token_ids": 3},
    ],
    ids=str,
)
def test_a_pooler_setting_of_the_wrong_type_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(settings))):
        PoolerConfig.from_value(settings)


def test_parameters_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(BadRequest, match="use_activation must be bool, got 'no'"):
        PoolingParams(use_activation="no")  # type: ignore[arg-type]


def test_the_outputs_are_exported() -> None:
    assert {getattr(cenote, name).__name__ for name in cenote.__all__ if name.endswith("Output")} == {
        name for name in cenote.__all__ if name.endswith("Output")
    }


def test_truncate_prompt_tokens_in_pooling_params_is_applied(llm: LLM) -> None:
    (output,) = llm.embed("a b c d e f g", pooling_params=PoolingParams(truncate_prompt_tokens=5), use_tqdm=False)

    assert len(output.prompt_token_ids) == 5 and output.num_input_tokens == 9


def test_the_model_config_describes_the_model(llm: LLM) -> None:
    config = llm.model_config

    assert (config.max_model_len, config.dtype, config.hf_config.hidden_size) == (256, torch.float32, 384)
    assert not hasattr(config.hf_config, "nonsense")


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_a_method_that_would_generate_text_names_those_of_the_model(name: str, llm: LLM) -> None:
    with pytest.raises(ValueError) as refused:
        getattr(llm, name)(["Hello, my name is"], sampling_params=None)

    assert str(refused.value) == (
        f"LLM.{name}: Cenote generates no text. It computes embeddings, similarities and relevance scores, classes, "
        "and results per token; mini supports the tasks embed, token_embed; call LLM.embed, LLM.score or "
        "LLM.encode(prompts, pooling_task=...)"
    )


def test_a_callers_tokenizer_is_a_copy(llm: LLM) -> None:
    before = llm.embed("a b c d e", use_tqdm=False)[0].prompt_token_ids

    llm.get_tokenizer().enable_truncation(3)

    assert llm.embed("a b c d e", use_tqdm=False)[0].prompt_token_ids == before


@pytest.mark.parametrize("device", ["mps", "meta", "cuda:99", "nonsense"])
def test_an_unavailable_device_gives_a_one_line_error(device: str) -> None:
    with pytest.raises(LoadError, match="device="):
        LLM(device=device)


@pytest.mark.parametrize(
    "values",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": "4"},
        {"num_hidden_layers": "2"},
        {"matryoshka_dimensions": 8},
        {"sentence_transformers": "x"},
    ],
    ids=str,
)
def test_an_invalid_value_in_config_json_gives_a_one_line_error_naming_the_file(
    values: dict[str, Any], tmp_path: Path
) -> None:
    tiny_bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **values}))

    with pytest.raises(LoadError) as caught:
        load_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu"))

    assert "\n" not in str(caught.value)


def load_from(folder: Path, **options: Any) -> LoadedModel:
    return load_model(EngineConfig.from_kwargs(str(folder), dtype="float32", device="cpu", **options))


def test_deprecated_names_of_rotary_options_override_newer_configs(tmp_path: Path) -> None:
    tiny_qwen3(tmp_path)
    change_config(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 66}

    other_theta = load_from(tmp_path, hf_overrides={"rope_theta": 100.0}).description
    scaled = load_from(tmp_path, hf_overrides={"rope_scaling": scaling}).description

    assert other_theta.architecture.backbone.rope is not None and other_theta.architecture.backbone.rope.theta == 100.0
    assert scaled.max_length.value == 264


def test_overrides_may_be_a_function_that_sets_attributes(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    def change(config: Any) -> Any:
        config.is_matryoshka = True
        return config

    assert load_from(tmp_path, hf_overrides=change).description.plan.matryoshka.is_supported


def test_sentence_transformers_files_do_not_apply_to_a_classifier(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)
    pooling = tmp_path / "1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}))
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(kinds)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))

    plan = load_from(tmp_path).description.plan

    assert (plan.seq_pooling_types.value, plan.use_activation.value) == (("CLS",), True)
