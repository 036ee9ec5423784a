"""The table of dialects, each a vendor's way of asking."""

from cenote.api.dialects.cohere import COHERE
from cenote.api.dialects.dialect import Dialect
from cenote.api.dialects.entities import ENTITIES
from cenote.api.dialects.invocations import invocations
from cenote.api.dialects.openai import OPENAI
from cenote.api.dialects.rerank import RERANK
from cenote.api.dialects.sparse import SPARSE
from cenote.api.dialects.tokenize import TOKENS
from cenote.api.dialects.vllm import VLLM

SPOKEN: tuple[Dialect, ...] = (OPENAI, VLLM, COHERE, RERANK, SPARSE, ENTITIES, TOKENS)
DIALECTS: tuple[Dialect, ...] = (*SPOKEN, invocations(SPOKEN))
