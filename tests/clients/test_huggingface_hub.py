"""huggingface_hub: InferenceClient with the URL of a server."""

from __future__ import annotations

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from cenote import PoolingParams
from tests.clients.conftest import KEY, LABELS, TEXTS, RunningServer, is_close


@pytest.fixture(autouse=True)
def allow_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """With HF_HUB_OFFLINE the client refuses every request, also to this machine; telemetry asks the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)


def test_a_text_is_embedded(embedder: RunningServer) -> None:
    with InferenceClient(base_url=embedder.url) as client:
        vector = client.feature_extraction(TEXTS[0])
        raw = client.feature_extraction(TEXTS[0], normalize=False)

    assert is_close(vector, embedder.embed(TEXTS[:1]))
    assert is_close(raw, embedder.embed(TEXTS[:1], pooling_params=PoolingParams(normalize=False)))


def test_long_texts_are_truncated_unless_the_client_refuses(embedder: RunningServer) -> None:
    long = "deep water " * 300

    with InferenceClient(base_url=embedder.url) as client:
        assert client.feature_extraction(long, truncate=True).shape == (1, 384)
        with pytest.raises(HfHubHTTPError, match="256"):
            client.feature_extraction(long, truncate=False)


def test_sentences_are_compared(embedder: RunningServer) -> None:
    with InferenceClient(base_url=embedder.url) as client:
        scores = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])

    one, *others = embedder.embed(TEXTS)
    assert is_close(scores, [np.dot(one, other) for other in others])


def test_texts_are_classified(classifier: RunningServer) -> None:
    with InferenceClient(base_url=classifier.url) as client:
        found = client.text_classification(TEXTS[0])

    (output,) = classifier.llm.classify(TEXTS[:1], use_tqdm=False)
    assert {item.label for item in found} == set(LABELS.values())
    scores = {item.label: item.score for item in found}
    assert is_close([scores[LABELS[0]], scores[LABELS[1]]], output.outputs.probs)


def test_the_token_is_the_api_key(protected_server: RunningServer) -> None:
    with InferenceClient(base_url=protected_server.url, token=KEY) as client:
        vector = client.feature_extraction(TEXTS[0])
    with (
        InferenceClient(base_url=protected_server.url, token="wrong") as client,
        pytest.raises(HfHubHTTPError, match="401"),
    ):
        client.feature_extraction(TEXTS[0])

    assert is_close(vector, protected_server.embed(TEXTS[:1]))
