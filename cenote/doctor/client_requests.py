"""Table of the requests of known clients; others are compared with the first one of a kind that is answered."""

from __future__ import annotations

from cenote.doctor.client_request import ClientRequest
from cenote.doctor.embedding_requests import COHERE_VECTORS, OLLAMA_VECTORS, OPENAI_VECTORS, TEI_VECTORS
from cenote.doctor.ranking_requests import CLASSIFY, HEALTH, RERANK
from cenote.doctor.vendor_requests import VENDOR_VECTORS

CLIENT_REQUESTS: tuple[ClientRequest, ...] = (
    *OPENAI_VECTORS,
    *TEI_VECTORS,
    *OLLAMA_VECTORS,
    *COHERE_VECTORS,
    *VENDOR_VECTORS,
    *RERANK,
    *CLASSIFY,
    *HEALTH,
)
