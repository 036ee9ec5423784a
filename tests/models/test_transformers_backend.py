"""Architectures without a native implementation run on the Transformers backend."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from cenote import LLM, LoadError
from cenote.loading import transformers_entry
from cenote.utils.install_commands import install_command
from tests.tiny import (
    BERT_TOKENS,
    ENCODER,
    TEXTS,
    randomize,
    save_tiny,
    save_tokenizer,
    tiny_bert,
    tiny_bert_classifier,
)

# an encoder and a decoder without native implementation
UNKNOWN = {
    "encoder": ("RoFormerModel", ENCODER | {"pad_token_id": 0, "embedding_size": 32}, "CLS"),
    "decoder": (
        "BloomModel",
        {"vocab_size": 160, "hidden_size": 32, "n_layer": 2, "n_head": 4, "seq_length": 64},
        "CLS",
    ),
}


def save(folder: Path, name: str, config: dict[str, object]) -> transformers.PreTrainedModel:
    made = getattr(transformers, name)
    model = made(made.config_class(**config)).eval().requires_grad_(False)
    randomize(model)
    model.save_pretrained(folder)
    save_tokenizer(folder, BERT_TOKENS)
    return model


@pytest.mark.parametrize("kind", UNKNOWN)
def test_an_unknown_model_embeds_as_the_library_does(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, config, _ = UNKNOWN[kind]
    reference = save(tmp_path, name, config)

    with caplog.at_level(logging.WARNING), LLM(str(tmp_path), dtype="float32", max_model_len=64) as llm:
        outputs = llm.encode(TEXTS, pooling_task="token_embed", use_tqdm=False)

    assert "runs on the Transformers backend: inputs are padded" in caplog.text
    for output in outputs:
        with torch.inference_mode():
            alone = reference(input_ids=torch.tensor([output.prompt_token_ids])).last_hidden_state[0]
        assert_close(output.outputs.data, torch.nn.functional.normalize(alone, dim=-1), atol=1e-4, rtol=0)


def test_a_log_has_no_bar_of_the_librarys_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, *UNKNOWN["encoder"][:2])
    monkeypatch.setattr("transformers.utils.logging._tqdm_active", True)  # as it is unless tests.tiny is imported

    LLM(str(tmp_path), dtype="float32", max_model_len=64).close()

    assert capsys.readouterr().err == ""
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_an_unknown_classifier_classifies_and_scores(tmp_path: Path) -> None:
    config = ENCODER | {"pad_token_id": 0, "embedding_size": 32, "num_labels": 1}
    reference = save(tmp_path, "RoFormerForSequenceClassification", config)

    with LLM(str(tmp_path), dtype="float32", max_model_len=64) as llm:
        assert llm.supported_tasks == ("classify", "score")
        outputs = llm.score("the cat", ["a dog", "the old river in berlin"], use_tqdm=False)

    for output in outputs:
        ids = torch.tensor([output.prompt_token_ids])
        types = torch.tensor([[0] * 4 + [1] * (ids.shape[1] - 4)])
        with torch.inference_mode():
            logit = reference(input_ids=ids, token_type_ids=types).logits[0]
        assert_close(torch.tensor([output.outputs.score]), logit.sigmoid(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("pad", [0, 5, 159])
def test_a_decoder_classifier_gives_the_same_in_a_batch_and_alone(pad: int, tmp_path: Path) -> None:
    """Transformers finds the last token by the padding token."""
    sizes = {"num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4, "max_position_embeddings": 64}
    config = {"vocab_size": 160, "hidden_size": 32, "pad_token_id": pad, "num_labels": 3} | sizes
    reference = save(tmp_path, "GPTNeoXForSequenceClassification", config)

    with LLM(str(tmp_path), dtype="float32") as llm:
        outputs = llm.classify(TEXTS, use_tqdm=False)

    for output in outputs:
        with torch.inference_mode():
            logits = reference(input_ids=torch.tensor([output.prompt_token_ids])).logits[0]
        assert_close(output.outputs.data, logits.softmax(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["Qwen3Model", "GPT2Model", "Gemma3TextModel"])
def test_the_library_pools_as_we_do(name: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, name)

    with (
        LLM(str(tmp_path), dtype="float32") as actual,
        LLM(str(tmp_path), dtype="float32", model_impl="transformers") as expected,
    ):
        for one, other in zip(actual.embed(TEXTS, use_tqdm=False), expected.embed(TEXTS, use_tqdm=False), strict=True):
            assert_close(one.outputs.data, other.outputs.data, atol=1e-4, rtol=0)


def test_the_library_runs_the_encoder_of_two_halves(tmp_path: Path) -> None:
    save_tiny(tmp_path, "T5EncoderModel")
    how = {"dtype": "float32", "pooler_config": {"pooling_type": "MEAN"}}

    with LLM(str(tmp_path), **how) as actual, LLM(str(tmp_path), **how, model_impl="transformers") as expected:
        for one, other in zip(actual.embed(TEXTS, use_tqdm=False), expected.embed(TEXTS, use_tqdm=False), strict=True):
            assert_close(one.outputs.data, other.outputs.data, atol=1e-4, rtol=0)


def test_an_unknown_tagger_classifies_tokens(tmp_path: Path) -> None:
    config = ENCODER | {"pad_token_id": 0, "embedding_size": 32, "num_labels": 5}
    reference = save(tmp_path, "RoFormerForTokenClassification", config)

    with LLM(str(tmp_path), dtype="float32", max_model_len=64) as llm:
        outputs = llm.encode(TEXTS, pooling_task="token_classify", use_tqdm=False)

    for output in outputs:
        with torch.inference_mode():
            rows = reference(input_ids=torch.tensor([output.prompt_token_ids])).logits[0]
        assert_close(output.outputs.data, rows.softmax(-1), atol=1e-4, rtol=0)


def test_a_native_model_run_by_the_transformers_backend_gives_the_same(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    with (
        LLM(str(tmp_path), dtype="float32") as actual,
        LLM(str(tmp_path), dtype="float32", model_impl="transformers") as expected,
    ):
        for one, other in zip(actual.embed(TEXTS, use_tqdm=False), expected.embed(TEXTS, use_tqdm=False), strict=True):
            assert_close(one.outputs.data, other.outputs.data, atol=1e-4, rtol=0)


def test_without_the_library_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, config, _ = UNKNOWN["encoder"]
    save(tmp_path, name, config)
    monkeypatch.setattr(transformers_entry, "find_spec", lambda module: None)

    with pytest.raises(LoadError, match=re.escape(f"may support it: {install_command('transformers')}")):
        LLM(str(tmp_path))
    with pytest.raises(LoadError, match="unknown architectures"):
        LLM(str(tmp_path), model_impl="cenote")


def test_the_transformers_backend_refuses_quantization(tmp_path: Path) -> None:
    save(tmp_path, *UNKNOWN["encoder"][:2])

    with pytest.raises(LoadError, match="quantization=int8 is not supported by the Transformers backend"):
        LLM(str(tmp_path), device="cpu", quantization="int8")


def test_the_transformers_backend_makes_no_classifier_of_an_embedder(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path / "classifier")
    name, config, _ = UNKNOWN["decoder"]
    save(tmp_path, name, config)

    with pytest.raises(LoadError, match="which cannot convert it to a classifier"):
        LLM(str(tmp_path), convert="classify")


def test_missing_weights_are_refused_by_name(tmp_path: Path) -> None:
    name, config, _ = UNKNOWN["encoder"]
    save(tmp_path, name, config)
    weights = load_file(tmp_path / "model.safetensors")
    removed = next(key for key in weights if "layer.1." in key and key.endswith("weight"))
    save_file({key: value for key, value in weights.items() if key != removed}, tmp_path / "model.safetensors")

    with pytest.raises(
        LoadError, match=f"weights are missing in the checkpoint: .*{removed.rpartition('layer.1.')[2]}"
    ):
        LLM(str(tmp_path), max_model_len=64)


def test_a_missing_pooler_is_accepted(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {key: value for key, value in weights.items() if not key.startswith("pooler.")}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})

    with LLM(str(tmp_path), dtype="float32", model_impl="transformers") as llm:
        assert len(llm.embed("a", use_tqdm=False)) == 1


def test_a_model_without_hidden_states_is_refused_at_load(tmp_path: Path) -> None:
    save(tmp_path, "DPRQuestionEncoder", ENCODER | {"pad_token_id": 0})

    with pytest.raises(LoadError, match="DPRQuestionEncoder cannot be used .*: it returns no last_hidden_state"):
        LLM(str(tmp_path), model_impl="transformers", max_model_len=64)
