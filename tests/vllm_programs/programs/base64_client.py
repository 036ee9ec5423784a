"""Embeddings as base64, in every dtype and byte order."""

import argparse
import base64

import requests
import torch
from vllm.utils.serial_utils import EMBED_DTYPES, ENDIANNESS, binary2tensor

TEXTS = ["the cat is in the city", "a red bird"]


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def main(args):
    base_url = f"http://{args.host}:{args.port}"
    model = requests.get(base_url + "/v1/models").json()["data"][0]["id"]
    results = {}
    for embed_dtype in EMBED_DTYPES:
        for endianness in ENDIANNESS:
            prompt = {
                "model": model,
                "input": TEXTS,
                "encoding_format": "base64",
                "embed_dtype": embed_dtype,
                "endianness": endianness,
            }
            response = requests.post(base_url + "/v1/embeddings", json=prompt)
            rows = []
            for data in response.json()["data"]:
                binary = base64.b64decode(data["embedding"])
                rows.append(binary2tensor(binary, (-1,), embed_dtype, endianness).to(torch.float32))
            results[embed_dtype, endianness] = torch.stack(rows)
    return results
