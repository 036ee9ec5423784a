"""Message classes, and their parser, which bounds the elements: those of an allowed size could fill memory."""

from __future__ import annotations

from base64 import b85decode
from typing import Any
from zlib import decompress

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from cenote.errors import BadRequest, BodyTooLarge

Message = Any
VARINT, FIXED64, TEXT, FIXED32 = 0, 1, 2, 5  # how a field is encoded


def make_classes(packed: str) -> dict[str, Any]:
    """Return what the module of a .proto file defines, by name: its descriptor, enums with their values, and messages.

    The classes are in a pool of their own, so that other modules may have messages of the same names.
    """
    descriptor = DescriptorPool().AddSerializedFile(decompress(b85decode(packed)))
    enums = descriptor.enum_types_by_name
    return {
        "DESCRIPTOR": descriptor,
        **{name: EnumTypeWrapper(enum) for name, enum in enums.items()},
        **{value.name: value.number for enum in enums.values() for value in enum.values},
        **{name: GetMessageClass(message) for name, message in descriptor.message_types_by_name.items()},
    }


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
