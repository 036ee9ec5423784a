"""Rerank through Cohere's clients, and as Jina's API."""

import argparse

import cohere
import requests

QUERY = "where is the dog?"
DOCUMENTS = ["a red bird", "the dog is in the city", "two big fish in the river"]


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def main(args):
    base_url = f"http://{args.host}:{args.port}"
    model = requests.get(base_url + "/v1/models").json()["data"][0]["id"]
    replies = []
    for client_class in (cohere.Client, cohere.ClientV2):
        with client_class(api_key="sk-fake-key", base_url=base_url) as client:
            replies.append(client.rerank(model=model, query=QUERY, documents=DOCUMENTS))
    ranked = [[(item.index, item.relevance_score) for item in reply.results] for reply in replies]
    headers = {"accept": "application/json", "Content-Type": "application/json"}
    body = {"model": model, "query": QUERY, "documents": DOCUMENTS}
    jina = requests.post(base_url + "/v1/rerank", headers=headers, json=body).json()
    return [*ranked, [(item["index"], item["relevance_score"]) for item in jina["results"]]]
