"""Parse messages within bounds: one of the allowed size could have so many elements that its objects fill memory."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from cenote.errors import BadRequest, BodyTooLarge

Message = Any
# of a message with a list of numbers: each may take a byte there, and many times as much in memory
MAX_NUMBERS_BYTES = 4 * 1024**2
VARINT, FIXED64, TEXT, FIXED32 = 0, 1, 2, 5  # how a field is encoded


class MessageParser:
    """Parses the messages of one type; those with more than `max_items` elements are refused before."""

    def __init__(self, descriptor: Any, max_items: int) -> None:
        self.name: str = descriptor.name
        self.message_class = GetMessageClass(descriptor)
        self.max_items = max_items
        lists = [field for field in descriptor.fields if field.default_value == []]
        self.has_numbers = any(field.type != field.TYPE_STRING for field in lists)
        # of the wire format, in which each element of a list of texts is a field, as is each other value
        self.max_fields = max_items + len(descriptor.fields)

    def parse(self, data: bytes) -> Message:
        if len(data) > 2 * self.max_fields:  # fewer bytes hold no more fields
            self._check_size(data)
        try:
            return self.message_class.FromString(data)
        except DecodeError:
            raise BadRequest(f"the message is not a valid {self.name} of protobuf") from None

    def _check_size(self, data: bytes) -> None:
        if self.has_numbers:
            if len(data) > MAX_NUMBERS_BYTES:
                raise BodyTooLarge(
                    f"the {self.name} has {len(data)} bytes, limit {MAX_NUMBERS_BYTES} of a list of numbers; split it"
                )
        elif has_more_fields(data, self.max_fields):
            raise BodyTooLarge(
                f"the {self.name} has more than {self.max_items} elements, the limit of a request; split it, or raise "
                "--max-request-items"
            )


def has_more_fields(data: bytes, limit: int) -> bool:
    """Whether a message in the wire format has more fields than that; damaged messages are left to the parser."""
    position, num_fields = 0, 0
    try:
        while position < len(data):
            num_fields += 1
            if num_fields > limit:
                return True
            tag, position = read_varint(data, position)
            encoding = tag & 7
            if encoding == TEXT:
                size, position = read_varint(data, position)
                position += size
            elif encoding == VARINT:
                _, position = read_varint(data, position)
            elif encoding in (FIXED32, FIXED64):
                position += 8 if encoding == FIXED64 else 4
    except IndexError:
        pass
    return False


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number of 7 bits per byte, and the position behind it; raises IndexError if it is cut."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise IndexError("a number of more than ten bytes")
