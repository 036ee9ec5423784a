"""Search in a LlamaIndex index with embeddings of a server; needs `pip install llama-index-embeddings-openai-like`.

cenote serve &
python examples/llama_index_search.py --question "What do train drivers look at?"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import httpx
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from passages import PASSAGES


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="base URL of the server")
    parser.add_argument("--api-key", default="none", help="API key of the server, if it has one")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="a model of the server")
    parser.add_argument("--question", default="What do train drivers look at?")
    args = parser.parse_args(arguments)
    with httpx.Client() as client:
        embedding = OpenAILikeEmbedding(
            model_name=args.model, api_base=args.url, api_key=args.api_key, http_client=client
        )
        nodes = [
            TextNode(text=text, metadata={"subject": subject}, excluded_embed_metadata_keys=["subject"])
            for subject, texts in PASSAGES.items()
            for text in texts
        ]
        retriever = VectorStoreIndex(nodes, embed_model=embedding).as_retriever(similarity_top_k=3)
        print(args.question)
        for found in retriever.retrieve(args.question):
            print(f"{found.score:6.3f}  {found.node.metadata['subject']:<7} {found.node.get_content()}")


if __name__ == "__main__":
    main()
