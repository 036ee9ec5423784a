"""Programs in the shape of vLLM's clients talk to a server of ours, and get the model's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM
from cenote.multimodal.utils import encode_image_url
from cenote.utils.serial_utils import EMBED_DTYPE_TO_TORCH_DTYPE, ENDIANNESS
from tests.api.app_client import add_chat_template
from tests.factories import LLMFactory
from tests.models.reward_models import internlm2
from tests.models.tiny_qwen3_vl import IMAGE, make_image, save_tiny_qwen3_vl
from tests.scoring.rerankers import RERANKER_KINDS, reference_scores, save_reranker
from tests.tiny import save_tiny, tiny_bert_token_classifier, tiny_bge_m3, tiny_qwen3
from tests.vllm_programs.program import run_program, serve

TEXTS = ["the cat is in the city", "a red bird"]


def is_close(actual: Any, expected: Any, atol: float = 1e-4) -> None:
    assert_close(torch.as_tensor(actual), torch.as_tensor(expected), atol=atol, rtol=0)


def embed(llm: LLM, prompts: Sequence[Any], **options: Any) -> Tensor:
    return torch.stack([output.outputs.data for output in llm.embed(prompts, use_tqdm=False, **options)])


def score(llm: LLM, *data: Any) -> list[float]:
    return [output.outputs.score for output in llm.score(*data, use_tqdm=False)]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = tmp_path_factory.mktemp("embedder")
    tiny_qwen3(folder)
    pooler = {"enable_chunked_processing": True, "max_embed_len": 10_000, "pooling_type": "MEAN"}
    return open_llm(folder, hf_overrides={"is_matryoshka": True}, pooler_config=pooler)


def test_embeddings_as_bytes(embedder: LLM) -> None:
    expected = embed(embedder, TEXTS)

    with serve(embedder) as flags:
        results = run_program("bytes_client", *flags)

    assert set(results) == {(dtype, order) for dtype in EMBED_DTYPE_TO_TORCH_DTYPE for order in ENDIANNESS}
    for (dtype, _), tensors in results.items():
        rounded = expected.to(EMBED_DTYPE_TO_TORCH_DTYPE[dtype]).float()
        for tensor in tensors:
            is_close(tensor, rounded, atol=1e-4 if dtype == "float32" else 0.02)


def test_embeddings_as_base64(embedder: LLM) -> None:
    expected = embed(embedder, TEXTS)

    with serve(embedder) as flags:
        results = run_program("base64_client", *flags)

    assert len(results) == 15
    for (dtype, _), tensor in results.items():
        is_close(tensor, expected.to(EMBED_DTYPE_TO_TORCH_DTYPE[dtype]).float(), atol=0.02)


def test_embeddings_through_the_client_of_openai(embedder: LLM) -> None:
    with serve(embedder) as flags:
        full, cut = run_program("openai_client", *flags)

    is_close(full, embed(embedder, TEXTS))
    is_close(cut, torch.nn.functional.normalize(torch.tensor(full)[:, :16], dim=-1))


def test_a_long_text_is_embedded_in_chunks(embedder: LLM) -> None:
    with serve(embedder) as flags:
        embedding, num_tokens = run_program("long_text_client", *flags)

    text = "the cat and the dog live in the old city " * 20
    assert num_tokens == len(embedder.get_tokenizer().encode(text)) == 200
    is_close(embedding, embed(embedder, [text])[0])


def test_pooling_of_a_text_and_of_messages(tmp_path: Path) -> None:
    internlm2(tmp_path)
    add_chat_template(tmp_path)
    with LLM(str(tmp_path), dtype="float32") as llm, serve(llm) as flags:
        text, messages = run_program("pooling_client", *flags)
        expected = llm.reward(["the cat is good", "user: the cat is good."], use_tqdm=False)

    for reply, output in zip((text, messages), expected, strict=True):
        is_close(reply["data"][0]["data"], output.outputs.data)


def test_ner(tmp_path: Path) -> None:
    labels = {0: "O", 1: "B-LOC", 2: "I-LOC"}
    tiny_bert_token_classifier(tmp_path, id2label=labels)
    with LLM(str(tmp_path), dtype="float32") as llm, serve(llm) as flags:
        labelled = run_program("ner_client", *flags, "--model", str(tmp_path))
        expected = run_program("ner", "--model", str(tmp_path))

    assert labelled == expected


def test_multi_vector_retrieval(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)
    with LLM(str(tmp_path), dtype="float32") as llm, serve(llm) as flags:
        scores = run_program("multi_vector_client", *flags)
        outputs = llm.score(
            "where is the dog?",
            ["the dog is in the city", "a red bird"],
            score_type="late-interaction",
            use_tqdm=False,
        )

    is_close(scores, [output.outputs.score for output in outputs])


def test_late_chunking(tmp_path: Path) -> None:
    tiny_qwen3(tmp_path)
    pooler = {"task": "token_embed", "pooling_type": "MEAN"}
    with LLM(str(tmp_path), dtype="float32", pooler_config=pooler) as llm, serve(llm) as flags:
        ranked = run_program("late_chunking_client", *flags, "--query", "two")

    assert ranked[0][:3] == ("number", (0, 1), "two")
    is_close(ranked[0][3], 1.0)
    assert {name for name, *_ in ranked} == {"city", "number"}


def test_classification(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen2ForSequenceClassification", id2label={0: "good", 1: "bad"})
    with LLM(str(tmp_path), dtype="float32") as llm, serve(llm) as flags:
        reply = run_program("classification_client", *flags)
        outputs = llm.classify(["the cat is good", "a bad dog"], use_tqdm=False)

    for item, output in zip(reply["data"], outputs, strict=True):
        is_close(item["probs"], output.outputs.probs)
        assert item["label"] == ("good", "bad")[int(torch.tensor(output.outputs.probs).argmax())]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = tmp_path_factory.mktemp("reranker")
    save_tiny(folder, "XLMRobertaForSequenceClassification", num_labels=1)
    return open_llm(folder)


def test_scores_of_one_and_several_texts(reranker: LLM) -> None:
    with serve(reranker) as flags:
        single, one_to_many, many = run_program("score_client", *flags)

    queries, documents = ["where is the dog?", "a bird"], ["the dog is in the city", "a red bird"]
    is_close(single, score(reranker, queries[0], documents[0]))
    is_close(one_to_many, score(reranker, queries[0], documents))
    is_close(many, score(reranker, queries, documents))


def test_rerank_as_cohere_and_jina(reranker: LLM) -> None:
    with serve(reranker) as flags:
        replies = run_program("rerank_clients", *flags)

    documents = ["a red bird", "the dog is in the city", "two big fish in the river"]
    scores = score(reranker, "where is the dog?", documents)
    ranked = sorted(enumerate(scores), key=lambda item: -item[1])
    for reply in replies:
        assert [index for index, _ in reply] == [index for index, _ in ranked]
        is_close([value for _, value in reply], [value for _, value in ranked])


def test_chat_embeddings_and_rerank_with_images(tmp_path: Path) -> None:
    save_tiny_qwen3_vl(tmp_path)
    image = make_image(40, 30)
    with LLM(str(tmp_path), dtype="float32") as llm, serve(llm) as flags:
        embeddings, scores = run_program("vision_client", *flags, IMAGE_URL=encode_image_url(image))
        text = "the dog is in the city"
        pictured = {"multi_modal_data": {"image": image}}
        prompts = [
            f"<|im_start|>user\n{text}<|im_end|>\n",
            {"prompt": f"<|im_start|>user\n{IMAGE}<|im_end|>\n", **pictured},
            {"prompt": f"<|im_start|>user\n{IMAGE}{text}<|im_end|>\n", **pictured},
        ]
        expected = embed(llm, prompts)

    is_close(embeddings, expected)
    assert set(scores) == {0, 1, 2}
    is_close(scores[0], 1.0)  # the query itself


def test_qwen3_reranker(tmp_path: Path) -> None:
    reference = save_reranker(tmp_path, "Qwen3ForCausalLM")
    kind = RERANKER_KINDS["Qwen3-Reranker-0.6B"]
    name = "Qwen/Qwen3-Reranker-0.6B"
    with (
        LLM(str(tmp_path), dtype="float32", hf_overrides=kind.overrides, served_model_name=name) as llm,
        serve(llm) as flags,
    ):
        scores = run_program("qwen3_reranker_client", *flags)

    is_close(scores, reference_scores(reference, tmp_path, kind))
