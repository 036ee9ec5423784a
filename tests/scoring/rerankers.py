"""Rerankers that are language models: their prompts, tiny checkpoints, and reference scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from cenote import LLM
from tests.api.app_client import make_client
from tests.tiny import save_tiny

QUERY = "how big is berlin?"

DOCUMENTS = ["the city of berlin is big", "a red fish", "no", "people live in the old city, and in the new one"]


def qwen3(query: str, document: str, instruction: str | None = None) -> str:
    instruction = instruction or "Given a web search query, retrieve relevant passages that answer the query"
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def mxbai(query: str, document: str, instruction: str | None = None) -> str:
    instruction_line = f"instruction: {instruction}\n" if instruction else ""
    return (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{instruction_line}query: {query}\ndocument: {document}\n"
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n"
    )


def gemma(query: str, document: str, instruction: str | None = None) -> str:
    return (
        f"A: {query}\nB: {document}\nGiven a query A and a passage B, determine whether the passage contains an answer "
        "to the query by providing a prediction of either 'Yes' or 'No'."
    )


def count_limited_tokens(llm: LLM) -> list[int]:
    """Return the tokens of a query and a document of twenty sentences each, with limits on neither, one, and both."""
    client = make_client(llm)
    body = {"query": "What is the capital of France?" * 20, "documents": ["The capital of France is Paris. " * 20]}
    limits = ({}, {"max_tokens_per_query": 10}, {"max_tokens_per_doc": 10})
    return [
        client.post("/rerank", json={**body, **each}).json()["usage"]["prompt_tokens"]
        for each in (*limits, limits[1] | limits[2])
    ]


@dataclass(frozen=True)
class RerankerKind:
    model: str
    prompt: Any
    tokens: list[str]
    overrides: dict[str, Any]


RERANKER_KINDS = {
    "Qwen3-Reranker-0.6B": RerankerKind(
        "Qwen3ForCausalLM",
        qwen3,
        ["no", "yes"],
        {
            "architectures": ["Qwen3ForSequenceClassification"],
            "classifier_from_token": ["no", "yes"],
            "is_original_qwen3_reranker": True,
        },
    ),
    "mxbai-rerank-base-v2": RerankerKind(
        "Qwen2ForCausalLM",
        mxbai,
        ["0", "1"],
        {
            "architectures": ["Qwen2ForSequenceClassification"],
            "classifier_from_token": ["0", "1"],
            "method": "from_2_way_softmax",
        },
    ),
    "bge-reranker-v2-gemma": RerankerKind(
        "GemmaForCausalLM",
        gemma,
        ["Yes"],
        {
            "architectures": ["GemmaForSequenceClassification"],
            "classifier_from_token": ["Yes"],
            "method": "no_post_processing",
        },
    ),
}


def save_reranker(folder: Path, model: str, **changes: Any) -> PreTrainedModel:
    """Save a language model for long prompts, with a token `Yes`."""
    folder.mkdir(exist_ok=True)
    reference = save_tiny(folder, model, max_position_embeddings=1024, **changes)
    file = folder / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.add_tokens(["Yes"])
    tokenizer.save(str(file))
    return reference


def reference_scores(
    reference: PreTrainedModel, folder: Path, kind: RerankerKind, instruction: str | None = None
) -> list[float]:
    """Return scores from Transformers' logits of the answer tokens after the prompt, one pair at a time."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    scores = []
    for document in DOCUMENTS:
        inputs = tokenizer(kind.prompt(QUERY, document, instruction), return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            logits = reference(**inputs).logits[0, -1, tokenizer.convert_tokens_to_ids(kind.tokens)]
        scores.append((logits.softmax(-1)[1] if len(logits) == 2 else logits[0].sigmoid()).item())
    return scores
