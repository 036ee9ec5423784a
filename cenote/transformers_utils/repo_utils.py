"""Access to the hub; mirrors `vllm.transformers_utils.repo_utils`."""

from huggingface_hub import HfApi


def hf_api() -> HfApi:
    """Return a client of the hub, for example for `snapshot_download`."""
    return HfApi()
