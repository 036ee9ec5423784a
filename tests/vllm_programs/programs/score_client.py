"""The score route with every combination of one and several texts."""

import argparse

import requests


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def main(args):
    base_url = f"http://{args.host}:{args.port}"
    model = requests.get(base_url + "/v1/models").json()["data"][0]["id"]
    queries, documents = ["where is the dog?", "a bird"], ["the dog is in the city", "a red bird"]
    prompts = [
        {"model": model, "text_1": queries[0], "text_2": documents[0]},
        {"model": model, "queries": queries[0], "documents": documents},
        {"model": model, "data_1": queries, "data_2": documents},
    ]
    replies = [requests.post(base_url + "/score", json=prompt).json() for prompt in prompts]
    return [[item["score"] for item in reply["data"]] for reply in replies]
