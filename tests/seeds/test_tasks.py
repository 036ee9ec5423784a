"""Every pooling task, by every way to ask for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, BadRequest, Unsupported
from tests.api.app_client import make_client
from tests.plugins.conftest import InstallPlugin
from tests.seeds.checkpoints import EXACT, Models, data_of, encode, score
from tests.tiny import compute_logits

TEXTS = ["the cat is in the city", "a red bird"]
QUERY, DOCUMENTS = "who live in berlin?", ["people live in the old city", "a red bird"]
PLUGIN = """
from cenote.plugins import IOProcessor


def entry():
    return "THIS.CountTokens"


class CountTokens(IOProcessor):
    def parse_data(self, data):
        return data["texts"]

    def pre_process(self, prompt, request_id=None, **kwargs):
        return prompt

    def post_process(self, model_output, request_id=None, **kwargs):
        return [len(output.prompt_token_ids) for output in model_output]
"""


def pooled(llm: LLM, task: str | None = None) -> list[Tensor]:
    """Ask /pooling for a task, or for the model's own if none is given."""
    body = {"input": TEXTS} | ({"task": task} if task is not None else {})
    reply = make_client(llm).post("/pooling", json=body)
    assert reply.status_code == 200, reply.text
    return [torch.tensor(item["data"]) for item in reply.json()["data"]]


def assert_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert_close(torch.cat(actual), torch.cat(expected), atol=1e-5, rtol=1e-4)


def max_sim(llm: LLM, query: str, document: str) -> float:
    (query_rows,), (document_rows,) = (encode(llm, text, "token_embed") for text in (query, document))
    return float((query_rows @ document_rows.T).amax(dim=1).sum())


def test_task_classify(models: Models) -> None:
    llm = models.load("bert classifier")

    outputs = llm.classify(TEXTS, use_tqdm=False)

    logits = compute_logits(models.reference("bert classifier"), [output.prompt_token_ids for output in outputs])
    expected = [row.softmax(-1) for row in logits]
    assert_same(data_of(outputs), expected)
    assert_same(encode(llm, TEXTS, "classify"), expected)
    reply = make_client(llm).post("/classify", json={"input": TEXTS}).json()
    assert_same([torch.tensor(item["probs"]) for item in reply["data"]], expected)


def test_task_score(models: Models) -> None:
    embedder, cross_encoder, bge_m3 = (models.load(name) for name in ("bert", "bge-reranker", "bge-m3"))

    cosines = F.cosine_similarity(*(torch.stack(encode(embedder, texts, "embed")) for texts in ([QUERY], DOCUMENTS)))
    assert score(embedder, QUERY, DOCUMENTS) == pytest.approx(cosines.tolist(), abs=1e-5)
    outputs = cross_encoder.score(QUERY, DOCUMENTS, use_tqdm=False)
    logits = compute_logits(models.reference("bge-reranker"), [output.prompt_token_ids for output in outputs])
    expected = [float(row.sigmoid()) for row in logits]
    assert [output.outputs.score for output in outputs] == pytest.approx(expected, abs=1e-5)
    assert score(bge_m3, QUERY, DOCUMENTS, score_type="late-interaction") == pytest.approx(
        [max_sim(bge_m3, QUERY, document) for document in DOCUMENTS], abs=1e-4
    )


def test_task_embed(models: Models) -> None:
    llm = models.load("bert")

    expected = data_of(llm.embed(TEXTS, use_tqdm=False))
    assert_same([row.norm(dim=-1, keepdim=True) for row in expected], [torch.ones(1)] * 2)
    assert_same(encode(llm, TEXTS, "embed"), expected)
    assert_same(pooled(llm, "embed"), expected)
    reply = make_client(llm).post("/v1/embeddings", json={"input": TEXTS}).json()
    assert_same([torch.tensor(item["embedding"]) for item in reply["data"]], expected)


@pytest.mark.parametrize("name", ["bert tagger", "qwen3 tagger"])
def test_task_token_classify(name: str, models: Models) -> None:
    llm = models.load(name)

    outputs = llm.encode(TEXTS, pooling_task="token_classify", use_tqdm=False)

    logits = compute_logits(models.reference(name), [output.prompt_token_ids for output in outputs])
    assert_same(data_of(outputs), [rows.softmax(-1) for rows in logits])
    assert_same(data_of(llm.reward(TEXTS, use_tqdm=False)), data_of(outputs))
    assert_same(pooled(llm, "token_classify"), data_of(outputs))


def test_task_token_embed(models: Models) -> None:
    llm = models.load("bert")

    outputs = llm.encode(TEXTS, pooling_task="token_embed", use_tqdm=False)

    assert [len(rows) for rows in data_of(outputs)] == [len(output.prompt_token_ids) for output in outputs]
    norms = torch.cat(data_of(outputs)).norm(dim=-1)
    assert_close(norms, torch.ones(len(norms)))
    assert_same(pooled(llm, "token_embed"), data_of(outputs))


def test_task_plugin(models: Models, install_plugin: InstallPlugin) -> None:
    install_plugin("count_tokens", PLUGIN)

    with LLM(str(models.folder("bert")), io_processor_plugin="count_tokens", **EXACT) as llm:
        (output,) = llm.encode({"data": {"texts": TEXTS}}, pooling_task="plugin", use_tqdm=False)
        reply = make_client(llm).post("/pooling", json={"data": {"texts": TEXTS}, "task": "plugin"}).json()

    assert output.outputs == reply["data"] == [8, 5]


def test_task_encode_names_its_successors(models: Models) -> None:
    llm = models.load("bert")

    with pytest.raises(BadRequest, match="`encode` task was removed; use `token_embed` or `token_classify` instead"):
        llm.encode(TEXTS, pooling_task="encode", use_tqdm=False)
    reply = make_client(llm).post("/pooling", json={"input": TEXTS, "task": "encode"})
    assert reply.status_code == 400 and "token_embed" in reply.json()["message"]


@pytest.mark.parametrize("name", ["math rm", "internlm2 reward"])
def test_pooling_task_reward(name: str, models: Models) -> None:
    llm = models.load(name)

    assert_same(encode(llm, TEXTS, "reward"), encode(llm, TEXTS, "token_classify"))
    assert_same(encode(llm, TEXTS, "reward"), data_of(llm.reward(TEXTS, use_tqdm=False)))


def test_score_types(models: Models) -> None:
    bge_m3, cross_encoder = models.load("bge-m3"), models.load("bge-reranker")

    by_type = {kind: score(bge_m3, QUERY, DOCUMENTS, score_type=kind) for kind in ("bi-encoder", "late-interaction")}
    assert by_type["bi-encoder"] != pytest.approx(by_type["late-interaction"], abs=1e-3)
    assert score(cross_encoder, QUERY, DOCUMENTS, score_type="cross-encoder") == pytest.approx(
        score(cross_encoder, QUERY, DOCUMENTS), abs=1e-5
    )
    with pytest.raises(Unsupported, match="bi-encoder, late-interaction"):  # the message lists what the model can do
        score(bge_m3, QUERY, DOCUMENTS, score_type="cross-encoder")


def test_score_falls_back_to_embed(llm: LLM) -> None:
    query, *documents = llm.embed([QUERY, *DOCUMENTS], use_tqdm=False)

    cosines = [float(query.outputs.data @ document.outputs.data) for document in documents]
    assert score(llm, QUERY, DOCUMENTS) == pytest.approx(cosines, abs=1e-5)
