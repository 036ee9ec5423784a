"""A tiny jina-reranker-v3, and its scores in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from cenote import LLM

QUERY = "how big is berlin?"

DOCUMENTS = ["the city of berlin is big", "a red fish", "no", "people live in the old city, and in the new one"]

SPECIAL_TOKENS = ["<|embed_token|>", "<|rerank_token|>"]


def prompt(query: str, documents: list[str], instruction: str | None = None) -> str:
    lines = [
        "<|im_start|>system",
        "You are a search relevance expert who can determine a ranking of the passages based on how relevant they are "
        "to the query. If the query is a question, how relevant a passage is depends on how well it answers the "
        "question. If not, try to analyze the intent of the query and assess how well each passage satisfies the "
        "intent. If an instruction is provided, you should follow the instruction when determining the "
        "ranking.<|im_end|>",
        "<|im_start|>user",
        f"I will provide you with {len(documents)} passages, each indicated by a numerical identifier. Rank the "
        f"passages based on their relevance to query: {query}",
    ]
    lines += ["<instruct>", instruction, "</instruct>"] if instruction else []
    for number, document in enumerate(documents):
        lines += [f'<passage id="{number}">', f"{document}<|embed_token|>", "</passage>"]
    lines += ["<query>", f"{query}<|rerank_token|>", "</query><|im_end|>", "<|im_start|>assistant"]
    return "\n".join([*lines, "<think>", "", "</think>", "", ""])


@dataclass
class JinaReranker:
    """A tiny jina-reranker-v3 in Cenote and in Transformers."""

    folder: Path
    reference: PreTrainedModel
    projector: nn.Sequential
    llm: LLM

    def rows(self, query: str, documents: list[str], instruction: str | None = None) -> Tensor:
        """Return the projected states at the special tokens: of every document, then of the query."""
        tokenizer = PreTrainedTokenizerFast.from_pretrained(self.folder)
        ids = torch.tensor([tokenizer(prompt(query, documents, instruction)).input_ids])
        is_special = torch.isin(ids[0], torch.tensor(tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS)))
        assert int(is_special.sum()) == len(documents) + 1
        with torch.inference_mode():
            rows: Tensor = self.projector(self.reference.model(input_ids=ids).last_hidden_state[0, is_special])
        return rows

    def scores(self, query: str, documents: list[str], instruction: str | None = None) -> list[float]:
        rows = self.rows(query, documents, instruction)
        cosines: list[float] = F.cosine_similarity(rows[:-1], rows[-1:]).tolist()
        return cosines

    def length(self, query: str, documents: list[str]) -> int:
        return len(self.llm.get_tokenizer().encode(prompt(query, documents)).ids)
