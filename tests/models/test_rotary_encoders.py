"""BERT-like encoders with rotary positions, in the layouts of Transformers and of published checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cenote import LLM
from cenote.errors import LoadError
from cenote.models.architecture import HFConfig
from cenote.models.jina_v3 import StoredAdapters, stored_adapters_from_config
from tests.models.parity import RAW, TOLERANCE, assert_same, assert_states, classified, encoded, loaded, opened, run
from tests.models.rotary_encoders import ALPHA, PUBLISHED, RANK, TASKS, lay_out, nomic_config, rename, save_adapted
from tests.tiny import SEQUENCES, change_config, compute_hidden_states, compute_logits, save_tiny

LAYOUTS = ("Transformers", "Transformers, its own names", "published")


OTHER_THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 70.0}}
# name: the model, and changes of its config
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "nomic": ("NomicBertModel", {}),
    "nomic, other theta": ("NomicBertModel", OTHER_THETA),
    "nomic, one type": ("NomicBertModel", {"type_vocab_size": 1, "layer_norm_eps": 1e-3}),
    "gte": ("GteModel", {}),
    "gte, no types": ("GteModel", {"type_vocab_size": 0}),
    "gte, other theta": ("GteModel", OTHER_THETA),
    "jina v3": ("JinaEmbeddingsV3Model", {}),
    "jina v3, other theta": (
        "JinaEmbeddingsV3Model",
        OTHER_THETA,
    ),
    "eurobert": ("EuroBertModel", {}),
    "eurobert, biases": ("EuroBertModel", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3}),
    "eurobert, other theta": ("EuroBertModel", OTHER_THETA),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BACKBONES)
def test_a_family_gives_the_states_of_transformers(name: str, layout: str, tmp_path: Path) -> None:
    model, changes = BACKBONES[name]
    reference = save_tiny(tmp_path, model, **changes)
    lay_out(tmp_path, reference, layout)

    assert_states(tmp_path, reference)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", PUBLISHED)
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"])
def test_a_head_gives_the_logits_of_transformers(head: str, family: str, layout: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, family + head, **{} if head == "ForMaskedLM" else {"num_labels": 3})
    if family == "NomicBert" and head == "ForMaskedLM" and layout == "published":
        file = tmp_path / "model.safetensors"  # the published head has no biases
        biases = ("cls.predictions.bias", "cls.predictions.transform.dense.bias")
        save_file({name: tensor for name, tensor in load_file(file).items() if name not in biases}, file)
        for name in biases:
            reference.get_parameter(name).zero_()
    lay_out(tmp_path, reference, layout)

    with opened(tmp_path) as llm:
        task = "classify" if head == "ForSequenceClassification" else "token_classify"
        assert_same(encoded(llm, task, RAW), compute_logits(reference))


def test_nomic_may_say_everything_twice(tmp_path: Path) -> None:
    """The layout of hub files since Transformers supports the family."""
    reference = save_tiny(tmp_path, "NomicBertModel", **OTHER_THETA)
    newer = json.loads((tmp_path / "config.json").read_text())
    lay_out(tmp_path, reference, "published", **newer)

    assert_states(tmp_path, reference)


def test_token_types_reach_nomic(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "NomicBertModel")
    lay_out(tmp_path, reference, "published")
    types = [[0] * (len(ids) // 2) + [1] * (len(ids) - len(ids) // 2) for ids in SEQUENCES]

    assert_same([run(loaded(tmp_path).backbone, types)], [torch.cat(compute_hidden_states(reference, types=types))])


@pytest.mark.parametrize("pooling", ["bos", "mean", "late"])
def test_eurobert_pools_as_its_config_says(pooling: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "EuroBertForSequenceClassification", num_labels=3, classifier_pooling=pooling)

    with opened(tmp_path) as llm:
        assert_same(classified(llm, RAW), compute_logits(reference))


def test_an_early_eurobert_has_another_name_for_its_last_layer(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "EuroBertForSequenceClassification", num_labels=3)
    rename(tmp_path, lambda key: key.replace("classifier.", "out_proj."))

    with opened(tmp_path) as llm:
        assert_same(classified(llm, RAW), compute_logits(reference))


@pytest.mark.parametrize("family", ["Gte", "NomicBert", "JinaEmbeddingsV3", "EuroBert"])
def test_a_cross_encoder_scores_a_pair_as_one_sequence(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForSequenceClassification", num_labels=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    if family in PUBLISHED:
        lay_out(tmp_path, reference, "published")
    query, documents = (
        "how big is the city?",
        ["the cat is in the city", "a", "two fish in the old river"],
    )

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        mine = [output.outputs.score for output in llm.score(query, documents, use_tqdm=False)]

    expected = []
    for document in documents:
        pair = tokenizer.encode(query, document)
        types = {"token_type_ids": torch.tensor([pair.type_ids])} if family in ("Gte", "NomicBert") else {}
        with torch.inference_mode():
            expected.append(float(reference(torch.tensor([pair.ids]), **types).logits.sigmoid()))
    assert mine == pytest.approx(expected, abs=TOLERANCE)


# GTE's scaling, which Transformers does not have
@pytest.mark.parametrize("power", [None, 0.6])
@pytest.mark.parametrize("name", ["NewModel", "GteNewModel", "GteModel"])
def test_gte_scales_its_rotary_frequencies(name: str, power: float | None, tmp_path: Path) -> None:
    theta, factor, dim = 70.0, 8.0, 8
    reference = save_tiny(tmp_path, "GteModel", rope_parameters={"rope_type": "default", "rope_theta": theta})
    scaling = {"type": "ntk", "factor": factor} | ({} if power is None else {"mixed_b": power})
    lay_out(tmp_path, reference, "published", rope_scaling=scaling, architectures=[name])
    pairs = torch.arange(0, dim, 2).float()
    if power is None:
        slowed = (theta * factor) ** -(pairs / dim) / factor ** (2 / dim)
    else:
        share = torch.tensor(factor).log() / (dim / 2) ** power
        slowed = theta ** -(pairs / dim) / (share * torch.arange(1, dim // 2 + 1) ** power).exp()

    before = compute_hidden_states(reference)
    reference.rotary_emb.inv_freq = slowed

    assert_states(tmp_path, reference)
    assert (torch.cat(before) - torch.cat(compute_hidden_states(reference))).abs().max() > 100 * TOLERANCE


def test_the_prefix_of_gte_may_be_there_below_no_head(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "GteModel")
    lay_out(tmp_path, reference, "published")
    rename(tmp_path, lambda key: f"new.{key}")
    file = tmp_path / "model.safetensors"  # with the sparse head of gte-multilingual-base
    save_file(load_file(file) | {"classifier.weight": torch.ones(1, 32), "classifier.bias": torch.ones(1)}, file)

    assert_states(tmp_path, reference)


@pytest.mark.parametrize("setting", [{"layer_norm_type": "rms_norm"}, {"logn_attention_scale": True}])
def test_unsupported_gte_settings_are_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "GteModel")
    lay_out(tmp_path, reference, "published", **setting)

    with pytest.raises(LoadError, match=next(iter(setting))):
        loaded(tmp_path)


class PlainExperts(nn.Module):
    """Mixture of experts of Nomic, token by token: unnormalised top-2 weights, one shared bias."""

    def __init__(self, size: int, inner: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(size, count, bias=False)
        self.w1 = nn.Parameter(torch.empty(count * inner, size))
        self.w2 = nn.Parameter(torch.empty(count * inner, size))
        self.bias = nn.Parameter(torch.empty(size))
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for token in x.flatten(0, 1):
            shares = self.router(token).softmax(-1)
            row = self.bias
            for expert in shares.argsort(descending=True)[:2].tolist():
                own = slice(expert * self.inner, (expert + 1) * self.inner)
                hidden = nn.functional.gelu(self.w1[own] @ token)
                row = row + shares[expert] * (hidden @ self.w2[own])
            rows.append(row)
        return torch.stack(rows).view_as(x)


def test_nomic_v2_sends_every_other_layer_to_experts(tmp_path: Path) -> None:
    # otherwise as jina-embeddings-v3: biases, no gated MLP
    reference = save_tiny(tmp_path, "JinaEmbeddingsV3Model", num_hidden_layers=4)
    generator = torch.Generator().manual_seed(1)
    for layer in (1, 3):
        reference.layers[layer].mlp = PlainExperts(32, 48, 4).requires_grad_(False)
        for parameter in reference.layers[layer].mlp.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    own = {
        "router.weight": "router.layer.weight",
        "w1": "experts.mlp.w1",
        "w2": "experts.mlp.w2",
        "bias": "experts.bias",
    }
    file = tmp_path / "model.safetensors"
    tensors = {
        name.replace(".mixer.", ".attn."): tensor
        for name, tensor in load_file(file).items()
        if not name.startswith(("encoder.layers.1.mlp", "encoder.layers.3.mlp", "pooler"))
    } | {
        f"encoder.layers.{layer}.mlp.{expected}": reference.layers[layer].mlp.get_parameter(name)
        for layer in (1, 3)
        for name, expected in own.items()
    }
    save_file(tensors, file, metadata={"format": "pt"})
    biases = dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True)
    experts = {"num_experts": 4, "moe_top_k": 2, "moe_every_n_layers": 2, "activation_function": "gelu"}
    values = nomic_config(json.loads((tmp_path / "config.json").read_text())) | biases | experts
    (tmp_path / "config.json").write_text(json.dumps(values | {"architectures": ["NomicBertModel"]}))

    assert_states(tmp_path, reference)


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 70.0}


@pytest.mark.parametrize("trained", [16, 128])
def test_dynamic_scaling_makes_nomic_ready_for_the_longest_input(trained: int, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "NomicBertModel", rope_parameters={"rope_type": "default", "rope_theta": 70.0})
    lay_out(tmp_path, reference, "published", max_trained_positions=trained)
    as_trained = type(reference.config)(**reference.config.to_dict() | {"max_position_embeddings": trained})
    as_trained.rope_parameters = dict(DYNAMIC)
    reference.rotary_emb.inv_freq, _ = ROPE_INIT_FUNCTIONS["dynamic"](as_trained, torch.device("cpu"), seq_len=50)

    overrides = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}

    assert_states(tmp_path, reference, max_model_len=50, hf_overrides=overrides)


@pytest.mark.parametrize("family", ["NomicBert", "EuroBert"])
def test_under_other_keys_dynamic_scaling_applies_to_long_inputs_only(family: str, tmp_path: Path) -> None:
    """With rotary_scaling_factor, and in other families, scaling depends on each input length, as in Transformers."""
    reference = save_tiny(tmp_path, f"{family}Model", rope_parameters=dict(DYNAMIC), max_position_embeddings=10)
    if family == "NomicBert":
        scaling = {"max_trained_positions": 10, "rotary_scaling_factor": 2.0, "n_positions": 66}
        lay_out(tmp_path, reference, "published", **scaling)
    else:
        change_config(tmp_path, model_max_length=66)

    assert_states(tmp_path, reference)


def test_longrope_takes_the_factors_of_short_inputs_unless_longer_ones_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 3.0, 9.0]}
    lengths = {"original_max_position_embeddings": 40, "rope_theta": 70.0}
    reference = save_tiny(tmp_path, "EuroBertModel", rope_parameters=scaling | lengths)

    assert_states(tmp_path, reference)
    monkeypatch.setenv("CENOTE_ALLOW_LONG_MAX_MODEL_LEN", "1")
    reference.rotary_emb.original_inv_freq = (
        reference.rotary_emb.original_inv_freq
        * torch.tensor(scaling["short_factor"])
        / torch.tensor(scaling["long_factor"])
    )
    assert_states(tmp_path, reference, max_model_len=66)


ROPES = {
    "full_attention": {"rope_type": "yarn", "rope_theta": 3000.0, "factor": 4.0, "mscale": 0.5, "mscale_all_dim": 1.0},
    "sliding_attention": {"rope_type": "linear", "rope_theta": 40.0, "factor": 2.0},
}
SCALING = {"rope_type": "linear", "factor": 3.0}
# Transformers config, and the rewritten config.json
MODERNBERTS: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "each kind of layer scaled in its own way": ({"rope_parameters": ROPES}, (), {}),
    "older file, all layers scaled": (
        {"rope_scaling": SCALING, "global_rope_theta": 300.0, "local_rope_theta": 40.0},
        ("rope_parameters",),
        {"rope_scaling": SCALING, "global_rope_theta": 300.0, "local_rope_theta": 40.0},
    ),
    "newer file, the window as a distance": ({"local_attention": 10}, ("local_attention",), {"sliding_window": 5}),
}


@pytest.mark.parametrize("name", MODERNBERTS)
def test_modernbert_reads_every_config(name: str, tmp_path: Path) -> None:
    changes, drop, rewrite = MODERNBERTS[name]
    reference = save_tiny(tmp_path, "ModernBertModel", **changes)
    change_config(tmp_path, drop=drop, **rewrite)

    assert_states(tmp_path, reference)


def flash_name(key: str) -> str:
    for expected, flash in {
        "embeddings.LayerNorm": "emb_ln",
        "encoder.layer.": "encoder.layers.",
        "attention.output.dense": "mixer.out_proj",
        "attention.output.LayerNorm": "norm1",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
        "output.LayerNorm": "norm2",
    }.items():
        key = key.replace(expected, flash)
    return key


@pytest.mark.parametrize("name", ["XLMRobertaModel", "XLMRobertaForSequenceClassification"])
def test_a_reranker_of_jina_is_roberta_by_other_names(name: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, name)
    file = tmp_path / "model.safetensors"
    tensors = {flash_name(key): tensor for key, tensor in load_file(file).items()}
    for query in [key for key in tensors if ".attention.self.query." in key]:
        parts = [tensors.pop(query.replace("query", part)) for part in ("query", "key", "value")]
        tensors[query.replace("attention.self.query", "mixer.Wqkv")] = torch.cat(parts)
    save_file(tensors, file, metadata={"format": "pt"})

    assert_states(tmp_path, reference)
    if name.endswith("Classification"):
        with opened(tmp_path) as llm:
            assert_same(classified(llm, RAW), compute_logits(reference))


def test_jina_v3_loads_with_its_adapters_separate(tmp_path: Path) -> None:
    reference = save_adapted(tmp_path)

    assert_states(tmp_path, reference)


def test_jina_v3_declares_its_stored_adapters(tmp_path: Path) -> None:
    save_adapted(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    adapters = stored_adapters_from_config(HFConfig(json.loads((tmp_path / "config.json").read_text())))
    assert isinstance(adapters, StoredAdapters)
    assert list(adapters.tasks) == TASKS
    assert adapters.scaling == ALPHA / RANK

    found = set()
    for down, up in adapters.matrices.values():
        for layer in (0, 1) if "*" in down else (0,):
            names = [f"roberta.{name.replace('*', str(layer))}" for name in (down, up)]
            found.update(names)
            original = tensors[f"{names[0].rpartition('.0.lora_')[0]}.original"]
            change = tensors[names[1]][2] @ tensors[names[0]][2]
            assert change.shape == original.shape

    # all except those of the unused pooler
    assert found == {name for name in tensors if "lora_" in name and "pooler" not in name}


def test_a_model_without_adapters_has_none_to_describe() -> None:
    assert stored_adapters_from_config(HFConfig({"position_embedding_type": "rotary"})) is None
