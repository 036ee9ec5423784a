"""Embeddings through OpenAI's client, also of fewer dimensions."""

import argparse

from openai import OpenAI

TEXTS = ["the cat is in the city", "a red bird"]


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def main(args):
    with OpenAI(api_key="EMPTY", base_url=f"http://{args.host}:{args.port}/v1") as client:
        model = client.models.list().data[0].id
        full = client.embeddings.create(input=TEXTS, model=model)
        cut = client.embeddings.create(input=TEXTS, model=model, dimensions=16)
    return [item.embedding for item in full.data], [item.embedding for item in cut.data]
