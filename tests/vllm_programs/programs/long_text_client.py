"""A text longer than the model, through OpenAI's client: the server embeds it in chunks."""

import argparse

from openai import OpenAI

TEXT = "the cat and the dog live in the old city " * 20


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def main(args):
    with OpenAI(api_key="EMPTY", base_url=f"http://{args.host}:{args.port}/v1") as client:
        model = client.models.list().data[0].id
        reply = client.embeddings.create(input=TEXT, model=model, encoding_format="float")
    return reply.data[0].embedding, reply.usage.prompt_tokens
