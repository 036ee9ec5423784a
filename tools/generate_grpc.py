"""Generate the message classes of `cenote/api/grpc/*.proto`: `python tools/generate_grpc.py`; needs grpcio-tools.

The classes are made at import from the descriptor of the file, in a pool of their own: unlike the modules that protoc
writes, they work with every version of the protobuf library, and beside other modules with the same messages.
"""

from __future__ import annotations

import re
import sys
from base64 import b85encode
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import compress

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

FOLDER = Path(__file__).parents[1] / "cenote" / "api" / "grpc"
LINE_CHARS = 112
UNUSED = re.compile(r"_FIELD_NUMBER:|__slots__ =")  # lines of a stub that say nothing to those who use the messages

MODULE = '''"""Message classes of {name}.proto; written by tools/generate_grpc.py."""

from cenote.api.grpc.messages import make_classes

globals().update(
    make_classes(
{content}
    )
)
'''


def generate(target: Path, folder: Path = FOLDER) -> None:
    """Write the module and its type stub of every .proto file into a folder."""
    for proto in sorted(folder.glob("*.proto")):
        with TemporaryDirectory() as temporary:
            descriptor_set = Path(temporary) / "set"
            run_protoc(proto, f"--descriptor_set_out={descriptor_set}", f"--pyi_out={temporary}")
            (descriptor,) = FileDescriptorSet.FromString(descriptor_set.read_bytes()).file
            lines = (Path(temporary) / f"{proto.stem}_pb2.pyi").read_text().splitlines(keepends=True)
        (target / f"{proto.stem}_pb2.py").write_text(format_module(proto.stem, descriptor))
        (target / f"{proto.stem}_pb2.pyi").write_text("".join(line for line in lines if not UNUSED.search(line)))


def run_protoc(proto: Path, *arguments: str) -> None:
    include = str(files("grpc_tools") / "_proto")
    if status := protoc.main(["protoc", f"-I{proto.parent}", f"-I{include}", *arguments, proto.name]):
        sys.exit(f"protoc {proto.name} exited with status {status}")


def format_module(name: str, descriptor: FileDescriptorProto) -> str:
    text = b85encode(compress(descriptor.SerializeToString(deterministic=True), 9)).decode()
    parts = [text[start : start + LINE_CHARS] for start in range(0, len(text), LINE_CHARS)]
    return MODULE.format(name=name, content="\n".join(f'        "{part}"' for part in parts))


if __name__ == "__main__":
    generate(FOLDER)
