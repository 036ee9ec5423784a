"""Named entities over HTTP, with the tokenizer and config of Transformers."""

import argparse

import requests
import torch

TEXT = "the people of berlin live in the city"


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", type=str, default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", type=str, default="boltuix/NeuroBERT-NER")
    return parser.parse_args()


def main(args):
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    label_map = AutoConfig.from_pretrained(args.model).id2label
    response = requests.post(
        f"http://{args.host}:{args.port}/pooling", json={"model": args.model, "input": TEXT, "task": "token_classify"}
    )
    predictions = torch.tensor(response.json()["data"][0]["data"]).argmax(dim=-1)
    inputs = tokenizer(TEXT, return_tensors="pt")
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    return [
        (token, label_map[prediction.item()])
        for token, prediction in zip(tokens, predictions, strict=True)
        if token not in tokenizer.all_special_tokens
    ]
