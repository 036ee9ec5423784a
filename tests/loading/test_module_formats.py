"""Models in the formats of Sentence Transformers and model2vec give the values of these libraries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from tokenizers import Tokenizer, normalizers
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM, PoolingParams
from cenote.cli.main import main
from cenote.errors import BadRequest, LoadError
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.protocol.engine import Engine
from cenote.protocol.params import Role
from cenote.protocol.requests import PoolRequest
from tests.api.app_client import make_client
from tests.api.front_ends.remote_link import call_both
from tests.layouts.builders import st_formats
from tests.models.two_towers import IMAGES
from tests.tiny import TEXTS, change_config, tiny_bert

QUERIES, DOCUMENTS = ["what is the city", "who"], ["the cat is in the city", "a red bird, a blue fish live in berlin"]
PAIRS = list(zip(QUERIES, DOCUMENTS, strict=True))
# the vocabulary has no such character
WITH_UNKNOWN = ["the cat ☃ is in the city", "☃ two ☃"]


@contextmanager
def loaded(folder: Path, **options: Any) -> Iterator[LLM]:
    llm = LLM(str(folder), dtype="float32", **options)
    try:
        yield llm
    finally:
        llm.engine.stop()


def embed(llm: LLM, texts: list[str], **options: Any) -> Tensor:
    outputs = llm.embed(texts, use_tqdm=False, **options)
    return torch.tensor([output.outputs.embedding for output in outputs])


def score(llm: LLM, queries: Any, documents: Any) -> Tensor:
    return torch.tensor([output.outputs.score for output in llm.score(queries, documents, use_tqdm=False)])


def test_a_modular_cross_encoder_scores_as_sentence_transformers(tmp_path: Path) -> None:
    st_formats.ettin_reranker(tmp_path)
    expected = torch.from_numpy(CrossEncoder(str(tmp_path)).predict(PAIRS))

    with loaded(tmp_path) as llm:
        assert llm.engine.model_info.tasks == ("classify",)
        assert llm.engine.model_info.score_types == ("cross-encoder",)
        assert_close(score(llm, QUERIES, DOCUMENTS), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("activation", "labels"), [("torch.nn.modules.activation.Sigmoid", 1), ("torch.nn.modules.linear.Identity", 3)]
)
def test_the_files_of_a_modular_cross_encoder_set_activation_and_labels(
    tmp_path: Path, activation: str, labels: int
) -> None:
    st_formats.ettin_reranker(tmp_path)
    change_config(tmp_path, file="config_sentence_transformers.json", activation_fn=activation)
    identity = "torch.nn.modules.linear.Identity"
    st_formats.write_dense(tmp_path / "4_Dense", 32, labels, identity, bias=True, module_output_name="scores")
    expected = torch.from_numpy(CrossEncoder(str(tmp_path)).predict([(text, text) for text in TEXTS]))

    with loaded(tmp_path) as llm:
        if labels == 1:
            assert_close(score(llm, TEXTS, TEXTS), expected, atol=1e-5, rtol=1e-5)
        else:
            assert llm.engine.scoring_model.num_labels == 3
            assert llm.engine.model_info.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_a_prompt_of_a_cross_encoder_is_prepended_to_the_query(tmp_path: Path) -> None:
    st_formats.ettin_reranker(tmp_path)
    prompts = {"prompts": {"search": "query: "}, "default_prompt_name": "search"}
    change_config(tmp_path, file="config_sentence_transformers.json", **prompts)
    expected = torch.from_numpy(CrossEncoder(str(tmp_path)).predict(PAIRS))

    with loaded(tmp_path) as llm:
        assert_close(score(llm, QUERIES, DOCUMENTS), expected, atol=1e-5, rtol=1e-5)
    with loaded(tmp_path, default_prompt="") as llm:
        assert (score(llm, QUERIES, DOCUMENTS) - expected).abs().max() > 0.01


def test_a_cross_encoder_without_a_module_that_writes_scores_is_refused(tmp_path: Path) -> None:
    st_formats.ettin_reranker(tmp_path)
    change_config(tmp_path, file="4_Dense/config.json", module_output_name="sentence_embedding")

    with pytest.raises(LoadError, match=r"config_sentence_transformers.json: the model is a CrossEncoder.*convert"):
        LLM(str(tmp_path))


@pytest.mark.parametrize("change", [{"module_input_name": "token_embeddings"}, {"module_output_name": "extra"}])
def test_modules_that_pass_on_other_values_are_refused(tmp_path: Path, change: dict[str, str]) -> None:
    st_formats.ettin_reranker(tmp_path)
    change_config(tmp_path, file="4_Dense/config.json", **change)

    with pytest.raises(LoadError, match="4_Dense/config.json: .*module"):
        LLM(str(tmp_path))


def test_a_logit_score_without_a_language_model_is_refused(tmp_path: Path) -> None:
    st_formats.ettin_reranker(tmp_path)
    st_formats.write_modules(
        tmp_path,
        ("sentence_transformers.base.modules.transformer.Transformer", ""),
        ("sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "1_LogitScore"),
    )
    st_formats.write_json(tmp_path / "1_LogitScore/config.json", {"true_token_id": 5, "false_token_id": 6})

    with pytest.raises(LoadError, match="1_LogitScore/config.json: LogitScore requires a causal language model"):
        LLM(str(tmp_path))


@pytest.mark.parametrize("build", [st_formats.static_retrieval, st_formats.potion])
def test_static_embeddings_are_those_of_sentence_transformers(tmp_path: Path, build: Any) -> None:
    build(tmp_path)
    texts = [*TEXTS, *WITH_UNKNOWN]
    expected = torch.from_numpy(SentenceTransformer(str(tmp_path)).encode(texts))

    with loaded(tmp_path) as llm:
        assert_close(embed(llm, texts), expected, atol=1e-6, rtol=1e-5)
        assert llm.engine.model_info.embedding_size == 24


@pytest.mark.parametrize("build", [st_formats.static_retrieval, st_formats.potion])
def test_static_embeddings_use_tokenizer_json_without_a_tokenizer_class(tmp_path: Path, build: Any) -> None:
    build(tmp_path)
    (path,) = tmp_path.rglob("tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.save(str(path))
    changes = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "additional_special_tokens": ["city"]}
    path.with_name("tokenizer_config.json").write_text(json.dumps(changes))
    texts = ["The CAT is in the City", "the cat is in thecity"]
    expected = SentenceTransformer(str(tmp_path), device="cpu").encode(texts, convert_to_tensor=True)

    with loaded(tmp_path, device="cpu") as llm:
        assert_close(embed(llm, texts), expected, atol=1e-5, rtol=1e-5)


def test_a_static_embedding_is_the_same_in_any_batch(tmp_path: Path) -> None:
    st_formats.static_retrieval(tmp_path)

    with loaded(tmp_path) as llm:
        together = embed(llm, TEXTS)
        alone = torch.cat([embed(llm, [text]) for text in TEXTS])
        short = embed(llm, TEXTS, pooling_params=PoolingParams(use_activation=True))

    assert torch.equal(together, alone)
    assert_close(short.norm(dim=1), torch.ones(len(TEXTS)))


def test_rows_that_tokens_share_are_weighted_by_token(tmp_path: Path) -> None:
    st_formats.model2vec_quantized_vocabulary(tmp_path)
    expected = torch.from_numpy(SentenceTransformer(str(tmp_path)).encode(TEXTS))

    with loaded(tmp_path) as llm:
        assert_close(embed(llm, TEXTS), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_model2vec_without_sentence_transformers_files_leaves_out_unknown_tokens(
    tmp_path: Path, normalize: bool
) -> None:
    st_formats.m2v_base_output(tmp_path)
    change_config(tmp_path, normalize=normalize)
    texts = [*TEXTS, *WITH_UNKNOWN, "☃"]
    expected = np.stack([mean_of_known_tokens(tmp_path, text, normalize=normalize) for text in texts])

    with loaded(tmp_path) as llm:
        assert_close(embed(llm, texts), torch.from_numpy(expected), atol=1e-6, rtol=1e-5)


def mean_of_known_tokens(folder: Path, text: str, *, normalize: bool) -> np.ndarray[Any, Any]:
    """The arithmetic of model2vec."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    unknown = tokenizer.token_to_id("[UNK]")
    rows = load_file(folder / "model.safetensors")["embeddings"].float().numpy()
    ids = [row for row in tokenizer.encode(text, add_special_tokens=False).ids if row != unknown]
    mean = rows[ids].mean(axis=0) if ids else np.zeros(rows.shape[1], dtype=np.float32)
    return mean / (np.linalg.norm(mean) + 1e-32) if normalize else mean


@pytest.mark.parametrize("build", [st_formats.static_retrieval, st_formats.potion])
def test_the_static_embedding_of_a_text_without_tokens_is_zero(tmp_path: Path, build: Any) -> None:
    build(tmp_path)
    texts = ["", TEXTS[0], "   ", "\u200b\n", ""]
    expected = torch.from_numpy(SentenceTransformer(str(tmp_path)).encode(texts))
    assert expected[0].eq(0).all()

    with loaded(tmp_path) as llm:
        assert_close(embed(llm, texts), expected, atol=1e-6, rtol=0)
        assert_close(embed(llm, [""]), expected[:1])
        assert_close(score(llm, texts[:2], [texts[1]] * 2), torch.tensor([0.0, 1.0]))
        reply = make_client(llm).post(
            "/v1/embeddings", json={"model": llm.engine.model.description.name, "input": texts}
        )
    vectors = [entry["embedding"] for entry in reply.json()["data"]]
    assert_close(torch.tensor(vectors), expected, atol=1e-6, rtol=0)


def test_a_file_with_a_blank_line_has_a_static_embedding_of_every_line(tmp_path: Path) -> None:
    st_formats.potion(tmp_path)
    (tmp_path / "texts.txt").write_text(f"{TEXTS[0]}\n   \n{TEXTS[1]}\n")
    output = tmp_path / "vectors.npy"

    status = main(["embed", "--model", str(tmp_path), "--input", str(tmp_path / "texts.txt"), "--output", str(output)])

    assert status == 0
    assert_close(torch.from_numpy(np.load(output)).norm(dim=1), torch.tensor([1.0, 0.0, 1.0]))


def test_only_a_static_model_takes_texts_without_tokens_from_front_ends(tmp_path: Path) -> None:
    ids, lengths = np.array([], dtype=np.int32), np.zeros(2, dtype=np.int64)
    blank = TokenizedInputs.from_ids(ids, lengths, lengths)
    (tmp_path / "static").mkdir()
    (tmp_path / "bert").mkdir()
    st_formats.potion(tmp_path / "static")
    tiny_bert(tmp_path / "bert")

    with loaded(tmp_path / "static") as llm:
        llm.engine.core.check(blank)
    with loaded(tmp_path / "bert") as llm, pytest.raises(BadRequest, match="between 1 and"):
        llm.engine.core.check(blank)


def test_a_static_text_without_tokens_has_no_first_token(tmp_path: Path) -> None:
    st_formats.static_retrieval(tmp_path)

    with loaded(tmp_path, pooler_config={"pooling_type": "CLS"}) as llm, pytest.raises(BadRequest, match="empty"):
        embed(llm, [" "])


def test_the_truncation_of_the_tokenizer_limits_static_texts(tmp_path: Path) -> None:
    st_formats.static_retrieval(tmp_path)
    file = tmp_path / "0_StaticEmbedding/tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(4)
    tokenizer.save(str(file))
    expected = torch.from_numpy(SentenceTransformer(str(tmp_path)).encode(TEXTS))

    with loaded(tmp_path) as llm:
        assert llm.engine.max_model_len == 4
        assert_close(embed(llm, TEXTS, tokenization_kwargs={"truncate_prompt_tokens": -1}), expected, atol=1e-6, rtol=0)


def test_queries_of_an_inference_free_sparse_encoder_are_weights_of_their_tokens(tmp_path: Path) -> None:
    st_formats.opensearch_sparse_doc(tmp_path)
    reference = SparseEncoder(str(tmp_path))
    queries, documents = (
        encode(TEXTS, convert_to_sparse_tensor=False) for encode in (reference.encode_query, reference.encode_document)
    )
    vocabulary = queries.shape[1]

    with loaded(tmp_path) as llm:
        assert_close(embed(llm, TEXTS, input_type="query")[:, :vocabulary], queries, atol=1e-5, rtol=1e-5)
        assert not embed(llm, ["", "a"], input_type="query")[0].any()
        assert llm.sparse_embed(" ", input_type="query", use_tqdm=False)[0].outputs.token_ids == []
        assert_close(embed(llm, TEXTS, input_type="document"), documents, atol=1e-5, rtol=1e-5)
        assert_close(embed(llm, TEXTS), documents, atol=1e-5, rtol=1e-5)
        sparse = llm.sparse_embed(TEXTS[:1], input_type="query", use_tqdm=False)[0].outputs
        assert sparse.token_ids == queries[0].nonzero()[:, 0].tolist()
        expected = (queries * documents[:, :vocabulary]).sum(dim=1)
        assert_close(score(llm, TEXTS, TEXTS), expected, atol=1e-4, rtol=1e-5)
        assert_close(score(llm, TEXTS[0], TEXTS)[1:2], queries[0] @ documents[1, :vocabulary, None], atol=1e-4, rtol=0)


def test_a_router_encodes_queries_and_documents_with_different_modules(tmp_path: Path) -> None:
    st_formats.static_query_router(tmp_path)
    reference = SentenceTransformer(str(tmp_path))
    queries, documents = (
        torch.from_numpy(encode(TEXTS)) for encode in (reference.encode_query, reference.encode_document)
    )

    with loaded(tmp_path) as llm:
        assert_close(embed(llm, TEXTS, input_type="query"), queries, atol=1e-5, rtol=1e-5)
        assert_close(embed(llm, TEXTS, input_type="document"), documents, atol=1e-5, rtol=1e-5)
        assert_close(embed(llm, TEXTS), documents, atol=1e-5, rtol=1e-5)
        data = llm.encode(TEXTS[0], pooling_task="embed", role="query", use_tqdm=False)[0].outputs.data
        assert_close(data, queries[0], atol=1e-5, rtol=1e-5)
        # scores compare texts without prompts
        plain = torch.from_numpy(reference.encode_query(TEXTS, prompt=""))
        assert_close(score(llm, TEXTS, TEXTS), (plain * documents).sum(dim=1), atol=1e-5, rtol=1e-5)
    assert not llm.engine.routes["query"].is_running


def test_a_front_end_renders_and_sends_each_role_to_its_modules(tmp_path: Path) -> None:
    st_formats.static_query_router(tmp_path)
    roles: list[Role | None] = ["query", "document", None]
    requests = [PoolRequest(task="embed", inputs=TEXTS, role=role) for role in roles]

    async def pool_all(engine: Engine) -> list[Any]:
        return await asyncio.gather(*map(engine.pool, requests))

    with loaded(tmp_path) as llm:
        local, remote = call_both(llm.engine, pool_all)

    for one, other in zip(local, remote, strict=True):
        for result, expected in zip(other, one, strict=True):
            assert np.array_equal(np.asarray(result.data), np.asarray(expected.data))
            assert result.num_tokens == expected.num_tokens
    assert not np.array_equal(remote[0][0].data, remote[1][0].data)


def test_the_input_type_of_a_request_selects_the_route(tmp_path: Path) -> None:
    st_formats.static_query_router(tmp_path)
    expected = SentenceTransformer(str(tmp_path)).encode_query(TEXTS)

    with loaded(tmp_path) as llm:
        reply = make_client(llm).post("/v1/embeddings", json={"input": TEXTS, "input_type": "search_query"})

    vectors = torch.tensor([item["embedding"] for item in reply.json()["data"]])
    assert_close(vectors, torch.from_numpy(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"default_route": "query"}, "query"),
        ({"default_route": None, "allow_empty_key": True}, "query"),  # the first
        ({"default_route": "query", "route_mappings": {"(None, 'text')": "document"}}, "document"),
    ],
)
def test_texts_without_a_role_take_the_default_route(tmp_path: Path, parameters: dict[str, Any], expected: str) -> None:
    st_formats.static_query_router(tmp_path)
    change_config(tmp_path, file="router_config.json", parameters=parameters)
    if "route_mappings" in parameters:  # both roles are documents; the other route must not be there
        structure = {"document": ["document_0_Transformer", "document_1_Pooling"]}
        parameters = {**parameters, "default_route": "document"}
        change_config(tmp_path, file="router_config.json", structure=structure, parameters=parameters)
    reference = SentenceTransformer(str(tmp_path))

    with loaded(tmp_path) as llm:
        assert llm.engine.model_info.architecture == {"query": "StaticEmbedding", "document": "BertModel"}[expected]
        assert_close(embed(llm, TEXTS), torch.from_numpy(reference.encode(TEXTS)), atol=1e-5, rtol=1e-5)


STATIC = ["query_0_StaticEmbedding"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"structure": {"text": STATIC, "image": STATIC}}, "route 'image' is not supported"),
        ({"structure": {"query": STATIC}}, "no route for the task 'document'"),
        (
            {"structure": {"text": STATIC}, "parameters": {"route_mappings": {"(None, None)": "all"}}},
            "unknown route 'all'",
        ),
        ({"structure": {"text": STATIC}, "parameters": {"route_mappings": {"text": "all"}}}, "route_mappings is"),
        ({"structure": {"text": ["missing"]}, "parameters": {}}, r"route 'text' is \['missing'\]"),
        (
            {"structure": {"text": STATIC}, "types": {STATIC[0]: "custom_st.Table"}},
            "'custom_st.Table' is not",
        ),
        ({"types": []}, "types and structure must be mappings"),
    ],
)
def test_a_router_that_cannot_be_followed_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    st_formats.static_query_router(tmp_path)
    change_config(tmp_path, file="router_config.json", **{"parameters": {}, **change})

    with pytest.raises(LoadError, match=rf"router_config.json:? .*{message}"):
        LLM(str(tmp_path))


@pytest.mark.parametrize("normalizes", [False, True])
def test_clip_in_a_folder_of_its_own_embeds_texts_and_images(tmp_path: Path, normalizes: bool) -> None:
    st_formats.sentence_transformers_clip(tmp_path)
    if normalizes:
        old = "sentence_transformers.models"
        st_formats.write_modules(tmp_path, (f"{old}.CLIPModel", "0_CLIPModel"), (f"{old}.Normalize", "1_Normalize"))
    reference = SentenceTransformer(str(tmp_path), processor_kwargs={"use_fast": False})
    texts, images = reference.encode(TEXTS[:4]), reference.encode(IMAGES)

    with loaded(tmp_path) as llm:
        assert llm.model_config.max_model_len == 24
        assert_close(embed(llm, TEXTS[:4]), torch.from_numpy(texts), atol=1e-5, rtol=1e-5)
        prompts: Any = [{"prompt": "", "multi_modal_data": {"image": image}} for image in IMAGES]
        assert_close(embed(llm, prompts), torch.from_numpy(images), atol=1e-4, rtol=1e-4)


def test_the_instruction_of_instructor_models_is_not_pooled(tmp_path: Path) -> None:
    folder = tmp_path / "instructor-large"
    folder.mkdir()
    st_formats.instructor(folder)
    prompt = "search for the passage: "
    reference = SentenceTransformer(str(folder))
    pooled = torch.from_numpy(reference.encode(TEXTS, prompt=prompt))
    reference.set_pooling_include_prompt(False)
    expected = torch.from_numpy(reference.encode(TEXTS, prompt=prompt))

    with loaded(folder) as llm:
        assert_close(embed(llm, TEXTS, prompt=prompt), expected, atol=1e-5, rtol=1e-5)
    with loaded(folder, pooler_config={"include_prompt": True}) as llm:
        assert_close(embed(llm, TEXTS, prompt=prompt), pooled, atol=1e-5, rtol=1e-5)

    renamed = folder.rename(tmp_path / "mine")
    with loaded(renamed, pooler_config={"include_prompt": False}) as llm:
        assert_close(embed(llm, TEXTS, prompt=prompt), expected, atol=1e-5, rtol=1e-5)
    change_config(renamed, _name_or_path="hkunlp/instructor-large")
    with loaded(renamed) as llm:
        assert_close(embed(llm, TEXTS, prompt=prompt), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("requirement", "warns"),
    [
        (">=5.4", False),
        (">=99", True),
        ({"specifier": ">=99", "reason": "older versions ignore the mask"}, True),
        ("not a version", True),
    ],
)
def test_a_model_that_requires_a_newer_sentence_transformers_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, requirement: Any, warns: bool
) -> None:
    st_formats.static_retrieval(tmp_path)
    requirements = {"sentence-transformers": requirement, "flash-attn": ">=99"}
    change_config(tmp_path, file="config_sentence_transformers.json", requirements=requirements)

    with caplog.at_level("WARNING", logger="cenote"), loaded(tmp_path):
        pass

    found = [record.getMessage() for record in caplog.records if "the model requires" in record.getMessage()]
    assert len(found) == warns
    assert all("config_sentence_transformers.json" in line for line in found)


def test_mean_max_sim_divides_by_the_number_of_query_embeddings(tmp_path: Path) -> None:
    st_formats.multi_vector(tmp_path)
    reference = MultiVectorEncoder(str(tmp_path))
    queries, documents = reference.encode_query(QUERIES), reference.encode_document(DOCUMENTS)
    expected = reference.similarity_pairwise(queries, documents)

    with loaded(tmp_path) as llm:
        assert_close(score(llm, QUERIES, DOCUMENTS), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_pooled_documents_of_a_multi_vector_model_are_refused(tmp_path: Path, factor: float) -> None:
    st_formats.multi_vector(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    kind = "sentence_transformers.multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling"
    modules.append({"idx": 9, "name": "9", "path": "9_Pooling", "type": kind})
    st_formats.write_json(tmp_path / "modules.json", modules)
    st_formats.write_json(tmp_path / "9_Pooling/config.json", {"pool_factor": factor, "normalize_embeddings": True})

    if factor == 1:
        with loaded(tmp_path) as llm:
            assert llm.engine.model_info.score_types == ("late-interaction",)
    else:
        with pytest.raises(LoadError, match="9_Pooling/config.json: pool_factor 2.0 is not supported"):
            LLM(str(tmp_path))
