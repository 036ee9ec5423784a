"""Weight names of checkpoints of different age and origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.load import load_model
from cenote.packed_batch import pack_sequences
from tests.tiny import SEQUENCES, compute_hidden_states, compute_logits, save_tiny, tiny_bert, tiny_bert_classifier

PREFIXES = {"Bert": "bert.", "Roberta": "roberta.", "XLMRoberta": "roberta.", "ModernBert": "model.", "Qwen3": "model."}


def rename(folder: Path, new_name: Callable[[str], str]) -> None:
    file = folder / "model.safetensors"
    tensors = {new_name(name): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


def assert_same_states(folder: Path, expected: list[torch.Tensor]) -> None:
    model = load_model(EngineConfig.from_kwargs(str(folder), dtype="float32", device="cpu"))
    with torch.inference_mode():
        assert_close(model.backbone(pack_sequences(SEQUENCES)), torch.cat(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", PREFIXES)
def test_backbone_names_may_have_the_prefix(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}Model")
    rename(tmp_path, lambda name: PREFIXES[family] + name)

    assert_same_states(tmp_path, compute_hidden_states(reference))


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "ModernBertForMaskedLM", "Qwen3ForCausalLM"])
def test_backbone_names_may_lack_the_prefix(name: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, name)
    prefix = f"{reference.base_model_prefix}."
    assert any(key.startswith(prefix) for key in load_file(tmp_path / "model.safetensors"))
    rename(tmp_path, lambda key: key.removeprefix(prefix))

    assert_same_states(tmp_path, compute_hidden_states(reference))


@pytest.mark.parametrize("family", ["Bert", "Roberta", "ModernBert", "Qwen2"])
def test_a_classifier_loads_with_a_backbone_without_prefix(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForSequenceClassification", num_labels=3)
    prefix = f"{reference.base_model_prefix}."
    rename(tmp_path, lambda key: key.removeprefix(prefix))

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        actual = llm.encode(SEQUENCES, pooling_task="classify", use_tqdm=False)

    for mine, row in zip(actual, compute_logits(reference), strict=True):
        assert_close(mine.outputs.data, row.softmax(-1), atol=1e-4, rtol=0)


def test_norms_may_go_by_their_old_names(tmp_path: Path) -> None:
    reference = tiny_bert(tmp_path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def older(name: str) -> str:
        for today, before in old.items():
            name = name.replace(today, before)
        return "bert." + name

    rename(tmp_path, older)

    assert any(name.endswith("gamma") for name in load_file(tmp_path / "model.safetensors"))
    assert_same_states(tmp_path, compute_hidden_states(reference))


def test_the_tables_of_older_programs_are_passed_over(tmp_path: Path) -> None:
    reference = tiny_bert(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"embeddings.position_ids": torch.arange(66)[None]}, file, metadata={"format": "pt"})

    assert_same_states(tmp_path, compute_hidden_states(reference))


def test_a_checkpoint_of_pytorch_is_as_good(tmp_path: Path) -> None:
    reference = tiny_bert(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()

    assert_same_states(tmp_path, compute_hidden_states(reference))


def test_a_classifier_is_an_embedder_with_convert_embed(tmp_path: Path) -> None:
    reference = tiny_bert_classifier(tmp_path)

    with LLM(str(tmp_path), dtype="float32", device="cpu", convert="embed") as llm:
        actual = llm.embed(SEQUENCES, use_tqdm=False)

    for mine, rows in zip(actual, compute_hidden_states(reference), strict=True):
        assert_close(mine.outputs.data, torch.nn.functional.normalize(rows[0], dim=-1), atol=1e-4, rtol=0)


EMBED, CLASSIFY = ("embed", "token_embed"), ("classify", "token_classify")


@pytest.mark.parametrize(
    ("saved", "architecture", "tasks"),
    [
        *(
            (f"{family}Model", family + suffix, EMBED)
            for family in ("Bert", "Qwen3")
            for suffix in ("ForTextEncoding", "EmbeddingModel", "Model")
        ),
        ("Qwen3ForSequenceClassification", "Qwen3ForTextClassification", CLASSIFY),
        ("Qwen3ForSequenceClassification", "Qwen3ForTextClassification", (*CLASSIFY, "score")),
        ("Qwen3ForSequenceClassification", "Qwen3ClassificationModel", CLASSIFY),
    ],
)
def test_the_suffix_of_an_architecture_decides_its_tasks(
    saved: str, architecture: str, tasks: tuple[str, ...], tmp_path: Path
) -> None:
    save_tiny(tmp_path, saved, num_labels=1 if "score" in tasks else 3)

    with LLM(str(tmp_path), dtype="float32", hf_overrides={"architectures": [architecture]}) as llm:
        assert llm.supported_tasks == tasks


def test_a_tensor_without_a_place_is_an_error(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    file = tmp_path / "model.safetensors"
    extra = {"encoder.layer.0.attention.self.distance_embedding.weight": torch.zeros(3, 8)}
    save_file(load_file(file) | extra, file, metadata={"format": "pt"})

    with pytest.raises(LoadError, match=r"unexpected in the checkpoint: .*distance_embedding"):
        load_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu"))


def test_a_place_without_a_tensor_is_an_error(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    rename(tmp_path, lambda name: name.replace("encoder.layer.1.output.dense", "encoder.layer.7.output.dense"))

    with pytest.raises(LoadError, match=r"missing in the checkpoint: .*encoder\.layer\.1\.output\.dense"):
        load_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu"))


@pytest.mark.parametrize("prefix", ["module.", "auto_model.", "0.auto_model.", "_orig_mod.", "module.auto_model."])
@pytest.mark.parametrize("name", ["BertModel", "Qwen3Model", "RobertaModel"])
def test_prefixes_of_wrappers_are_removed(name: str, prefix: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, name)
    rename(tmp_path, lambda key: prefix + key)

    assert_same_states(tmp_path, compute_hidden_states(reference))


@pytest.mark.parametrize("prefix", ["module.", "model.", "module.model."])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "Qwen2"])
def test_a_wrapped_classifier_keeps_its_head(family: str, prefix: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForSequenceClassification", num_labels=3)
    rename(tmp_path, lambda key: prefix + key)

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        actual = llm.encode(SEQUENCES, pooling_task="classify", use_tqdm=False)

    for output, logits in zip(actual, compute_logits(reference), strict=True):
        assert_close(output.outputs.data, logits.softmax(-1), atol=1e-4, rtol=0)


def test_a_prefix_of_some_names_is_not_removed(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    rename(tmp_path, lambda key: key if "pooler" in key else f"module.{key}")

    with pytest.raises(LoadError, match=r"the checkpoint has no .*embeddings.word_embeddings.weight; found"):
        load_model(EngineConfig.from_kwargs(str(tmp_path), dtype="float32", device="cpu"))
