"""Search in a LangChain vector store with embeddings of a server; needs `pip install langchain-openai`.

cenote serve &
python examples/langchain_search.py --question "How do bats see in the dark?"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import httpx
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from passages import PASSAGES
from pydantic import SecretStr


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="base URL of the server")
    parser.add_argument("--api-key", default="none", help="API key of the server, if it has one")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="a model of the server")
    parser.add_argument("--question", default="How do bats see in the dark?")
    args = parser.parse_args(arguments)
    with httpx.Client() as client:
        embeddings = OpenAIEmbeddings(
            model=args.model,
            base_url=args.url,
            api_key=SecretStr(args.api_key),
            http_client=client,
            check_embedding_ctx_length=False,  # otherwise token ids of OpenAI's models are sent
        )
        store = InMemoryVectorStore(embeddings)
        for subject, texts in PASSAGES.items():
            store.add_texts(texts, [{"subject": subject}] * len(texts))
        print(args.question)
        for document, score in store.similarity_search_with_score(args.question, k=3):
            print(f"{score:6.3f}  {document.metadata['subject']:<7} {document.page_content}")


if __name__ == "__main__":
    main()
