"""Every model family gives the same hidden states on a GPU as on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch.testing import assert_close

from cenote.config.engine import EngineConfig
from cenote.loading.load import load_model
from cenote.packed_batch import pack_sequences
from tests.tiny import SEQUENCES, copy_to_device, save_tiny

ENCODERS = """BertModel RobertaModel DistilBertModel MPNetModel AlbertModel ElectraModel DebertaV2Model DebertaModel
    T5EncoderModel ModernBertModel EuroBertModel NomicBertModel GteModel JinaEmbeddingsV3Model"""
DECODERS = """LlamaModel MistralModel Qwen2Model Qwen3Model Qwen2MoeModel Qwen3MoeModel GemmaModel Gemma2Model
    Gemma3TextModel Phi3Model GPT2Model OlmoModel Olmo2Model GraniteModel GlmModel Lfm2Model JambaModel DeepseekV3Model
    OpenAIPrivacyFilterForTokenClassification"""


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of Transformers, with newer torch
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [*ENCODERS.split(), *DECODERS.split()])
def test_a_family_gives_the_same_on_a_gpu(name: str, tmp_path: Path) -> None:
    if not hasattr(transformers, name):
        pytest.skip(f"Transformers {transformers.__version__} has no {name} to save")
    save_tiny(tmp_path, name)

    with torch.inference_mode():
        host, device = (
            load_model(
                EngineConfig.from_kwargs(str(tmp_path), dtype="float32", device=device_name, runtime="torch")
            ).backbone(copy_to_device(pack_sequences(SEQUENCES), device_name))
            for device_name in ("cpu", "cuda")
        )

    assert_close(device.cpu(), host, atol=1e-3, rtol=1e-3)
