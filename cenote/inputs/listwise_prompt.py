"""Prompt of listwise rerankers (Jina Reranker v3): documents and query, each followed by a marker token."""

from __future__ import annotations

from collections.abc import Sequence

from cenote.errors import BadRequest, Unsupported
from cenote.protocol.input_types import Conversation, Input, ListwiseInput
from cenote.protocol.requests import PoolRequest

DOCUMENT_TOKEN, QUERY_TOKEN = "<|embed_token|>", "<|rerank_token|>"
MARKERS, MARKER_END = (DOCUMENT_TOKEN.encode(), QUERY_TOKEN.encode()), b">"
SYSTEM_PROMPT = (
    "You are a search relevance expert who can determine a ranking of the passages based on how relevant they are to "
    "the query. If the query is a question, how relevant a passage is depends on how well it answers the question. If "
    "not, try to analyze the intent of the query and assess how well each passage satisfies the intent. If an "
    "instruction is provided, you should follow the instruction when determining the ranking."
)


def render_listwise_prompt(query: str, documents: Sequence[str], instruction: str | None) -> str:
    """Return the prompt in the exact format of the model's training."""
    query = strip_special_tokens(query)
    passages = "\n".join(
        f'<passage id="{number}">\n{strip_special_tokens(document)}{DOCUMENT_TOKEN}\n</passage>'
        for number, document in enumerate(documents)
    )
    instruct = f"<instruct>\n{strip_special_tokens(instruction)}\n</instruct>\n" if instruction else ""
    return (
        f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n<|im_start|>user\n"
        f"I will provide you with {len(documents)} passages, each indicated by a numerical identifier. "
        f"Rank the passages based on their relevance to query: {query}\n{instruct}{passages}\n"
        f"<query>\n{query}{QUERY_TOKEN}\n</query><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def strip_special_tokens(text: str) -> str:
    """Remove marker tokens from a text, also those that a removal joins from their parts; linear in its length."""
    if DOCUMENT_TOKEN not in text and QUERY_TOKEN not in text:
        return text
    # a marker can only be completed by its last character, and no end of one is the start of another: removing each as
    # soon as it is complete leaves the same text as any other order
    kept = bytearray()
    *parts, rest = text.encode("utf-8", "surrogatepass").split(MARKER_END)
    for part in parts:
        kept += part
        kept += MARKER_END
        for marker in MARKERS:
            if kept.endswith(marker):
                del kept[-len(marker) :]
    return (kept + rest).decode("utf-8", "surrogatepass")


def join_listwise(request: PoolRequest, architecture: str) -> PoolRequest:
    """Return a request whose texts are one input, unless its inputs are lists already."""
    if all(isinstance(item, ListwiseInput) for item in request.inputs):
        return request
    return request.replace(inputs=[parse_listwise_input(request.inputs, architecture)])


def parse_listwise_input(inputs: Sequence[Input], architecture: str) -> ListwiseInput:
    """Interpret a list of texts as documents followed by the query, as vLLM does for these models."""
    if any(isinstance(item, Conversation) for item in inputs):
        raise Unsupported(f"The {architecture} does not support chat Request.", param="messages")
    texts = [item for item in inputs if isinstance(item, str)]
    if len(texts) < len(inputs):
        raise Unsupported(f"The {architecture} model only supports text as input.", param="input")
    if len(texts) < 2:
        raise BadRequest(f"The {architecture} model requires at least 2 inputs.", param="input")
    return ListwiseInput(texts[-1], texts[:-1])
