"""BERT-like encoders equal the saved Transformers model: backbones, and heads over the vocabulary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from cenote import PoolingParams
from cenote.errors import LoadError
from cenote.layers import disentangled_attention
from cenote.packed_batch import pack_sequences
from tests.models.jina_bert import CODE, plain_jina, save_jina
from tests.models.parity import RAW, TOLERANCE, assert_same, assert_states, encoded, loaded, opened, run
from tests.tiny import SEQUENCES, compute_hidden_states, compute_logits, save_tiny

# what Transformers compiles its DeBERTa with
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

HEADED = ("Camembert", "DistilBert", "MPNet", "Albert", "Electra", "Deberta", "DebertaV2")

BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "camembert": ("CamembertModel", {}),
    "distilbert": ("DistilBertModel", {}),
    "distilbert, other activation": ("DistilBertModel", {"activation": "relu"}),
    "mpnet": ("MPNetModel", {}),
    "mpnet, other padding": ("MPNetModel", {"pad_token_id": 4}),
    "albert": ("AlbertModel", {}),
    "albert, two groups": ("AlbertModel", {"num_hidden_layers": 5, "num_hidden_groups": 2}),
    "albert, groups of two": ("AlbertModel", {"inner_group_num": 2, "num_hidden_groups": 3}),
    "albert, other activation": ("AlbertModel", {"hidden_act": "gelu"}),
    "electra": ("ElectraModel", {}),
    "electra, wide embeddings": ("ElectraModel", {"embedding_size": 32}),
    "deberta-v2": ("DebertaV2Model", {}),
    "deberta-v2, own keys for positions": ("DebertaV2Model", {"share_att_key": False}),
    "deberta-v2, only the query's side": ("DebertaV2Model", {"pos_att_type": ["c2p"]}),
    "deberta-v2, only the key's side": ("DebertaV2Model", {"pos_att_type": "p2c", "share_att_key": False}),
    "deberta-v2, no buckets": ("DebertaV2Model", {"position_buckets": -1, "max_relative_positions": 10}),
    "deberta-v2, more buckets": ("DebertaV2Model", {"position_buckets": 16, "max_relative_positions": 40}),
    "deberta-v2, plain distances": ("DebertaV2Model", {"norm_rel_ebd": "none"}),
    "deberta-v2, absolute positions too": ("DebertaV2Model", {"position_biased_input": True, "type_vocab_size": 2}),
    "deberta-v2, absolute positions only": (
        "DebertaV2Model",
        {"position_biased_input": True, "relative_attention": False, "norm_rel_ebd": "none"},
    ),
    "deberta-v2, convolution": ("DebertaV2Model", {"conv_kernel_size": 3, "num_hidden_layers": 3}),
    "deberta-v2, convolution in groups": (
        "DebertaV2Model",
        {"conv_kernel_size": 5, "conv_groups": 4, "conv_act": "gelu"},
    ),
    "deberta-v2, plain attention": ("DebertaV2Model", {"relative_attention": False}),
    "deberta-v2, plain attention, own keys": ("DebertaV2Model", {"relative_attention": False, "share_att_key": False}),
    "deberta-v2, plain attention, convolution": (
        "DebertaV2Model",
        {"relative_attention": False, "conv_kernel_size": 3, "num_hidden_layers": 3},
    ),
    "deberta-v2, relative, but by no side": ("DebertaV2Model", {"pos_att_type": []}),
    "deberta-v2, a side it does not have": ("DebertaV2Model", {"pos_att_type": "p2c|c2p|p2p"}),
    "deberta-v2, small embeddings": ("DebertaV2Model", {"embedding_size": 16}),
    "deberta-v2, small embeddings of all kinds": (
        "DebertaV2Model",
        {"embedding_size": 16, "position_biased_input": True, "type_vocab_size": 2},
    ),
    "deberta, small embeddings": ("DebertaModel", {"embedding_size": 16}),
    "deberta, plain attention": ("DebertaModel", {"relative_attention": False, "position_biased_input": True}),
    "deberta": ("DebertaModel", {}),
    "deberta, few distances": ("DebertaModel", {"max_relative_positions": 7, "position_biased_input": True}),
    "deberta, only the query's side": ("DebertaModel", {"pos_att_type": ["c2p"]}),
    "deberta, only the key's side": ("DebertaModel", {"pos_att_type": "p2c"}),
    "t5": ("T5EncoderModel", {}),
    "t5, gated": ("T5EncoderModel", {"feed_forward_proj": "gated-gelu"}),
    "t5, gated otherwise": ("T5EncoderModel", {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-2}),
    "t5, with decoder": ("T5ForConditionalGeneration", {}),
    "mt5": ("MT5EncoderModel", {}),
    "mt5, with decoder": ("MT5ForConditionalGeneration", {"tie_word_embeddings": False}),
}


def encoder_states(reference: PreTrainedModel) -> list[Tensor]:
    """Return the hidden states of a model, or of its encoder if it has a decoder."""
    if "decoder" not in dict(reference.named_children()):
        return compute_hidden_states(reference)
    with torch.inference_mode():
        return [reference.encoder(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in SEQUENCES]


@pytest.mark.parametrize("name", BACKBONES)
def test_a_family_matches_transformers(name: str, tmp_path: Path) -> None:
    model, changes = BACKBONES[name]
    reference = save_tiny(tmp_path, model, **changes)

    assert_states(tmp_path, encoder_states(reference))


@pytest.mark.usefixtures("plain_linears")
def test_layers_of_a_group_share_their_weights(tmp_path: Path) -> None:
    save_tiny(tmp_path, "AlbertModel", num_hidden_layers=4, num_hidden_groups=2)

    layers: Any = loaded(tmp_path).backbone.layers

    assert layers[0].mixer.qkv.weight is layers[1].mixer.qkv.weight
    assert layers[1].mlp.up.weight is not layers[2].mlp.up.weight


def test_small_embeddings_make_no_small_vectors(tmp_path: Path) -> None:
    save_tiny(tmp_path, "AlbertModel")

    with opened(tmp_path) as llm:
        assert [len(row) for row in encoded(llm, "embed", PoolingParams(dimensions=32))] == [32] * len(SEQUENCES)


def test_the_length_of_every_table_is_known(tmp_path: Path) -> None:
    for name, length in (("MPNetModel", 64), ("CamembertModel", 64), ("DistilBertModel", 66), ("AlbertModel", 66)):
        (tmp_path / name).mkdir()
        save_tiny(tmp_path / name, name)

        assert loaded(tmp_path / name).description.max_length.value == length


# DeBERTa


@pytest.mark.usefixtures("plain_linears")
def test_the_xlarge_shape_gives_the_first_layer_its_own_weights(tmp_path: Path) -> None:
    save_tiny(tmp_path, "DebertaV2Model", conv_kernel_size=3, num_hidden_layers=3)
    tensors = load_file(tmp_path / "model.safetensors")

    backbone: Any = loaded(tmp_path).backbone

    assert len(backbone.layers) == 2
    for place, layer in ((backbone.embed.layer, 0), (backbone.layers[0], 1), (backbone.layers[1], 2)):
        assert_close(place.mlp.up.weight, tensors[f"encoder.layer.{layer}.intermediate.dense.weight"])


@pytest.mark.parametrize("model", ["DebertaModel", "DebertaV2Model"])
def test_scores_are_computed_in_blocks(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = save_tiny(tmp_path, model, max_position_embeddings=300, max_relative_positions=20)
    sequences = [[7 + n % 140 for n in range(length)] for length in (90, 90, 90, 260, 5, 5)]
    backbone = loaded(tmp_path).backbone
    monkeypatch.setattr(disentangled_attention, "MAX_SCORES", 20_000)

    with LargestTensor() as largest:
        actual = run(backbone, sequences=sequences)

    assert_close(actual, torch.cat(compute_hidden_states(reference, sequences)), atol=TOLERANCE, rtol=0)
    # No tensor is larger than QKV of all tokens; the score matrix of the longest text would be five times larger.
    assert largest.numel <= sum(map(len, sequences)) * 3 * 32


class LargestTensor(TorchDispatchMode):
    """Record the number of elements of the largest tensor created."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.numel = max(self.numel, out.numel())
        return out


def test_an_unattended_token_changes_nothing_in_deberta(tmp_path: Path) -> None:
    save_tiny(tmp_path, "DebertaV2Model")
    backbone = loaded(tmp_path).backbone
    ids = [list(range(20, 32)), list(range(50, 62)), [9, 8, 7]]
    batch = replace(pack_sequences(ids), attended_lens_cpu=(5, 12, 2))

    with torch.inference_mode():
        actual = backbone(batch)

    assert_close(actual[:5], run(backbone, sequences=[ids[0][:5]]), atol=TOLERANCE, rtol=0)
    assert_close(actual[12:24], run(backbone, sequences=[ids[1]]), atol=TOLERANCE, rtol=0)
    assert_close(actual[24:26], run(backbone, sequences=[ids[2][:2]]), atol=TOLERANCE, rtol=0)


def test_tables_that_microsoft_stores_without_using_them_are_passed_over(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "DebertaV2Model")
    file = tmp_path / "model.safetensors"
    unused = {
        "embeddings.position_embeddings.weight": torch.zeros(66, 32),
        "mask_predictions.dense.weight": torch.ones(3),
    }
    save_file(load_file(file) | unused, file, metadata={"format": "pt"})

    assert_states(tmp_path, reference)


def test_an_adapter_that_would_have_to_change_distances_too_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "DebertaV2Model", share_att_key=True)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    query = "base_model.model.encoder.layer.0.attention.self.query_proj"
    halves = {f"{query}.lora_A.weight": torch.ones(2, 32), f"{query}.lora_B.weight": torch.ones(32, 2)}
    save_file(halves, adapter / "adapter_model.safetensors")

    with pytest.raises(LoadError, match="query_proj"):
        loaded(tmp_path, lora_modules=[f"mine={adapter}"])


# heads


def test_deberta_pools_with_the_activation_of_its_config(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "DebertaV2ForSequenceClassification", pooler_hidden_act="tanh", num_labels=3)

    with opened(tmp_path) as llm:
        assert_same(encoded(llm, "classify", RAW), compute_logits(reference))


# masked words

MASKED: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (f"{family}ForMaskedLM", {}) for family in ("Bert", "Roberta", "XLMRoberta", *HEADED, "ModernBert")},
    "Bert, other activation": ("BertForMaskedLM", {"hidden_act": "relu", "layer_norm_eps": 1e-2}),
    "Bert, own rows": ("BertForMaskedLM", {"tie_word_embeddings": False}),
    "DistilBert, other activation": ("DistilBertForMaskedLM", {"activation": "relu"}),
    "DistilBert, own rows": ("DistilBertForMaskedLM", {"tie_word_embeddings": False}),
    "Electra, wide embeddings": ("ElectraForMaskedLM", {"embedding_size": 32}),
    "DebertaV2, names of Microsoft": ("DebertaV2ForMaskedLM", {"legacy": False}),
    "ModernBert, own rows": ("ModernBertForMaskedLM", {"tie_word_embeddings": False}),
    "ModernBert, no bias": ("ModernBertForMaskedLM", {"decoder_bias": False}),
    "ModernBert, more biases": ("ModernBertForMaskedLM", {"classifier_bias": True, "norm_bias": True}),
}


@pytest.mark.parametrize("name", MASKED)
def test_every_token_gets_logits_over_the_vocabulary(name: str, tmp_path: Path) -> None:
    model, changes = MASKED[name]
    reference = save_tiny(tmp_path, model, **changes)

    with opened(tmp_path) as llm:
        assert_same(encoded(llm, "token_classify", RAW), compute_logits(reference))
        assert_same(encoded(llm, "token_classify"), [rows.softmax(-1) for rows in compute_logits(reference)])


@pytest.mark.parametrize(
    ("family", "task"), [("Bert", "token_classify"), ("Roberta", "embed"), ("XLMRoberta", "embed")]
)
def test_the_default_task_of_a_masked_model_follows_its_family(family: str, task: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, f"{family}ForMaskedLM")

    with opened(tmp_path) as llm:
        assert llm.supported_tasks[0] == task
        assert set(llm.supported_tasks) == {"embed", "token_embed", "token_classify"}


@pytest.mark.parametrize(("missing", "kept"), [("bias", "decoder.bias"), ("decoder.bias", "bias")])
def test_the_bias_of_the_masked_head_may_have_either_name(missing: str, kept: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "BertForMaskedLM")
    file, predictions = tmp_path / "model.safetensors", "cls.predictions"
    tensors = load_file(file)
    offsets = tensors.get(f"{predictions}.bias", tensors.get(f"{predictions}.decoder.bias"))
    assert offsets is not None
    others = {name: tensor for name, tensor in tensors.items() if not name.endswith(f"{predictions}.{missing}")}
    save_file(others | {f"{predictions}.{kept}": offsets}, file, metadata={"format": "pt"})

    with opened(tmp_path) as llm:
        assert_same(encoded(llm, "token_classify", RAW), compute_logits(reference))


# T5


def test_an_encoder_decoder_t5_embeds_with_its_encoder(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "T5ForConditionalGeneration")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    copies = {f"{half}.embed_tokens.weight": tensors["shared.weight"].clone() for half in ("encoder", "decoder")}
    save_file(tensors | copies, file, metadata={"format": "pt"})

    with opened(tmp_path) as llm:
        assert_same(encoded(llm, "embed"), [F.normalize(rows.mean(0), dim=-1) for rows in encoder_states(reference)])


# JinaBERT, which Transformers lacks: compared with an unbatched implementation

JINA_CASES: dict[str, dict[str, Any]] = {
    "v2": {},
    "v2, rectified gates": {"feed_forward_type": "reglu"},
    "v2, as many heads as a power of two": {"num_attention_heads": 4},
    "v2, no gates": {"feed_forward_type": "original"},
    "v2, learned positions": {"position_embedding_type": "absolute", "max_position_embeddings": 66},
    "code": CODE,
    "code, by its name": CODE | {"_name_or_path": "jinaai/jina-bert-v2-qk-post-norm", "auto_map": {}},
}


@pytest.mark.parametrize("name", JINA_CASES)
def test_jina_bert_matches_a_plain_computation(name: str, tmp_path: Path) -> None:
    config, tensors = save_jina(tmp_path, **JINA_CASES[name])

    assert_states(tmp_path, [plain_jina(config, tensors, ids) for ids in SEQUENCES])


def test_jina_bert_embeds_although_it_calls_itself_a_language_model(tmp_path: Path) -> None:
    config, tensors = save_jina(tmp_path)

    with opened(tmp_path) as llm:
        assert llm.supported_tasks == ("embed", "token_embed")
        actual = encoded(llm, "embed")

    assert_same(actual, [F.normalize(plain_jina(config, tensors, ids).mean(0), dim=-1) for ids in SEQUENCES])


def test_a_jina_reranker_classifies_its_first_token(tmp_path: Path) -> None:
    config, tensors = save_jina(tmp_path, architectures=["JinaBertForSequenceClassification"])

    def head(rows: Tensor) -> Tensor:
        dense = F.linear(rows[0], tensors["pooler.dense.weight"], tensors["pooler.dense.bias"]).tanh()
        return F.linear(dense, tensors["classifier.weight"], tensors["classifier.bias"])

    with opened(tmp_path) as llm:
        assert_same(encoded(llm, "classify", RAW), [head(plain_jina(config, tensors, ids)) for ids in SEQUENCES])
