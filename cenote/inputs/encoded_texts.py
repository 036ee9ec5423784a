"""Results of ModelTokenizer: token ids of one text, and the columns of many, as Transformers returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import tokenizers

from cenote.errors import BadRequest
from cenote.utils.tensors import import_torch, to_public_tensor


class EncodedIds(list[int]):
    """The token ids of one text; also has the attributes of `tokenizers.Encoding`, such as `ids` and `offsets`."""

    def __init__(self, encoding: tokenizers.Encoding) -> None:
        super().__init__(encoding.ids)
        self.encoding = encoding

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "encoding":  # not set yet, while it is being unpickled
            raise AttributeError(name)
        return getattr(self.encoding, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedIds, (self.encoding,)


class EncodedTexts(dict[str, Any]):
    """Columns such as `input_ids` and `attention_mask`, by key and as attributes.

    An integer key selects the `tokenizers.Encoding` of one text.
    """

    def __init__(self, columns: Mapping[str, Any], encodings: Sequence[tokenizers.Encoding] = ()) -> None:
        super().__init__(columns)
        self.encodings = list(encodings)

    @overload
    def __getitem__(self, key: str) -> Any: ...
    @overload
    def __getitem__(self, key: SupportsIndex) -> tokenizers.Encoding: ...
    def __getitem__(self, key: str | SupportsIndex) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.encodings[key]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getitem__(name)
        except KeyError:
            raise AttributeError(name) from None

    @property
    def data(self) -> dict[str, Any]:
        return dict(self)

    def tokens(self, batch_index: int = 0) -> list[str]:
        """Return the tokens of one text."""
        tokens: list[str] = self.encodings[batch_index].tokens
        return tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return the index of the word of each token of one text; None for special tokens."""
        word_ids: list[int | None] = self.encodings[batch_index].word_ids
        return word_ids

    def to(self, device: Any) -> EncodedTexts:
        """Move tensors to a device."""
        moved = {name: value.to(device) if hasattr(value, "to") else value for name, value in self.items()}
        return EncodedTexts(moved, self.encodings)


def to_tensor(column: Sequence[Any], kind: str) -> Any:
    """Return a column as a torch tensor ("pt") or numpy array ("np")."""
    if kind not in ("pt", "np"):
        raise BadRequest(f"invalid return_tensors={kind!r}; expected one of: pt, np")
    try:
        array = np.array(column)
        array = array.astype(np.float32 if array.size and array.dtype.kind == "f" else np.int64)
    except ValueError:
        raise BadRequest(
            "Unable to create tensor, you should probably activate truncation and/or padding with 'padding=True' "
            "'truncation=True' to have batched tensors with the same length."
        ) from None
    if kind == "np":
        return array
    if import_torch() is None:
        raise BadRequest("return_tensors='pt' needs torch, which is not installed; set return_tensors='np'")
    return to_public_tensor(array)
