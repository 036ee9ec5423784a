"""Parse messages within bounds: one of the allowed size could have so many elements that its objects fill memory."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from cenote.errors import BadRequest, BodyTooLarge

Message = Any
VARINT, FIXED64, TEXT, FIXED32 = 0, 1, 2, 5  # how a field is encoded


class MessageParser:
    """Parses the messages of one type; those with more than `max_items` elements are refused before."""

    def __init__(self, descriptor: Any, max_items: int) -> None:
        self.name: str = descriptor.name
        self.message_class = GetMessageClass(descriptor)
        self.max_items = max_items
        # Of the wire format, in which each element of a list of texts is a field, as is each other value. A list of
        # numbers is one field: what it takes in memory is bounded by the size of a message.
        self.max_fields = max_items + len(descriptor.fields)

    def parse(self, data: bytes) -> Message:
        # fewer bytes hold no more fields
        if len(data) > 2 * self.max_fields and has_more_fields(data, self.max_fields):
            raise BodyTooLarge(
                f"the {self.name} has more than {self.max_items} elements, the limit of a request; split it, or raise "
                "--max-request-items"
            )
        try:
            return self.message_class.FromString(data)
        except DecodeError:
            raise BadRequest(f"the message is not a valid {self.name} of protobuf") from None


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
