"""The pooling route with a text, and with messages."""

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
    messages = [{"role": "user", "content": [{"type": "text", "text": "the cat is good"}]}]
    prompts = [{"model": model, "input": "the cat is good"}, {"model": model, "messages": messages}]
    return [requests.post(base_url + "/pooling", json=prompt).json() for prompt in prompts]
