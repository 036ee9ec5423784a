"""Embeddings of chat messages with an image through OpenAI's client, and scores of images."""

import argparse

import requests
from openai import NOT_GIVEN, OpenAI
from openai.types.create_embedding_response import CreateEmbeddingResponse
from vllm.multimodal.utils import encode_image_url, fetch_image

IMAGE_URL = "https://example.org/image.png"
TEXT = "the dog is in the city"


def create_chat_embeddings(client: OpenAI, *, messages, model: str, encoding_format=NOT_GIVEN):
    body = {"messages": messages, "model": model, "encoding_format": encoding_format}
    return client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def main(args):
    base_url = f"http://{args.host}:{args.port}"
    image = {"type": "image_url", "image_url": {"url": encode_image_url(fetch_image(IMAGE_URL))}}
    text = {"type": "text", "text": TEXT}
    with OpenAI(api_key="EMPTY", base_url=f"{base_url}/v1") as client:
        model = client.models.list().data[0].id
        replies = [
            create_chat_embeddings(
                client, messages=[{"role": "user", "content": content}], model=model, encoding_format="float"
            )
            for content in ([text], [image], [image, text])
        ]
    prompt = {"model": model, "query": TEXT, "documents": [TEXT, {"content": [image]}, {"content": [text, image]}]}
    ranked = requests.post(f"{base_url}/rerank", json=prompt).json()["results"]
    return [reply.data[0].embedding for reply in replies], {item["index"]: item["relevance_score"] for item in ranked}
