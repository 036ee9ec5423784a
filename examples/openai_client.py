"""Embed texts over HTTP with OpenAI's client; needs a server and `pip install openai`.

cenote serve &
python examples/openai_client.py
python examples/openai_client.py --url http://10.0.0.5:8000/v1 --api-key SECRET
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from openai import OpenAI


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", default=["a deep cave", "a hole in the ground", "the price of bread"])
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="base URL of the server")
    parser.add_argument("--api-key", default="none", help="API key of the server, if it has one")
    parser.add_argument("--model", help="a model of the server; its first one if unset")
    args = parser.parse_args(arguments)
    with OpenAI(base_url=args.url, api_key=args.api_key) as client:
        model = args.model or client.models.list().data[0].id
        reply = client.embeddings.create(model=model, input=args.texts)
    print(f"{model}: {reply.usage.total_tokens} tokens")
    first = reply.data[0].embedding
    for text, item in zip(args.texts, reply.data, strict=True):
        similarity = sum(a * b for a, b in zip(first, item.embedding, strict=True))
        print(f"{similarity:6.3f}  {text}")


if __name__ == "__main__":
    main()
