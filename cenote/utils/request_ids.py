"""Number the requests of one `LLM`, and check the request ids of clients."""

from __future__ import annotations

import re
import threading
from itertools import cycle

# request ids sent by clients are written to logs and response headers
SAFE_REQUEST_ID = re.compile(r"[\w.:/@+=-]{1,128}", re.ASCII)


class RequestIdCounter:
    """Consecutive request ids, safe to use from several threads."""

    def __init__(self) -> None:
        self._next_id = 0
        self._lock = threading.Lock()

    def reserve(self, num_ids: int) -> int:
        """Reserve consecutive ids and return the first."""
        with self._lock:
            first = self._next_id
            self._next_id += num_ids
        return first

    def next_id(self) -> str:
        return str(self.reserve(1))

    def score_ids(self, num_queries: int, num_documents: int, *, is_joint: bool, is_single_prompt: bool) -> list[str]:
        """Return the request id of every score.

        Where query and document are encoded separately, both are requests: the id is "query_document". `is_joint`:
        each pair is one request. `is_single_prompt`: one request scores all documents, and all scores have its id.
        """
        if is_single_prompt:
            return [self.next_id()] * num_documents
        queries = [""] if is_joint else [f"{self.next_id()}_" for _ in range(num_queries)]
        return [query + self.next_id() for query, _ in zip(cycle(queries), range(num_documents), strict=False)]
