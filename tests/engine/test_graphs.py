"""Which recording a small batch runs as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from cenote.batch import pack
from cenote.config import EngineConfig
from cenote.engine.graphs import Bucket, Recordings, bucket_of, recordable
from cenote.inputs.strip import Strip
from cenote.loading.load import LoadedModel, load
from cenote.pooling.pooler import Ask
from cenote.request import Options
from tests.tiny import SEQUENCES, moved, save_tiny

EMBED = (Ask("embed", Options()),)


def test_one_query_fills_its_bucket() -> None:
    assert bucket_of(16, 1, 16) == Bucket(tokens=16, sequences=1, longest=16)


def test_a_spare_sequence_has_a_token_to_begin_at() -> None:
    assert bucket_of(32, 2, 16) == Bucket(tokens=64, sequences=4, longest=16)
    assert bucket_of(31, 2, 16) == Bucket(tokens=32, sequences=4, longest=16)


@pytest.mark.parametrize("tokens, sequences, longest", [(5000, 1, 5000), (1000, 1000, 1), (4096, 3, 4000)])
def test_what_no_bucket_holds_is_not_recorded(tokens: int, sequences: int, longest: int) -> None:
    assert bucket_of(tokens, sequences, longest) is None


def test_a_bucket_holds_what_it_is_chosen_for() -> None:
    for tokens in range(1, 4000, 37):
        for sequences in (1, 2, 7, 16, 100):
            longest = max(1, tokens - sequences + 1)
            bucket = bucket_of(tokens, sequences, longest)
            if sequences <= tokens and bucket is not None:
                assert bucket.tokens >= tokens and bucket.sequences >= sequences and bucket.longest >= longest
                assert bucket.tokens > tokens or bucket.sequences == sequences


def test_on_a_cpu_nothing_is_recorded(loaded: LoadedModel) -> None:
    assert not recordable(loaded.backbone)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["BertModel", "LlamaModel", "ModernBertModel"])
@pytest.mark.parametrize("pooling", ["MEAN", "CLS", "LAST"])
def test_a_recording_answers_as_a_model_does(name: str, pooling: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, name)
    config = EngineConfig.of(str(tmp_path), dtype="bfloat16", device="cuda", pooler_config={"pooling_type": pooling})
    loaded = load(config)
    device = torch.device("cuda")
    model = Recordings(loaded.backbone, loaded.pooler, device)

    with torch.inference_mode():
        # large, small and large again: what one leaves behind is not seen by the next
        for sequences in (SEQUENCES, SEQUENCES[:1], SEQUENCES[3:5], SEQUENCES[::-1], [[7] * 30], SEQUENCES):
            lengths = np.array(list(map(len, sequences)))
            answers = model(Strip.plain(np.concatenate(sequences), lengths, lengths), [EMBED] * len(sequences))
            assert answers is not None
            (found,) = answers
            batch = moved(pack(sequences), "cuda")
            (expected,) = loaded.pooler(loaded.backbone(batch), batch, [EMBED] * batch.size)
            assert found.members == expected.members
            assert_close(found.rows, expected.rows, atol=1e-2, rtol=1e-2)

    assert 3 <= len(model.made) <= 4
