"""Table of dialects: the request and response formats of each vendor."""

from cenote.api.dialects.cohere import COHERE
from cenote.api.dialects.dialect import Dialect
from cenote.api.dialects.entities import ENTITIES
from cenote.api.dialects.infinity import INFINITY
from cenote.api.dialects.invocations import make_invocations_dialect
from cenote.api.dialects.openai import OPENAI
from cenote.api.dialects.rerank import RERANK
from cenote.api.dialects.sparse import SPARSE
from cenote.api.dialects.tei import TEI
from cenote.api.dialects.tokenize import TOKENIZE
from cenote.api.dialects.vllm import VLLM
from cenote.api.dialects.weaviate import WEAVIATE

SINGLE_TASK_DIALECTS: tuple[Dialect, ...] = (OPENAI, VLLM, COHERE, RERANK, SPARSE, ENTITIES, TOKENIZE)
DIALECTS: tuple[Dialect, ...] = (
    *SINGLE_TASK_DIALECTS,
    make_invocations_dialect(SINGLE_TASK_DIALECTS),
    TEI,
    INFINITY,
    WEAVIATE,
)
