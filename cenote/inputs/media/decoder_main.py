"""Main of the sandboxed decoder process: decodes untrusted images with limits on memory, CPU time and open files."""

from __future__ import annotations

import io
import os
import resource
import select
import sys
import warnings
from importlib import import_module

from PIL import Image, WebPImagePlugin

from cenote.inputs.media import decoder_protocol
from cenote.inputs.media.pixels import convert_to_rgb, exif_transpose

SOCKET_FD = 0  # bidirectional; stdout and stderr are /dev/null
MAX_CPU_S = 10  # per image
PARENT_POLL_S = 10.0  # interval of parent checks: a fork of the parent can keep the socket open after its death
NICENESS = 10


class LowMemoryWebP(WebPImagePlugin.WebPImageFile):
    """WebP plugin that frees its decoder, which holds two full canvases, before the image is allocated."""

    def load_prepare(self) -> None:
        self.__dict__.pop("_decoder", None)
        super().load_prepare()


def main(parent_pid: int, max_address_space: int) -> None:
    _preload_plugins()
    _enter_sandbox(max_address_space)
    _write(decoder_protocol.READY)
    with open(SOCKET_FD, "rb", closefd=False) as stream:
        while _wait_for_request(parent_pid):
            head = stream.read(decoder_protocol.REQUEST.size)
            if len(head) < decoder_protocol.REQUEST.size:
                return
            format_index, width, height, num_bytes = decoder_protocol.REQUEST.unpack(head)
            _set_rlimit(resource.RLIMIT_CPU, int(_cpu_time_used()) + MAX_CPU_S + 1, is_hard=False)
            _handle_request(decoder_protocol.FORMATS[format_index], (width, height), stream.read(num_bytes))


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


def _wait_for_request(parent_pid: int) -> bool:
    """Wait for a request; False if the parent process has exited."""
    poll = select.poll()
    poll.register(SOCKET_FD, select.POLLIN)
    while not poll.poll(PARENT_POLL_S * 1000):
        if os.getppid() != parent_pid:
            return False
    return True


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


def _enter_sandbox(max_address_space: int) -> None:
    os.nice(NICENESS)
    _set_rlimit(resource.RLIMIT_AS, max_address_space)
    _set_rlimit(resource.RLIMIT_CORE, 0)
    _set_rlimit(resource.RLIMIT_FSIZE, 0)
    _set_rlimit(resource.RLIMIT_NOFILE, 3)  # stdin, stdout and stderr are open; no other file can be


def _set_rlimit(resource_id: int, limit: int, *, is_hard: bool = True) -> None:
    hard = resource.getrlimit(resource_id)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource_id, (limit, limit if is_hard else hard))


def _cpu_time_used() -> float:
    times = os.times()
    return times.user + times.system


def _write(content: bytes) -> None:
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(SOCKET_FD, remaining) :]


if __name__ == "__main__":
    try:
        main(parent_pid=int(sys.argv[1]), max_address_space=int(sys.argv[2]))
    except OSError:
        sys.exit(1)  # the parent has closed the socket
