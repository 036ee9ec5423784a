"""Qwen3-Reranker over HTTP."""

import argparse

import requests

HEADERS = {"accept": "application/json", "Content-Type": "application/json"}
QUERY = "how big is berlin?"
DOCUMENTS = ["the city of berlin is big", "a red fish", "no", "people live in the old city, and in the new one"]


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", type=str, default="Qwen/Qwen3-Reranker-0.6B")
    return parser.parse_args()


def main(args):
    data = {"model": args.model, "queries": [QUERY] * len(DOCUMENTS), "documents": DOCUMENTS}
    response = requests.post(f"http://{args.host}:{args.port}/score", headers=HEADERS, json=data)
    assert response.status_code == 200, response.text
    return [item["score"] for item in response.json()["data"]]
