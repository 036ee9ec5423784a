"""LoRA adapters: PEFT folders, and adapters stored in or bundled with a checkpoint."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close
from transformers import PreTrainedModel

from cenote import LLM, BadRequest, LoadError, LoRARequest, Unsupported
from cenote.kernels.cpu_features import CPUFeatures
from tests.models.adapters import ALPHA, BERT_TARGETS, QWEN_TARGETS, RANK, merge_jina_v3_task, save_adapter
from tests.models.rotary_encoders import TASKS, save_adapted
from tests.tiny import (
    TEXTS,
    change_config,
    compute_hidden_states,
    save_tiny,
    tiny_bert,
    tiny_bert_classifier,
    tiny_qwen3,
)

ALL_LINEAR = ("query", "key", "value", "dense")


def last_states(reference: PreTrainedModel, llm: LLM, texts: list[str] = TEXTS) -> list[Tensor]:
    ids = [output.prompt_token_ids for output in llm.embed(texts, use_tqdm=False)]
    return [torch.nn.functional.normalize(rows[-1], dim=-1) for rows in compute_hidden_states(reference, ids)]


def vectors(llm: LLM, texts: list[str] = TEXTS, **how: Any) -> list[Tensor]:
    return [output.outputs.data for output in llm.embed(texts, use_tqdm=False, **how)]


def open_tuned(parent: Path) -> LLM:
    return LLM(str(parent / "model"), dtype="float32", lora_modules=(f"tuned={parent / 'tuned'}",))


def assert_tokens(parent: Path, merged: PreTrainedModel) -> None:
    """Check the token embeddings of an adapter against a model with the same updates."""
    with open_tuned(parent) as llm:
        outputs = llm.encode(TEXTS, pooling_task="token_embed", lora_request="tuned", use_tqdm=False)
    expected = compute_hidden_states(merged, [output.prompt_token_ids for output in outputs])
    for output, rows in zip(outputs, expected, strict=True):
        assert_close(output.outputs.data, torch.nn.functional.normalize(rows, dim=-1), atol=1e-4, rtol=0)


def test_every_prompt_of_a_call_may_have_another_adapter(tmp_path: Path) -> None:
    plain = tiny_qwen3(tmp_path / "model")
    first = save_adapter(tmp_path / "first", plain, QWEN_TARGETS, seed=1)
    second = save_adapter(tmp_path / "second", plain, ("embed_tokens", "self_attn.k_proj"), seed=2)
    requests = [LoRARequest("first", 1, str(tmp_path / "first")), LoRARequest("second", 2, str(tmp_path / "second"))]
    chosen = [None, requests[0], requests[0], requests[1], None, requests[1], requests[0]]

    with LLM(str(tmp_path / "model"), dtype="float32", enable_lora=True) as llm:
        answers = vectors(llm, lora_request=chosen)
        expected = {
            name: last_states(model, llm) for name, model in ((None, plain), ("first", first), ("second", second))
        }

    for row, (answer, request) in enumerate(zip(answers, chosen, strict=True)):
        assert_close(answer, expected[request and request.lora_name][row], atol=1e-4, rtol=0)
    assert (expected["first"][0] - expected[None][0]).abs().max() > 0.01


def test_an_adapter_of_a_language_model_fits_its_embedder(tmp_path: Path) -> None:
    plain = tiny_qwen3(tmp_path / "model")
    merged = save_adapter(tmp_path / "tuned", plain, QWEN_TARGETS, seed=1, prefix="model.")

    with LLM(str(tmp_path / "model"), dtype="float32", lora_modules=(f"tuned={tmp_path / 'tuned'}",)) as llm:
        answers, expected = vectors(llm, lora_request="tuned"), last_states(merged, llm)

    assert_close(answers, expected, atol=1e-4, rtol=0)


def test_an_encoder_takes_adapters_before_its_activations(tmp_path: Path) -> None:
    plain = save_tiny(tmp_path / "model", "BertModel")
    merged = save_adapter(tmp_path / "tuned", plain, BERT_TARGETS, seed=1)

    assert_tokens(tmp_path, merged)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_updates_of_an_unused_pooler_are_left_out(
    prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = tiny_bert(tmp_path / "model")
    merged = save_adapter(tmp_path / "tuned", plain, ALL_LINEAR, seed=1, prefix=prefix, target_modules="all-linear")

    assert_tokens(tmp_path, merged)
    assert [record.message for record in caplog.records if "updates of" in record.message] == [
        f"{tmp_path / 'tuned'}: updates of {prefix}pooler.dense are not applied, as no task of the model uses it"
    ]


@pytest.mark.parametrize("layer", ["pooler.dense", "classifier"])
def test_updates_of_a_head_are_refused(layer: str, tmp_path: Path) -> None:
    plain = tiny_bert_classifier(tmp_path / "model")
    save_adapter(tmp_path / "tuned", plain, ("query", layer), seed=1)

    with pytest.raises(LoadError, match=rf"LoRA is not supported in (bert\.)?{layer}, .* merge the adapter"):
        LLM(str(tmp_path / "model"), lora_modules=(f"tuned={tmp_path / 'tuned'}",))


@pytest.mark.parametrize(
    ("name", "model", "layer", "options"),
    [
        ("sup-simcse-bert-base-uncased", "BertModel", "pooler.dense", {}),
        ("Qwen3-Reranker-0.6B", "Qwen3ForCausalLM", "lm_head", {"tie_word_embeddings": False}),
        ("Qwen3-Reranker-0.6B", "Qwen3ForCausalLM", "embed_tokens", {"tie_word_embeddings": True}),
    ],
)
def test_updates_of_a_layer_that_is_read_as_a_head_are_refused(
    name: str, model: str, layer: str, options: dict[str, Any], tmp_path: Path
) -> None:
    plain = save_tiny(tmp_path / name, model, **options)
    save_adapter(tmp_path / "tuned", plain, ("query", "q_proj", layer), seed=1)

    with pytest.raises(LoadError, match=rf"LoRA is not supported in (model\.)?{layer}, .* merge the adapter"):
        LLM(str(tmp_path / name), lora_modules=(f"tuned={tmp_path / 'tuned'}",))


@pytest.mark.parametrize("multiplies_int8", [False, True])
def test_adapters_apply_to_layers_with_int8_weights(
    multiplies_int8: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = frozenset({"amx_int8"} if multiplies_int8 else ())
    monkeypatch.setattr("cenote.layers.post_load.cpu_features", lambda: CPUFeatures("x86", flags))
    plain = save_tiny(tmp_path / "model", "BertModel")
    merged = save_adapter(tmp_path / "tuned", plain, BERT_TARGETS, seed=1)
    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "quantization": "int8"}

    with LLM(str(tmp_path / "model"), lora_modules=(f"tuned={tmp_path / 'tuned'}",), **options) as llm:
        outputs = llm.encode(TEXTS, pooling_task="token_embed", lora_request="tuned", use_tqdm=False)
        token_ids = [output.prompt_token_ids for output in outputs]
        expected, untuned = compute_hidden_states(merged, token_ids), compute_hidden_states(plain, token_ids)

    for output, rows, others in zip(outputs, expected, untuned, strict=True):
        assert cosine_similarity(output.outputs.data, rows, dim=-1).min() > 0.99
        assert cosine_similarity(output.outputs.data, others, dim=-1).min() < 0.9


@pytest.mark.parametrize(
    "config",
    [
        {"use_rslora": True, "scale": ALPHA / RANK**0.5},
        {"alpha_pattern": {"q_proj": 1.5, "v_proj": 1.5}, "scale": 1.5 / RANK},
        {"drop": ("lora_alpha",), "scale": 8 / RANK},  # the defaults of PEFT: lora_alpha is 8, whatever the rank
        {"drop": ("lora_alpha", "r"), "scale": 8 / RANK},
        {"drop": ("r",), "rank_pattern": {"q_proj": RANK, "v_proj": RANK}, "scale": ALPHA / RANK},
        {"drop": ("lora_alpha",), "use_rslora": True, "alpha_pattern": {"x_proj": 1}, "scale": 8 / RANK**0.5},
    ],
)
def test_other_scales_of_peft_are_read(tmp_path: Path, config: dict[str, Any]) -> None:
    plain = tiny_qwen3(tmp_path / "model")
    merged = save_adapter(tmp_path / "tuned", plain, ("q_proj", "v_proj"), seed=1, **config)

    with open_tuned(tmp_path) as llm:
        assert_close(vectors(llm, lora_request="tuned"), last_states(merged, llm), atol=1e-4, rtol=0)


def test_a_transposed_layer_takes_an_adapter(tmp_path: Path) -> None:
    plain = save_tiny(tmp_path / "model", "GPT2Model")
    merged, folder = deepcopy(plain), tmp_path / "tuned"
    folder.mkdir()
    down, up = torch.randn(RANK, 32), torch.randn(96, RANK)
    merged.h[0].attn.c_attn.weight.data += 0.2 * (up @ down).T
    names = {"lora_A.weight": down, "lora_B.weight": up}
    save_file(
        {f"base_model.model.h.0.attn.c_attn.{name}": half for name, half in names.items()},
        folder / "adapter_model.safetensors",
    )
    (folder / "adapter_config.json").write_text(
        json.dumps({"r": RANK, "lora_alpha": 0.2 * RANK, "fan_in_fan_out": True})
    )

    with open_tuned(tmp_path) as llm:
        assert_close(vectors(llm, lora_request="tuned"), last_states(merged, llm), atol=1e-4, rtol=0)


def test_an_adapter_that_does_not_fit_is_refused_with_the_reason(tmp_path: Path) -> None:
    plain = tiny_qwen3(tmp_path / "model")
    other = save_tiny(tmp_path / "other", "BertModel")
    save_adapter(tmp_path / "foreign", other, BERT_TARGETS, seed=1)
    save_adapter(tmp_path / "dora", plain, ("q_proj",), seed=1, use_dora=True)
    save_adapter(tmp_path / "whole", plain, ("q_proj",), seed=1)
    tensors = load_file(tmp_path / "whole" / "adapter_model.safetensors")
    save_file(
        tensors | {"base_model.model.score.weight": torch.ones(2)}, tmp_path / "whole" / "adapter_model.safetensors"
    )

    with LLM(str(tmp_path / "model"), dtype="float32", enable_lora=True) as llm:
        for name, words in (
            ("foreign", "the model has no layer encoder.layer.0"),
            ("dora", "of type DoRA are not supported"),
            ("whole", "score.weight is not a LoRA tensor"),
            ("nothing", "does not exist"),
        ):
            with pytest.raises(LoadError, match=words):
                llm.embed("a", lora_request=LoRARequest(name, 1, str(tmp_path / name)), use_tqdm=False)
        with pytest.raises(BadRequest, match="unknown adapter 'stranger'; available: "):
            llm.embed("a", lora_request="stranger", use_tqdm=False)


def test_a_model_without_lora_refuses_adapters_with_the_vllm_message(tmp_path: Path) -> None:
    tiny_qwen3(tmp_path)

    with LLM(str(tmp_path), dtype="float32") as llm, pytest.raises(Unsupported, match="but LoRA is not enabled!"):
        llm.embed("a", lora_request=LoRARequest("x", 1, "y"), use_tqdm=False)


def test_bundled_adapter_folders_are_loaded_and_the_first_task_is_the_default(tmp_path: Path) -> None:
    plain = tiny_qwen3(tmp_path, architectures=["JinaEmbeddingsV5Model"])
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["JinaEmbeddingsV5Model"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    merged = {
        task: save_adapter(tmp_path / "adapters" / task, plain, QWEN_TARGETS, seed=seed)
        for seed, task in enumerate(("retrieval", "text-matching", "classification", "clustering"))
    }

    with LLM(str(tmp_path), dtype="float32") as llm:
        assert_close(vectors(llm), last_states(merged["retrieval"], llm), atol=1e-4, rtol=0)
        assert_close(vectors(llm, lora_request="clustering"), last_states(merged["clustering"], llm), atol=1e-4, rtol=0)
    with LLM(str(tmp_path), dtype="float32", hf_overrides={"jina_task": "text-matching"}) as llm:
        assert_close(vectors(llm), last_states(merged["text-matching"], llm), atol=1e-4, rtol=0)


def test_the_five_tasks_of_jina_v3_are_there_for_every_request(tmp_path: Path) -> None:
    reference = save_adapted(tmp_path)

    def merged(task: str) -> PreTrainedModel:
        return merge_jina_v3_task(reference, tmp_path, task)

    with LLM(str(tmp_path), dtype="float32", pooler_config={"pooling_type": "LAST"}) as llm:
        assert llm.engine.model_info.adapters == tuple(TASKS)
        assert_close(vectors(llm), last_states(merged("text-matching"), llm), atol=1e-4, rtol=0)
        for task in TASKS:
            assert_close(vectors(llm, lora_request=task), last_states(merged(task), llm), atol=1e-4, rtol=0)


def test_layers_that_share_their_weights_share_their_adapter(tmp_path: Path) -> None:
    plain = save_tiny(tmp_path / "model", "AlbertModel")
    merged = save_adapter(tmp_path / "tuned", plain, ("attention.query", "ffn"), seed=1)

    assert_tokens(tmp_path, merged)


def test_a_training_folder_is_not_an_adapter(tmp_path: Path) -> None:
    plain = tiny_qwen3(tmp_path)
    save_adapter(tmp_path / "lora", plain, ("q_proj",), seed=1)
    (tmp_path / "lora" / "adapter_model.safetensors").unlink()

    with LLM(str(tmp_path), dtype="float32") as llm:
        assert llm.engine.model_info.adapters == ()


def test_an_unknown_task_of_jina_v5_is_logged_and_the_default_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = tiny_qwen3(tmp_path)
    change_config(tmp_path, architectures=["JinaEmbeddingsV5Model"], jina_task="nonsense")
    with LLM(str(tmp_path), dtype="float32"):
        assert "does not contain the adapters it was trained with" in caplog.text
    merged = save_adapter(tmp_path / "adapters" / "retrieval", plain, QWEN_TARGETS, seed=1)

    with LLM(str(tmp_path), dtype="float32") as llm:
        assert "has no adapter 'nonsense'; using retrieval" in caplog.text
        assert_close(vectors(llm), last_states(merged, llm), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["ElectraModel", "AlbertModel"])
def test_the_embedding_projection_takes_an_adapter(name: str, tmp_path: Path) -> None:
    plain = save_tiny(tmp_path / "model", name)
    target = "embeddings_project" if name == "ElectraModel" else "embedding_hidden_mapping_in"
    tuned = tmp_path / "tuned"
    merged = deepcopy(plain)
    layer = merged.get_submodule(target if name == "ElectraModel" else f"encoder.{target}")
    down, up = torch.randn(RANK, layer.in_features), torch.randn(layer.out_features, RANK)
    layer.weight.data += up @ down
    tuned.mkdir()
    module = "embeddings_project" if name == "ElectraModel" else f"encoder.{target}"
    halves = {"lora_A.weight": down, "lora_B.weight": up}
    tensors = {f"base_model.model.{module}.{half}": tensor for half, tensor in halves.items()}
    save_file(tensors, tuned / "adapter_model.safetensors")
    (tuned / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": RANK}))

    assert_tokens(tmp_path, merged)
