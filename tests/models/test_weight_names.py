"""Weight names of checkpoints of different age and origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from cenote import LLM
from cenote.errors import LoadError
from tests.models.parity import assert_same, assert_states, classified, embedded, loaded, opened
from tests.tiny import compute_hidden_states, compute_logits, save_tiny, tiny_bert, tiny_bert_classifier

PREFIXES = {
    **dict.fromkeys(("ModernBert", "Qwen3"), "model."),
    **dict.fromkeys(("Roberta", "XLMRoberta", "Camembert"), "roberta."),
    **dict.fromkeys(("Deberta", "DebertaV2"), "deberta."),
    **{family: f"{family.lower()}." for family in ("Bert", "DistilBert", "MPNet", "Albert", "Electra")},
}

# what Transformers compiles its DeBERTa with
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def rename(folder: Path, new_name: Callable[[str], str]) -> None:
    file = folder / "model.safetensors"
    tensors = {new_name(name): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("family", PREFIXES)
def test_backbone_names_may_have_the_prefix(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}Model")
    assert not any(name.startswith(PREFIXES[family]) for name in load_file(tmp_path / "model.safetensors"))
    rename(tmp_path, lambda name: PREFIXES[family] + name)

    assert_states(tmp_path, reference)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "ModernBertForMaskedLM", "Qwen3ForCausalLM"])
def test_backbone_names_may_lack_the_prefix(name: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, name)
    prefix = f"{reference.base_model_prefix}."
    assert any(key.startswith(prefix) for key in load_file(tmp_path / "model.safetensors"))
    rename(tmp_path, lambda key: key.removeprefix(prefix))

    assert_states(tmp_path, reference)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "ModernBert", "Qwen2"])
def test_a_classifier_loads_with_a_backbone_without_prefix(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForSequenceClassification", num_labels=3)
    prefix = f"{reference.base_model_prefix}."
    rename(tmp_path, lambda key: key.removeprefix(prefix))

    with opened(tmp_path) as llm:
        assert_same(classified(llm), [row.softmax(-1) for row in compute_logits(reference)])


def test_norms_may_go_by_their_old_names(tmp_path: Path) -> None:
    reference = tiny_bert(tmp_path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def older(name: str) -> str:
        for today, before in old.items():
            name = name.replace(today, before)
        return "bert." + name

    rename(tmp_path, older)

    assert any(name.endswith("gamma") for name in load_file(tmp_path / "model.safetensors"))
    assert_states(tmp_path, reference)


def test_the_tables_of_older_programs_are_passed_over(tmp_path: Path) -> None:
    reference = tiny_bert(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"embeddings.position_ids": torch.arange(66)[None]}, file, metadata={"format": "pt"})

    assert_states(tmp_path, reference)


def test_a_checkpoint_of_pytorch_is_as_good(tmp_path: Path) -> None:
    reference = tiny_bert(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()

    assert_states(tmp_path, reference)


def test_a_classifier_is_an_embedder_with_convert_embed(tmp_path: Path) -> None:
    reference = tiny_bert_classifier(tmp_path)

    with opened(tmp_path, convert="embed") as llm:
        assert_same(embedded(llm), [normalize(rows[0], dim=-1) for rows in compute_hidden_states(reference)])


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
        loaded(tmp_path)


def test_a_place_without_a_tensor_is_an_error(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    rename(tmp_path, lambda name: name.replace("encoder.layer.1.output.dense", "encoder.layer.7.output.dense"))

    with pytest.raises(LoadError, match=r"missing in the checkpoint: .*encoder\.layer\.1\.output\.dense"):
        loaded(tmp_path)


@pytest.mark.parametrize("prefix", ["module.", "auto_model.", "0.auto_model.", "_orig_mod.", "module.auto_model."])
@pytest.mark.parametrize("name", ["BertModel", "Qwen3Model", "RobertaModel"])
def test_prefixes_of_wrappers_are_removed(name: str, prefix: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, name)
    rename(tmp_path, lambda key: prefix + key)

    assert_states(tmp_path, reference)


@pytest.mark.parametrize("prefix", ["module.", "model.", "module.model."])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "Qwen2"])
def test_a_wrapped_classifier_keeps_its_head(family: str, prefix: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForSequenceClassification", num_labels=3)
    rename(tmp_path, lambda key: prefix + key)

    with opened(tmp_path) as llm:
        assert_same(classified(llm), [row.softmax(-1) for row in compute_logits(reference)])


def test_a_prefix_of_some_names_is_not_removed(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    rename(tmp_path, lambda key: key if "pooler" in key else f"module.{key}")

    with pytest.raises(LoadError, match=r"the checkpoint has no .*embeddings.word_embeddings.weight; found"):
        loaded(tmp_path)
