"""Table of dialects: the request and response formats of each vendor."""

from cenote.api.dialects.azure import AZURE
from cenote.api.dialects.cohere import COHERE
from cenote.api.dialects.cohere_v1 import COHERE_V1
from cenote.api.dialects.deepinfra import DEEPINFRA
from cenote.api.dialects.dialect import Dialect
from cenote.api.dialects.entities import ENTITIES
from cenote.api.dialects.gemini import GEMINI
from cenote.api.dialects.infinity import INFINITY
from cenote.api.dialects.invocations import SAGEMAKER
from cenote.api.dialects.jina import JINA
from cenote.api.dialects.llama_cpp import LLAMA_CPP
from cenote.api.dialects.mixedbread import MIXEDBREAD
from cenote.api.dialects.moderations import MODERATIONS
from cenote.api.dialects.nim import NIM
from cenote.api.dialects.ollama import OLLAMA
from cenote.api.dialects.openai import OPENAI
from cenote.api.dialects.rerank import RERANK
from cenote.api.dialects.sparse import SPARSE
from cenote.api.dialects.tei import TEI
from cenote.api.dialects.tokenize import TOKENIZE
from cenote.api.dialects.vllm import VLLM
from cenote.api.dialects.voyage import VOYAGE
from cenote.api.dialects.weaviate import WEAVIATE
from cenote.api.dialects.xinference import XINFERENCE

SINGLE_TASK_DIALECTS: tuple[Dialect, ...] = (OPENAI, VLLM, COHERE, RERANK, SPARSE, ENTITIES, TOKENIZE)
# dialects with routes of one vendor each
VENDOR_DIALECTS: tuple[Dialect, ...] = (
    AZURE,
    COHERE_V1,
    JINA,
    VOYAGE,
    NIM,
    MIXEDBREAD,
    DEEPINFRA,
    OLLAMA,
    GEMINI,
    LLAMA_CPP,
    MODERATIONS,
)
DIALECTS: tuple[Dialect, ...] = (
    *SINGLE_TASK_DIALECTS,
    *VENDOR_DIALECTS,
    SAGEMAKER,
    TEI,
    INFINITY,
    WEAVIATE,
    XINFERENCE,
)
# what errors list: one vendor's way to each task is enough
COMMON_PATHS = frozenset(route.paths[0] for dialect in SINGLE_TASK_DIALECTS for route in dialect.routes)
