"""Embeddings as bytes, in every dtype and byte order, with and without metadata."""

import argparse
import json

import requests
import torch
from vllm.utils.serial_utils import (
    EMBED_DTYPE_TO_TORCH_DTYPE,
    ENDIANNESS,
    MetadataItem,
    build_metadata_items,
    decode_pooling_output,
)

TEXTS = ["the cat is in the city", "a red bird"]


def post_http_request(prompt: dict, api_url: str) -> requests.Response:
    return requests.post(api_url, headers={"User-Agent": "Test Client"}, json=prompt)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def main(args):
    base_url = f"http://{args.host}:{args.port}"
    model = requests.get(base_url + "/v1/models").json()["data"][0]["id"]
    results = {}
    for embed_dtype in EMBED_DTYPE_TO_TORCH_DTYPE:
        for endianness in ENDIANNESS:
            prompt = {
                "model": model,
                "input": TEXTS,
                "encoding_format": "bytes",
                "embed_dtype": embed_dtype,
                "endianness": endianness,
            }
            response = post_http_request(prompt, base_url + "/v1/embeddings")
            metadata = json.loads(response.headers["metadata"])
            items = [MetadataItem(**entry) for entry in metadata["data"]]
            embedding = decode_pooling_output(items=items, body=response.content)
            size = embedding[0].shape[-1]

            response = post_http_request(prompt | {"encoding_format": "bytes_only"}, base_url + "/v1/embeddings")
            items = build_metadata_items(
                embed_dtype=embed_dtype, endianness=endianness, shape=(size,), n_request=len(TEXTS)
            )
            without_metadata = decode_pooling_output(items=items, body=response.content)
            results[embed_dtype, endianness] = (
                torch.stack([row.to(torch.float32) for row in embedding]),
                torch.stack([row.to(torch.float32) for row in without_metadata]),
            )
    return results
