"""Clients of single vendors, and rerankers, which has several."""

from __future__ import annotations

from functools import partial
from typing import Any

import voyageai
from checks import (
    ALL,
    CLASSIFIER,
    CLASSIFY,
    DOCUMENTS,
    EMBED,
    KEY,
    LONG_TEXT,
    MODEL,
    QUERY,
    RERANK,
    RERANKER,
    TEXTS,
    check,
    classify,
    decode_floats,
    embed,
    embed_as,
    equal,
    post,
    rank,
    run_checks,
    same,
)
from google import genai
from google.genai.types import EmbedContentConfig, HttpOptions
from huggingface_hub import InferenceClient
from infinity_client import Client as InfinityClient
from infinity_client.api.default import classify as infinity_classify
from infinity_client.api.default import embeddings as infinity_embeddings
from infinity_client.api.default import health as infinity_health
from infinity_client.api.default import models as infinity_models
from infinity_client.api.default import rerank as infinity_rerank
from infinity_client.models import ClassifyInput, OpenAIEmbeddingInputText, RerankInput
from mixedbread import Mixedbread
from ollama import Client as OllamaClient
from rerankers.models.api_rankers import APIRanker
from xinference_client import RESTfulClient

voyage = voyageai.Client(api_key=KEY, base_url=f"{ALL}/v1")


@check("voyageai: embed, output_dimension", "voyageai")
def voyage_embed() -> None:
    same(voyage.embed(TEXTS, model=MODEL, input_type="document").embeddings, embed())
    same(voyage.embed(TEXTS, model=MODEL, output_dimension=64).embeddings, embed(dimensions=64))


@check("voyageai: embed in int8, uint8, binary, ubinary", "voyageai")
def voyage_dtypes() -> None:
    for dtype in ("int8", "uint8", "binary", "ubinary"):
        equal([list(row) for row in voyage.embed(TEXTS, model=MODEL, output_dtype=dtype).embeddings], embed_as(dtype))


@check("voyageai: rerank, long documents", "voyageai")
def voyage_rerank() -> None:
    documents = [*DOCUMENTS, LONG_TEXT]
    results = voyage.rerank(QUERY, documents, model=RERANKER, top_k=4).results
    ranked = [(result.index, result.relevance_score) for result in results]
    same(ranked, rank(documents, truncate_prompt_tokens=-1)[:4])
    equal([result.document for result in results], [documents[result.index] for result in results])


@check("voyageai: multimodal_embed of texts", "voyageai")
def voyage_multimodal() -> None:
    inputs: Any = [[text] for text in TEXTS]
    same(voyage.multimodal_embed(inputs, model=MODEL).embeddings, embed())


@check("google-genai: embed_content, count_tokens", "google-genai")
async def gemini() -> None:
    client = genai.Client(api_key=KEY, http_options=HttpOptions(base_url=ALL))
    contents: Any = TEXTS
    config = EmbedContentConfig(task_type="RETRIEVAL_DOCUMENT")
    reply = client.models.embed_content(model=MODEL, contents=contents, config=config)
    same([item.values for item in reply.embeddings or []], embed())
    reply = client.models.embed_content(
        model=MODEL, contents=TEXTS[0], config=EmbedContentConfig(output_dimensionality=64)
    )
    same([item.values for item in reply.embeddings or []], embed(TEXTS[:1], dimensions=64))
    reply = await client.aio.models.embed_content(model=MODEL, contents=contents)
    same([item.values for item in reply.embeddings or []], embed())
    ids = post(ALL, "/tokenize", {"model": MODEL, "prompt": TEXTS[0]})["count"]
    equal(client.models.count_tokens(model=MODEL, contents=TEXTS[0]).total_tokens, ids)


@check("ollama: embed, embeddings, list, show, ps, pull", "ollama")
def ollama() -> None:
    client = OllamaClient(host=ALL, headers={"Authorization": f"Bearer {KEY}"})
    same(client.embed(model=MODEL, input=TEXTS).embeddings, embed())
    same(client.embed(model=MODEL, input=TEXTS, dimensions=64).embeddings, embed(dimensions=64))
    # the older route does not normalise
    same(client.embeddings(model=MODEL, prompt=TEXTS[0]).embedding, embed(TEXTS[:1], normalize=False))
    names = [model.model for model in client.list().models]
    equal(any(name and name.removesuffix(":latest") == MODEL for name in names), True)
    equal(len(client.ps().models) > 0, True)
    client.show(MODEL)
    equal(client.pull(MODEL).status, "success")


@check("huggingface_hub InferenceClient: feature_extraction, sentence_similarity", "huggingface_hub")
def hugging_face() -> None:
    client = InferenceClient(base_url=EMBED)
    for text, vector in zip(TEXTS, embed(), strict=True):
        same(client.feature_extraction(text), vector)
    same(client.feature_extraction(TEXTS[0], normalize=False, truncate=True), embed(TEXTS[:1], normalize=False))
    one, *others = embed()
    products = [sum(a * b for a, b in zip(one, other, strict=True)) for other in others]
    same(client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:]), products)


@check("huggingface_hub InferenceClient: text_classification", "huggingface_hub")
def hugging_face_classes() -> None:
    client = InferenceClient(base_url=CLASSIFY)
    for text, expected in zip(TEXTS, classify(), strict=True):
        found = {item.label: item.score for item in client.text_classification(text)}
        equal(found.keys(), expected.keys())
        same([found[label] for label in expected], list(expected.values()))


@check("infinity-client: embeddings, rerank, classify, models, health", "infinity-client")
def infinity() -> None:
    client = InfinityClient(base_url=ALL, headers={"Authorization": f"Bearer {KEY}"})
    reply: Any = infinity_embeddings.sync(client=client, body=OpenAIEmbeddingInputText(input_=TEXTS, model=MODEL))
    same([item.embedding for item in reply.data], embed())
    reply = infinity_rerank.sync(client=client, body=RerankInput(query=QUERY, documents=DOCUMENTS, model=RERANKER))
    same([(item.index, item.relevance_score) for item in reply.results], rank())
    reply = infinity_classify.sync(client=client, body=ClassifyInput(input_=TEXTS, model=CLASSIFIER, raw_scores=False))
    found = [{item.label: item.score for item in row} for row in reply.data]
    same([[row["good"], row["bad"]] for row in found], [[row["good"], row["bad"]] for row in classify()])
    models: Any = infinity_models.sync(client=client)
    equal({model.id for model in models.data} >= {MODEL, RERANKER}, True)
    health: Any = infinity_health.sync(client=client)
    equal(health["unix"] > 0, True)


@check("xinference-client: get_model, create_embedding, rerank", "xinference-client")
def xinference() -> None:
    client = RESTfulClient(ALL, api_key=KEY)
    reply = client.get_model(MODEL).create_embedding(TEXTS)
    same([item["embedding"] for item in reply["data"]], embed())
    reply = client.get_model(RERANKER).rerank(DOCUMENTS, QUERY)
    same([(item["index"], item["relevance_score"]) for item in reply["results"]], rank())


@check("mixedbread: embed in six formats, rerank", "mixedbread")
def mixedbread() -> None:
    client = Mixedbread(api_key=KEY, base_url=ALL)
    same([item.embedding for item in client.embed(model=MODEL, input=TEXTS).data], embed())
    encoded: Any = client.embed(model=MODEL, input=TEXTS, encoding_format="base64").data
    same([decode_floats(item.embedding) for item in encoded], embed())
    for dtype in ("int8", "uint8", "binary", "ubinary"):
        data = client.embed(model=MODEL, input=TEXTS, encoding_format=dtype, normalized=True).data
        equal([item.embedding for item in data], embed_as(dtype))
    documents: Any = DOCUMENTS
    reply = client.rerank(model=RERANKER, query=QUERY, input=documents, return_input=True)
    same([(item.index, item.score) for item in reply.data], rank())
    equal([item.input for item in reply.data], [DOCUMENTS[item.index] for item in reply.data])


RERANKERS = {
    "cohere": f"{ALL}/v1/rerank",
    "jina": f"{ALL}/v1/rerank",
    "voyage": f"{ALL}/v1/rerank",
    "mixedbread.ai": f"{ALL}/v1/reranking",
    "text-embeddings-inference": f"{RERANK}/rerank",
}


def rank_with(provider: str, url: str) -> None:
    ranker = APIRanker(RERANKER, KEY, provider, verbose=0, url=url)
    results = ranker.rank(query=QUERY, docs=DOCUMENTS).results
    same([(result.doc_id, result.score) for result in results], rank())


for name, path in RERANKERS.items():
    check(f"rerankers: {name}", "rerankers")(partial(rank_with, name, path))


if __name__ == "__main__":
    run_checks()
