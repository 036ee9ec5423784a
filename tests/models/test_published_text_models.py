"""Text models in their published layouts embed as the truth does: Transformers classes with the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, LoadError
from cenote.config.engine import EngineConfig
from cenote.loading.describe import describe_model
from cenote.loading.load import load_model
from cenote.models.registry import NO_FLOAT16
from cenote.packed_batch import pack_sequences
from tests.layouts.builders import load_builders, text_families
from tests.layouts.registry import BUILDERS
from tests.models.parity import TOLERANCE, assert_same
from tests.models.published_reference import reference
from tests.tiny import SEQUENCES, TEXTS, change_config, compute_hidden_states, save_tiny


def embed(folder: Path, inputs: Any = SEQUENCES, **options: Any) -> list[Tensor]:
    with LLM(str(folder), dtype="float32", **options) as llm:
        return [output.outputs.data for output in llm.embed(inputs, use_tqdm=False)]


def mean(rows: Tensor) -> Tensor:
    return rows.mean(0)


def normalized_mean(rows: Tensor) -> Tensor:
    return F.normalize(rows.mean(0), dim=-1)


def last(rows: Tensor) -> Tensor:
    return rows[-1]


def normalized_last(rows: Tensor) -> Tensor:
    return F.normalize(rows[-1], dim=-1)


def normalized_first(rows: Tensor) -> Tensor:
    return F.normalize(rows[0], dim=-1)


def int8(rows: Tensor) -> Tensor:
    return torch.clamp(torch.round(torch.tanh(rows.mean(0)) * 127), -128, 127)


# builder -> Transformers class with the same weights, changes of its config, and what it does with hidden states
EMBEDDERS: dict[str, tuple[str, dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "nemotron_3_embed": ("Ministral3Model", {}, normalized_mean),
    "pplx_embed_v1": ("Qwen3Model", {"is_causal": False}, int8),
    "gritlm_7b": ("MistralModel", {"is_causal": False, "sliding_window": None}, normalized_mean),
    "contriever": ("BertModel", {}, mean),
    "bilingual_embedding_large": ("XLMRobertaModel", {}, normalized_mean),
    "harrier_oss_v1_270m": ("Gemma3TextModel", {}, normalized_last),
    "f2llm_v2_80m": ("Qwen3Model", {}, normalized_last),
    "octen_embedding": ("Qwen3Model", {}, normalized_last),
    "granite_embedding_311m_multilingual_r2": ("ModernBertModel", {}, normalized_first),
    "codesage_small_v2": ("GPT2Model", {"is_causal": False, "n_inner": 48}, mean),
    "sfr_embedding_code_2b": ("Gemma2Model", {}, last),
    "bidirlm_0_6b": ("Qwen3Model", {"is_causal": False}, normalized_mean),
    "bidirlm_1b": ("Gemma3TextModel", {"is_causal": False}, normalized_mean),
    "bilingual_embedding_small": ("BertModel", {}, normalized_mean),
}


@pytest.mark.parametrize("name", EMBEDDERS)
def test_a_published_embedder_matches_transformers(name: str, tmp_path: Path) -> None:
    load_builders()
    model, changes, pool = EMBEDDERS[name]
    BUILDERS[name](tmp_path)

    actual = embed(tmp_path)

    assert_same(actual, [pool(rows) for rows in compute_hidden_states(reference(tmp_path, model, **changes))])


def test_stella_is_bidirectional_below_its_dense_layer(tmp_path: Path) -> None:
    text_families.stella_en_1_5b_v5(tmp_path)
    dense = load_file(tmp_path / "2_Dense" / "model.safetensors")
    states = compute_hidden_states(reference(tmp_path, "Qwen2Model", is_causal=False))

    actual = embed(tmp_path)

    assert_same(actual, [F.linear(mean(rows), dense["linear.weight"], dense["linear.bias"]) for rows in states])


@pytest.mark.parametrize("name", ["dpr_ctx_encoder", "dpr_question_encoder", "dpr_ctx_encoder_projected"])
def test_a_dpr_encoder_returns_its_pooler_output(name: str, tmp_path: Path) -> None:
    BUILDERS[name](tmp_path)
    classes = {"dpr_question_encoder": "DPRQuestionEncoder"}
    model = getattr(transformers, classes.get(name, "DPRContextEncoder")).from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        expected = [model(input_ids=torch.tensor([ids])).pooler_output[0] for ids in SEQUENCES]

    assert_same(embed(tmp_path), expected)


def test_token_embeddings_of_pplx_are_not_quantized(tmp_path: Path) -> None:
    text_families.pplx_embed_v1(tmp_path)
    states = compute_hidden_states(reference(tmp_path, "Qwen3Model", is_causal=False))

    with LLM(str(tmp_path), dtype="float32") as llm:
        outputs = llm.encode(SEQUENCES, pooling_task="token_embed", use_tqdm=False)
        numbers = torch.stack([output.outputs.data for output in llm.embed(TEXTS, use_tqdm=False)])

    assert_same([output.outputs.data for output in outputs], states)
    assert numbers.equal(numbers.round()) and numbers.abs().max() <= 127 and numbers.abs().max() > 1


def latent_attention(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """The latent attention of NV-Embed over the states of one sequence, with 2 heads."""
    stored = {name.removeprefix("latent_attention_model."): tensor for name, tensor in tensors.items()}

    def norm(rows: Tensor, name: str) -> Tensor:
        return F.layer_norm(rows, (32,), stored[f"{name}.weight"], stored[f"{name}.bias"])

    first, second = "cross_attend_blocks.0", "cross_attend_blocks.1"
    query = norm(x, f"{first}.norm") @ stored[f"{first}.fn.to_q.weight"].T
    key, value = (norm(stored["latents"], f"{first}.norm_context") @ stored[f"{first}.fn.to_kv.weight"].T).chunk(2, -1)
    heads = [
        (q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v
        for q, k, v in zip(*(part.chunk(2, -1) for part in (query, key, value)), strict=True)
    ]
    x = x + torch.cat(heads, -1) @ stored[f"{first}.fn.to_out.weight"].T
    inner = F.linear(norm(x, f"{second}.norm"), stored[f"{second}.fn.net.0.weight"], stored[f"{second}.fn.net.0.bias"])
    up, gate = inner.chunk(2, -1)
    return x + F.linear(up * F.gelu(gate), stored[f"{second}.fn.net.2.weight"], stored[f"{second}.fn.net.2.bias"])


def test_nv_embed_attends_to_its_latents_and_pools_the_mean(tmp_path: Path) -> None:
    text_families.nv_embed_v2(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    drop = ("model_type", "architectures", "is_causal", "sliding_window")
    config = transformers.MistralConfig(
        **{key: value for key, value in text.items() if key not in drop}, is_causal=False, sliding_window=None
    )
    model = transformers.MistralModel(config).eval()
    model.load_state_dict(
        {name.removeprefix("embedding_model."): x for name, x in tensors.items() if name.startswith("embedding")}
    )

    with torch.inference_mode():
        expected = [normalized_mean(latent_attention(tensors, rows)) for rows in compute_hidden_states(model)]

    assert_same(embed(tmp_path), expected)


@pytest.mark.parametrize("name", ["nv_embed_v2", "codesage_small_v2"])
def test_inputs_end_with_eos_if_the_published_code_appends_it(name: str, tmp_path: Path) -> None:
    BUILDERS[name](tmp_path)

    with LLM(str(tmp_path), dtype="float32") as llm:
        outputs = llm.embed(TEXTS, use_tqdm=False)

    eos = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]["<|im_end|>"]
    assert all(output.prompt_token_ids[-1] == eos and eos not in output.prompt_token_ids[:-1] for output in outputs)


def test_a_bidirlm_with_windows_has_a_doubt_about_longer_inputs(tmp_path: Path) -> None:
    text_families.bidirlm_1b(tmp_path)

    (doubt,) = describe_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu")).doubts

    assert "embeddings of inputs longer than 3 tokens may differ" in doubt


PAIRS = [("the cat", "a dog"), ("what is it", "a red bird"), ("who", "two")]


def score(folder: Path, **options: Any) -> list[Any]:
    with LLM(str(folder), dtype="float32", **options) as llm:
        assert "score" in llm.supported_tasks
        return llm.score([query for query, _ in PAIRS], [document for _, document in PAIRS], use_tqdm=False)


@pytest.mark.parametrize("changes", [{}, {"feed_forward_proj": "gated-gelu"}, {"tie_word_embeddings": False}])
def test_monot5_scores_by_the_tokens_true_and_false(changes: dict[str, Any], tmp_path: Path) -> None:
    text_families.monot5_base_msmarco(tmp_path)
    if changes:
        save_tiny(tmp_path, "T5ForConditionalGeneration", decoder_start_token_id=0, **changes)
        text_families.save_t5_tokenizer(tmp_path)
        change_config(tmp_path, _name_or_path="castorini/monot5-base-msmarco")
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    labels = [tokenizer.token_to_id(f"\u2581{word}") for word in ("false", "true")]

    outputs = score(tmp_path)

    for (query, document), output in zip(PAIRS, outputs, strict=True):
        ids = tokenizer.encode(f"Query: {query} Document: {document} Relevant:").ids
        assert output.prompt_token_ids == ids
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
        expected = logits[labels].softmax(0)[1]
        assert_close(torch.tensor(output.outputs.score), expected, atol=TOLERANCE, rtol=0)


def test_hhem_scores_the_consistency_of_the_second_text(tmp_path: Path) -> None:
    text_families.hallucination_evaluation_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "reference").mkdir()
    model = save_tiny(tmp_path / "reference", "T5ForTokenClassification", num_labels=2, feed_forward_proj="gated-gelu")
    model.load_state_dict({name.removeprefix("t5."): tensor for name, tensor in tensors.items()}, strict=False)
    tokenizer = transformers.T5Tokenizer.from_pretrained(tmp_path)
    prompt = "<pad> Determine if the hypothesis is true given the premise?\n\nPremise: {}\n\nHypothesis: {}"

    outputs = score(tmp_path)

    for (first, second), output in zip(PAIRS, outputs, strict=True):
        ids = tokenizer.encode(prompt.format(first, second))
        assert output.prompt_token_ids == ids
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([ids])).logits[0, 0].softmax(-1)[1]
        assert_close(torch.tensor(output.outputs.score), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("cutoff", [None, 4, 3, [2]])
def test_a_layerwise_reranker_scores_after_the_layer_of_its_cutoff(cutoff: Any, tmp_path: Path) -> None:
    text_families.bge_reranker_v2_minicpm_layerwise(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    layers = cutoff[0] if isinstance(cutoff, list) else cutoff or 4
    factors = {"embedding_multiplier": 3.0, "residual_multiplier": 1.4 / 4**0.5, "attention_multiplier": 8**-0.5}
    model = reference(tmp_path, "GraniteModel", num_hidden_layers=layers, **factors)
    head = tensors[f"lm_head.{layers - 2}.linear_head.weight"]

    options = {} if cutoff is None else {"hf_overrides": {"cutoff_layers": cutoff}}
    with LLM(str(tmp_path), dtype="float32", **options) as llm:
        assert llm.supported_tasks == ("classify", "token_classify", "score")
        outputs = llm.classify(SEQUENCES, use_tqdm=False)

    expected = [F.linear(rows[-1], head).sigmoid() for rows in compute_hidden_states(model)]
    assert_same([output.outputs.data for output in outputs], expected)


@pytest.mark.parametrize("cutoff", [1, 5, [2, 3], "all"])
def test_an_impossible_cutoff_is_refused(cutoff: Any, tmp_path: Path) -> None:
    text_families.bge_reranker_v2_minicpm_layerwise(tmp_path)

    with pytest.raises(LoadError, match="expected one number from 2 to 4"):
        LLM(str(tmp_path), hf_overrides={"cutoff_layers": cutoff})


def test_a_layerwise_reranker_has_the_token_ids_of_its_parts_encoded_alone(tmp_path: Path) -> None:
    text_families.bge_reranker_v2_minicpm_layerwise(tmp_path)
    text_families.save_t5_tokenizer(tmp_path)  # puts a space before every text, as the tokenizer of MiniCPM does
    tokenizer = transformers.T5Tokenizer.from_pretrained(tmp_path)
    question = "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
    question += "providing a prediction of either 'Yes' or 'No'."
    parts = ["A: the cat", "\n", "B: a dog", "\n", question]

    (output, *_) = score(tmp_path)

    ids = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
    assert output.prompt_token_ids == [*chain(*ids), 1]


def test_the_windows_of_jina_reranker_v3_5_come_from_its_layer_types(tmp_path: Path) -> None:
    text_families.jina_reranker_v3_5(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    states = torch.cat(compute_hidden_states(reference(tmp_path, "Qwen3Model")))
    first, second = (tensors[f"projector.{n}.weight"] for n in (0, 2))

    model = load_model(EngineConfig.from_kwargs(str(tmp_path), dtype="float32", device="cpu"))
    with torch.inference_mode():
        actual = model.pooler.heads.token_projector(model.backbone(pack_sequences(SEQUENCES)))

    assert_close(actual, F.linear(F.linear(states, first).relu(), second), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["sfr_embedding_code_2b", "bidirlm_1b", "hallucination_evaluation_model"])
def test_families_that_overflow_in_float16_are_known_by_their_other_model_types(name: str, tmp_path: Path) -> None:
    BUILDERS[name](tmp_path)

    assert json.loads((tmp_path / "config.json").read_text())["model_type"] in NO_FLOAT16
