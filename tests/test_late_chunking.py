"""Late chunking: each chunk of a document has the mean of its token states of one pass over the whole document."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import PreTrainedModel

from cenote import LLM, BadRequest, InputTooLong, PoolingParams, PoolingRequestOutput, Unsupported
from cenote.outputs import ChunkEmbeddingOutput, LateChunk
from cenote.pooling_params import LateChunkingParams
from cenote.protocol.input_types import ChunkedDocument
from cenote.protocol.late_chunking import get_offsets, split_text
from cenote.protocol.requests import PoolRequest
from tests.factories import LLMFactory
from tests.tiny import (
    change_config,
    compute_hidden_states,
    tiny_bert,
    tiny_bert_classifier,
    tiny_bge_m3,
    tiny_modernbert,
    tiny_qwen3,
    tiny_splade,
)

CHUNKS = ["the cat is in the city.", " a red bird, a blue fish", " who live in it?"]
OTHER = ["one two three", " how big is the old river in berlin"]
TEXT = "".join(CHUNKS)
FAMILIES: dict[str, Callable[..., PreTrainedModel]] = {
    "bert": tiny_bert,
    "modernbert": tiny_modernbert,
    "qwen3": tiny_qwen3,
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, Any]]:
    """A model with MEAN pooling, and the Transformers model with the same weights."""
    folder = tmp_path_factory.mktemp(request.param)
    reference = FAMILIES[request.param](folder)
    change_config(folder, matryoshka_dimensions=[8, 32])
    with load(folder, "MEAN") as llm:
        yield llm, reference


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    tiny_bert(folder)
    return folder


@pytest.fixture(scope="module")
def llm(bert: Path, open_llm: LLMFactory) -> LLM:
    return open_llm(bert, pooler_config={"pooling_type": "MEAN"}, result_cache_bytes=1_000_000)


def load(folder: Path, pooling_type: str | None = None, **options: Any) -> LLM:
    pooler = {} if pooling_type is None else {"pooler_config": {"pooling_type": pooling_type}}
    return LLM(str(folder), dtype="float32", device="cpu", served_model_name="tiny", **pooler, **options)


def embed_chunks(llm: LLM, chunks: Any, **options: Any) -> Tensor:
    outputs = llm.embed(chunks, use_tqdm=False, **{"late_chunking": True} | options)
    return torch.stack([output.outputs.data for output in outputs])


def pool_by_hand(llm: LLM, reference: PreTrainedModel, chunks: list[str]) -> Tensor:
    """Return the means of the states of each chunk, found by the offsets of the tokens in the whole text."""
    encoding = llm.get_tokenizer()("".join(chunks), return_offsets_mapping=True)
    ids, places = encoding["input_ids"], encoding["offset_mapping"]
    (states,) = compute_hidden_states(reference, [ids])
    last = len(chunks) - 1
    owners, seen = [], False
    for start, end in places:
        if start == end:  # special tokens belong to the first or the last chunk
            owners.append(last if seen else 0)
            continue
        seen = True
        owners.append(next(index for index, (_, stop) in enumerate(get_offsets(chunks)) if start < stop))
    return torch.stack([states[[owner == index for owner in owners]].mean(0) for index in range(len(chunks))])


# results


def test_chunks_have_the_means_of_their_states_in_one_pass(family: tuple[LLM, PreTrainedModel]) -> None:
    llm, reference = family
    expected = pool_by_hand(llm, reference, CHUNKS)

    raw = PoolingParams(use_activation=False)
    assert_close(embed_chunks(llm, CHUNKS, pooling_params=raw), expected, atol=1e-5, rtol=0)
    assert_close(embed_chunks(llm, CHUNKS), F.normalize(expected, dim=-1), atol=1e-5, rtol=0)
    cut = F.normalize(expected[:, :8], dim=-1)
    assert_close(embed_chunks(llm, CHUNKS, pooling_params=PoolingParams(dimensions=8)), cut, atol=1e-5, rtol=0)
    alone = llm.embed(CHUNKS[1], use_tqdm=False)[0].outputs.data
    assert (alone - F.normalize(expected, dim=-1)[1]).abs().max() > 1e-3, "the context changes a chunk"


def test_documents_of_one_batch_do_not_change_each_other(family: tuple[LLM, PreTrainedModel]) -> None:
    llm, reference = family
    expected = torch.cat([pool_by_hand(llm, reference, chunks) for chunks in (CHUNKS, OTHER, [TEXT])])

    outputs = llm.embed([CHUNKS, OTHER, [TEXT]], late_chunking=True, use_tqdm=False)

    vectors = torch.stack([output.outputs.data for output in outputs])
    assert_close(vectors, F.normalize(expected, dim=-1), atol=1e-5, rtol=0)
    places = [(item.document_index, item.start, item.end) for item in map(get_chunk, outputs)]
    assert places == [(0, 0, 23), (0, 23, 47), (0, 47, 63), (1, 0, 13), (1, 13, 48), (2, 0, 63)]
    assert [number.request_id for number in outputs] == sorted({number.request_id for number in outputs}, key=int)


def get_chunk(output: Any) -> ChunkEmbeddingOutput:
    assert isinstance(output.outputs, ChunkEmbeddingOutput)
    return output.outputs


def test_a_document_of_one_chunk_has_the_embedding_of_its_text(family: tuple[LLM, PreTrainedModel]) -> None:
    llm, _ = family
    assert_close(embed_chunks(llm, [TEXT])[0], llm.embed(TEXT, use_tqdm=False)[0].outputs.data, atol=1e-6, rtol=0)


def test_other_tasks_in_the_batch_do_not_matter(llm: LLM) -> None:
    expected = embed_chunks(llm, CHUNKS)
    params = [PoolingParams(late_chunking=True), PoolingParams(late_chunking=True, use_activation=False)]
    request = PoolRequest(task="embed", inputs=[ChunkedDocument(tuple(CHUNKS))] * 2, params=params)

    first, second = llm.engine.pool_sync(request)

    assert_close(torch.from_numpy(first.data), expected, atol=1e-6, rtol=0)  # type: ignore[union-attr]
    assert_close(F.normalize(torch.from_numpy(second.data), dim=-1), expected, atol=1e-6, rtol=0)  # type: ignore[union-attr]


def test_the_cache_tells_chunks_of_the_same_text_apart(llm: LLM) -> None:
    halves = [TEXT[:35], TEXT[35:]]
    first, whole = embed_chunks(llm, CHUNKS), embed_chunks(llm, halves)

    assert first.shape == (3, 32) and whole.shape == (2, 32)
    assert torch.equal(embed_chunks(llm, CHUNKS), first)
    assert torch.equal(embed_chunks(llm, halves), whole)


def test_a_prompt_belongs_to_the_first_chunk_or_to_none(bert: Path, llm: LLM) -> None:
    prompt = "search query: "
    included = embed_chunks(llm, [prompt + CHUNKS[0], *CHUNKS[1:]])
    assert_close(embed_chunks(llm, CHUNKS, prompt=prompt), included)

    pooler = {"pooling_type": "MEAN", "include_prompt": False}
    with LLM(str(bert), dtype="float32", device="cpu", pooler_config=pooler) as excluding:
        excluded = embed_chunks(excluding, CHUNKS, prompt=prompt)
        whole = excluding.embed(TEXT, prompt=prompt, use_tqdm=False)[0].outputs.data
        assert_close(embed_chunks(excluding, [TEXT], prompt=prompt)[0], whole)
    assert_close(excluded[1:], included[1:])
    assert (excluded[0] - included[0]).abs().max() > 1e-3


def test_a_text_is_split_into_chunks(llm: LLM) -> None:
    outputs = llm.embed(TEXT, chunk_size=24, use_tqdm=False)

    places = [(item.start, item.end) for item in map(get_chunk, outputs)]
    assert places == split_text(TEXT, 24) and len(places) == 3
    expected = embed_chunks(llm, [TEXT[start:end] for start, end in places])
    assert_close(torch.stack([output.outputs.data for output in outputs]), expected)
    restored = pickle.loads(pickle.dumps(outputs[1]))
    assert (restored.outputs.start, restored.outputs.embedding) == (places[1][0], outputs[1].outputs.embedding)
    ids = [token for output in outputs for token in output.prompt_token_ids]
    assert ids == llm.embed(TEXT, use_tqdm=False)[0].prompt_token_ids


# refused requests


@pytest.mark.parametrize(
    ("prompts", "options", "error", "words"),
    [
        (TEXT, {}, BadRequest, "needs a list of texts"),
        ([], {}, BadRequest, "at least one chunk"),
        ([[7, 8], "the cat"], {}, BadRequest, "chunk 0 is list"),
        (["the cat", "  "], {}, BadRequest, "chunk 1 of the document has no tokens"),
        (["the cat "] * 40, {}, InputTooLong, "40 chunks have 82 tokens, the limit is 66"),
        (
            ["the cat", "a " * 5000],
            {},
            InputTooLong,
            "one has 10000 characters, the limit is 66 tokens, and they are not",
        ),
        (
            CHUNKS,
            {"tokenization_kwargs": {"truncate_prompt_tokens": 10}},
            InputTooLong,
            "3 chunks have 21 tokens, the limit is 10, and they are not truncated",
        ),
        (CHUNKS, {"pooling_params": [PoolingParams()] * 3}, BadRequest, "one PoolingParams for all chunks"),
        (TEXT, {"chunk_size": 0}, BadRequest, "at least 1, got 0"),
        ([[7, 8]], {"chunk_size": 5}, BadRequest, "splits a text into chunks, got list"),
    ],
)
def test_an_unusable_document_is_refused(
    llm: LLM, prompts: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        embed_chunks(llm, prompts, **options)


def test_late_chunking_of_other_tasks_and_inputs_is_refused(llm: LLM) -> None:
    params = PoolingParams(late_chunking=True)
    with pytest.raises(BadRequest, match="needs the texts of the chunks"):
        llm.encode(CHUNKS, params, pooling_task="embed", use_tqdm=False)
    with pytest.raises(BadRequest, match="needs the texts of the chunks"):
        llm.score("the cat", "a dog", pooling_params=params, use_tqdm=False)
    request = PoolRequest(task="token_embed", inputs=[ChunkedDocument(tuple(CHUNKS))], params=params)
    with pytest.raises(Unsupported, match="option of the task embed, got token_embed"):
        llm.engine.pool_sync(request)


def test_models_without_mean_pooling_are_refused(tmp_path: Path, bert: Path) -> None:
    with load(bert) as cls, pytest.raises(Unsupported, match="needs MEAN pooling.* tiny uses CLS pooling"):
        embed_chunks(cls, CHUNKS)
    tiny_splade(tmp_path)
    with load(tmp_path, "MEAN") as splade, pytest.raises(Unsupported, match="tiny uses SPLADE pooling"):
        embed_chunks(splade, CHUNKS)


def test_classifiers_are_refused(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)
    with load(tmp_path) as llm, pytest.raises(BadRequest, match="Embedding API is not supported by this model"):
        embed_chunks(llm, CHUNKS)


# splitting


def test_parts_cover_the_text_within_the_size() -> None:
    text = "One sentence here. Another one follows!\n\nA new paragraph, which is longer than the others? Yes."
    for size in (1, 5, 20, 45, 80, 1000):
        places = split_text(text, size)
        assert "".join(text[start:end] for start, end in places) == text
        assert all(text[start:end].strip() for start, end in places)
        if size > 1:
            assert max(end - start for start, end in places) <= size + 2  # white space joined to the part before


def test_parts_end_at_the_best_boundary() -> None:
    text = "One sentence here. Another one follows!\n\nA new paragraph."
    assert [text[start:end] for start, end in split_text(text, 45)] == [text[:39], text[39:]]
    assert [text[start:end] for start, end in split_text(text, 30)] == [text[:18], text[18:39], text[39:]]
    assert split_text("一二三。四五六。七", 6) == [(0, 4), (4, 9)]
    assert split_text("abcdefgh", 3) == [(0, 3), (3, 6), (6, 8)]
    assert split_text("", 3) == []


def test_white_space_is_no_chunk_of_its_own() -> None:
    text = " " * 20 + "one" + "\n" * 20 + "two" + " " * 20
    places = split_text(text, 8)
    assert [text[start:end].split() for start, end in places] == [["one"], ["two"]]


# chunks of a number of tokens, as in vLLM


def encode(llm: LLM, texts: Any, *sizes: int | None, **options: Any) -> list[PoolingRequestOutput]:
    params = [
        PoolingParams(late_chunking_params=LateChunkingParams(size) if size else None, use_activation=False)
        for size in sizes
    ]
    return llm.encode(texts, params, pooling_task="token_embed", use_tqdm=False, **options)


def split_means(tokens: Tensor, size: int) -> Tensor:
    return torch.stack([part.mean(0) for part in tokens.split(min(size, len(tokens)))])


def test_chunks_of_tokens_have_the_means_of_the_states_of_their_tokens(family: tuple[LLM, PreTrainedModel]) -> None:
    llm, reference = family
    ids = [llm.get_tokenizer().encode(text) for text in (TEXT, *OTHER, TEXT)]
    states = [rows for text_ids in ids for rows in compute_hidden_states(reference, [text_ids])]

    outputs = encode(llm, [TEXT, *OTHER, TEXT], 5, None, 3, 2**63 - 1)

    for output, rows, size in zip(outputs, states, (5, 1, 3, len(ids[-1])), strict=True):
        assert_close(output.outputs.data, split_means(rows, size), atol=1e-5, rtol=0)
    assert outputs[1].late_chunking is None
    normalized = llm.embed(TEXT, pooling_params=PoolingParams(late_chunking_params=LateChunkingParams(5)))
    assert_close(normalized[0].outputs.data, F.normalize(split_means(states[0], 5), dim=-1), atol=1e-5, rtol=0)


def test_chunks_of_tokens_tell_their_places(llm: LLM) -> None:
    (output,) = encode(llm, "  the cat, CAFÉ ", 3)

    assert output.late_chunking is not None
    (offsets,) = (llm.get_tokenizer()(["  the cat, CAFÉ "], return_offsets_mapping=True)["offset_mapping"],)
    spans = [[span for span in offsets[0][start : start + 3] if span[0] < span[1]] for start in (0, 3)]
    assert output.late_chunking.chunks[:2] == [
        LateChunk((0, 3), (spans[0][0][0], spans[0][-1][1])),
        LateChunk((3, 6), (spans[1][0][0], spans[1][-1][1])),
    ]
    assert output.late_chunking.input_tokens == output.num_prompt_tokens
    assert pickle.loads(pickle.dumps(output)).late_chunking == output.late_chunking


def test_bge_m3_keeps_the_first_token_in_its_chunk_and_projects_the_mean(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)
    with load(tmp_path) as llm:
        tokens, chunks, plain = encode(llm, [TEXT] * 3, 1, 4, None)

    assert len(tokens.outputs.data) == tokens.num_prompt_tokens == len(plain.outputs.data) + 1
    assert_close(plain.outputs.data, tokens.outputs.data[1:])
    assert_close(chunks.outputs.data, split_means(tokens.outputs.data, 4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [0, -1, 2**63, True, 2.0, "5", None])
def test_a_chunk_size_that_is_no_positive_integer_is_refused(llm: LLM, size: Any) -> None:
    with pytest.raises(BadRequest, match="chunk_size must be a positive integer less than 2\\*\\*63, got"):
        LateChunkingParams(size)
    late = LateChunkingParams(1)
    late.chunk_size = size
    with pytest.raises(BadRequest, match="positive integer"):
        llm.encode(TEXT, PoolingParams(late_chunking_params=late), pooling_task="token_embed", use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("prompt", "kwargs", "words"),
    [
        ("", {}, "plain-text"),
        ([7, 8], {}, "plain-text"),
        ({"prompt_token_ids": [7, 8]}, {}, "plain-text"),
        ("abc", {"truncate_prompt_tokens": 2}, "does not support"),
        ("abc", {"truncation": True}, "does not support"),
        ("abc", {"pad_prompt_tokens": 8}, "does not support"),
        ("abc", {"padding": "max_length"}, "does not support"),
        ("abc", {"do_lower_case": True}, "does not support"),
        ("   ", {"add_special_tokens": False}, "cannot be empty"),
    ],
)
def test_inputs_without_such_chunks_are_refused(llm: LLM, prompt: Any, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        encode(llm, [prompt], 5, tokenization_kwargs=kwargs)


def test_chunks_of_tokens_are_an_option_of_token_embed_alone(llm: LLM) -> None:
    params = PoolingParams(late_chunking_params=LateChunkingParams(5))

    with pytest.raises(BadRequest, match="Task 'embed' only supports .* does not support \\['late_chunking_params'\\]"):
        llm.encode(TEXT, params, pooling_task="embed", use_tqdm=False)
    with pytest.raises(BadRequest, match="Task 'embed' only supports"):
        llm.score("the cat", "a dog", pooling_params=params, use_tqdm=False)
    with pytest.raises(BadRequest, match="cannot be combined with late-interaction scoring"):
        llm.score("the cat", "a dog", pooling_params=params, score_type="late-interaction", use_tqdm=False)
