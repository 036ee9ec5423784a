"""The classification route."""

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
    prompt = {"model": model, "input": ["the cat is good", "a bad dog"]}
    return requests.post(base_url + "/classify", headers={"User-Agent": "Test Client"}, json=prompt).json()
