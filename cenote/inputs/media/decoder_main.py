"""Main of the decoder process: decodes untrusted images in a sandbox, with limits on memory and CPU time."""

from __future__ import annotations

import io
import os
import resource
import socket
import struct
import sys
import time
import warnings
from importlib import import_module

from PIL import Image, WebPImagePlugin

from cenote.inputs.media import decoder_protocol, sandbox
from cenote.inputs.media.pixels import convert_to_rgb, exif_transpose

SOCKET_FD = 0  # bidirectional; stdout and stderr are /dev/null
MAX_CPU_S = 10  # per image
MAX_READ_BYTES = 256 * 1024
PARENT_CHECK_S = 10  # a fork of the parent can keep the socket open after its death


class LowMemoryWebP(WebPImagePlugin.WebPImageFile):
    """WebP plugin that frees its decoder, which holds two full canvases, before the image is allocated."""

    def load_prepare(self) -> None:
        self.__dict__.pop("_decoder", None)
        super().load_prepare()


def main(parent_pid: int, max_address_space: int) -> None:
    _preload_plugins()
    _set_receive_timeout()
    active = sandbox.enter(max_address_space)
    _write(decoder_protocol.pack_layers(active))
    while True:
        head = _receive(decoder_protocol.REQUEST.size, parent_pid)
        format_index, width, height, num_bytes = decoder_protocol.REQUEST.unpack(head)
        sandbox.set_limit(resource.RLIMIT_CPU, int(time.process_time()) + MAX_CPU_S + 1, is_hard=False)
        content = _receive(num_bytes, parent_pid)
        _handle_request(decoder_protocol.FORMATS[format_index], (width, height), content)


def _handle_request(image_format: str, size: tuple[int, int], content: bytes) -> None:
    try:
        image = _decode(image_format, size, content)
        convert_to_rgb(image.crop((0, 0, 1, 1)))  # modes that cannot be converted fail before DECODED is sent
    except MemoryError:
        _write(decoder_protocol.RESPONSE.pack(decoder_protocol.TOO_LARGE, 0, 0))
    except Exception:  # Pillow plugins raise exceptions of any type
        _write(decoder_protocol.RESPONSE.pack(decoder_protocol.CORRUPT, 0, 0))
    else:
        _write(decoder_protocol.RESPONSE.pack(decoder_protocol.DECODED, *image.size))
        for box in decoder_protocol.iter_tiles(*image.size):
            _write(convert_to_rgb(image.crop(box)).tobytes())


def _decode(image_format: str, size: tuple[int, int], content: bytes) -> Image.Image:
    Image.MAX_IMAGE_PIXELS = size[0] * size[1]  # decompression bomb check: never larger than the header said
    image = Image.open(io.BytesIO(content), formats=(image_format,))
    if image.size != size:
        raise ValueError("the size differs from the header")
    image.load()
    return exif_transpose(image)


def _set_receive_timeout() -> None:
    """Let reads of the socket return now and then; poll() needs a limit of open files that the sandbox lacks."""
    connection = socket.socket(fileno=SOCKET_FD)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", PARENT_CHECK_S, 0))
    connection.detach()


def _receive(num_bytes: int, parent_pid: int) -> bytes:
    """Read so many bytes; raise EOFError if the parent has closed the socket or exited."""
    parts = []
    while num_bytes:
        try:
            part = os.read(SOCKET_FD, min(num_bytes, MAX_READ_BYTES))
        except BlockingIOError:
            if os.getppid() != parent_pid:
                raise EOFError from None
            continue
        if not part:
            raise EOFError
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def _preload_plugins() -> None:
    """Make Pillow import its plugins now: in the sandbox no file can be opened."""
    for plugin in ("MpoImagePlugin", "TiffImagePlugin"):  # multi-picture JPEG, and EXIF
        import_module(f"PIL.{plugin}")
    Image.register_open("WEBP", LowMemoryWebP, WebPImagePlugin._accept)
    for image_format in decoder_protocol.FORMATS:
        file = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (2, 1)).save(file, image_format, exif=exif)
        convert_to_rgb(_decode(image_format, (2, 1), file.getvalue()))
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def _write(content: bytes) -> None:
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(SOCKET_FD, remaining) :]


if __name__ == "__main__":
    try:
        main(parent_pid=int(sys.argv[1]), max_address_space=int(sys.argv[2]))
    except EOFError:
        pass  # the parent has closed the socket, or exited
    except OSError:
        sys.exit(1)  # it has closed the socket before the answer
