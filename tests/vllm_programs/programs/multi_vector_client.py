"""Token embeddings over HTTP, and MaxSim scores of the program."""

import argparse

import requests
import torch

QUERY = "where is the dog?"
DOCUMENTS = ["the dog is in the city", "a red bird"]


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def main(args):
    base_url = f"http://{args.host}:{args.port}"
    model = requests.get(base_url + "/v1/models").json()["data"][0]["id"]
    prompt = {"model": model, "input": [QUERY, *DOCUMENTS], "task": "token_embed"}
    response = requests.post(base_url + "/pooling", headers={"User-Agent": "Test Client"}, json=prompt)
    query, *documents = [torch.tensor(item["data"]) for item in response.json()["data"]]
    return [(query @ document.T).amax(dim=-1).sum().item() for document in documents]
