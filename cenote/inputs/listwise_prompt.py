"""The one prompt of a listwise reranker: every document with a mark at its end, then the query with its own."""

from __future__ import annotations

from collections.abc import Sequence

from cenote.errors import BadRequest, Unsupported
from cenote.protocol.input_types import Chat, Input, Ranking

DOCUMENT_MARK, QUERY_MARK = "<|embed_token|>", "<|rerank_token|>"
SYSTEM = (
    "You are a search relevance expert who can determine a ranking of the passages based on how relevant they are to "
    "the query. If the query is a question, how relevant a passage is depends on how well it answers the question. If "
    "not, try to analyze the intent of the query and assess how well each passage satisfies the intent. If an "
    "instruction is provided, you should follow the instruction when determining the ranking."
)


def ranking_text(query: str, documents: Sequence[str], instruction: str | None) -> str:
    """As the model was trained to read it, letter by letter."""
    query = without_marks(query)
    passages = "\n".join(
        f'<passage id="{number}">\n{without_marks(document)}{DOCUMENT_MARK}\n</passage>'
        for number, document in enumerate(documents)
    )
    instruct = f"<instruct>\n{without_marks(instruction)}\n</instruct>\n" if instruction else ""
    return (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
        f"I will provide you with {len(documents)} passages, each indicated by a numerical identifier. "
        f"Rank the passages based on their relevance to query: {query}\n{instruct}{passages}\n"
        f"<query>\n{query}{QUERY_MARK}\n</query><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def without_marks(text: str) -> str:
    """A mark that a text brings along would be taken for its end; taking one out must not put another together."""
    while DOCUMENT_MARK in text or QUERY_MARK in text:
        text = text.replace(DOCUMENT_MARK, "").replace(QUERY_MARK, "")
    return text


def as_ranking(inputs: Sequence[Input], architecture: str) -> Ranking:
    """What a plain list of texts means to such a model: documents, and the query last."""
    if any(isinstance(item, Chat) for item in inputs):
        raise Unsupported(f"The {architecture} does not support chat Request.", param="messages")
    texts = [item for item in inputs if isinstance(item, str)]
    if len(texts) < len(inputs):
        raise Unsupported(f"The {architecture} model only supports text as input.", param="input")
    if len(texts) < 2:
        raise BadRequest(f"The {architecture} model requires at least 2 inputs.", param="input")
    return Ranking(texts[-1], texts[:-1])
