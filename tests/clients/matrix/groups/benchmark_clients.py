"""mteb's wrappers of OpenAI-compatible servers, where mteb can be installed, and txtai through litellm."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it downloads a price list

from checks import (
    ALL,
    DOCUMENTS,
    EMBED,
    KEY,
    MODEL,
    QUERY,
    RERANK,
    RERANKER,
    TEXTS,
    check,
    embed,
    rank,
    run_checks,
    same,
)

NO_KEY = "no API key: it asks /v1/models without the key"


@check("txtai through litellm", "txtai")
def txtai_vectors() -> None:
    from txtai.embeddings import Embeddings

    vectors = {"api_base": f"{ALL}/v1", "api_key": KEY}
    embeddings: Any = Embeddings(path=f"openai/{MODEL}", method="litellm", vectors=vectors)
    same([list(embeddings.transform(text)) for text in TEXTS], embed())


def mteb_encode() -> None:
    import mteb
    from mteb.models import OpenAIAPIEncodeWrapper

    wrapper: Any = OpenAIAPIEncodeWrapper(endpoint_url=EMBED, model_name=MODEL)
    metadata = mteb.get_task("STSBenchmark").metadata
    batches = [{"text": TEXTS}]
    same(wrapper.encode(batches, task_metadata=metadata, hf_split="test", hf_subset="default"), embed())


def mteb_rerank() -> None:
    import mteb
    from mteb.models import OpenAIAPIRerankWrapper

    wrapper: Any = OpenAIAPIRerankWrapper(endpoint_url=RERANK, model_name=RERANKER)
    metadata = mteb.get_task("AskUbuntuDupQuestions").metadata
    queries, documents = [{"text": [QUERY] * len(DOCUMENTS)}], [{"text": DOCUMENTS}]
    scores = wrapper.predict(queries, documents, task_metadata=metadata, hf_split="test", hf_subset="default")
    same(scores, [score for _, score in sorted(rank())])


if find_spec("mteb") is not None:
    check("mteb: OpenAIAPIEncodeWrapper", "mteb", setting=NO_KEY)(mteb_encode)
    check("mteb: OpenAIAPIRerankWrapper", "mteb", setting=NO_KEY)(mteb_rerank)


if __name__ == "__main__":
    run_checks()
