"""Generate the message classes of `cenote/api/grpc/*.proto`: `python tools/generate_grpc.py`; needs grpcio-tools.

The classes are made at import from the descriptor of the file, in a pool of their own: unlike the modules that protoc
writes, they work with every version of the protobuf library, and beside other modules with the same messages.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

FOLDER = Path(__file__).parents[1] / "cenote" / "api" / "grpc"
LINE_BYTES = 28

MODULE = '''"""Message classes of {name}.proto; written by tools/generate_grpc.py."""

{imports}

DESCRIPTOR = DescriptorPool().AddSerializedFile(
{content}
)

{classes}
'''


def generate(target: Path, folder: Path = FOLDER) -> None:
    """Write the module and its type stub of every .proto file into a folder."""
    for proto in sorted(folder.glob("*.proto")):
        with TemporaryDirectory() as temporary:
            descriptor_set = Path(temporary) / "set"
            run_protoc(proto, f"--descriptor_set_out={descriptor_set}", f"--pyi_out={temporary}")
            (descriptor,) = FileDescriptorSet.FromString(descriptor_set.read_bytes()).file
            stub = (Path(temporary) / f"{proto.stem}_pb2.pyi").read_text()
        (target / f"{proto.stem}_pb2.py").write_text(format_module(proto.stem, descriptor))
        (target / f"{proto.stem}_pb2.pyi").write_text(stub)


def run_protoc(proto: Path, *arguments: str) -> None:
    include = str(files("grpc_tools") / "_proto")
    if status := protoc.main(["protoc", f"-I{proto.parent}", f"-I{include}", *arguments, proto.name]):
        sys.exit(f"protoc {proto.name} exited with status {status}")


def format_module(name: str, descriptor: FileDescriptorProto) -> str:
    data = descriptor.SerializeToString(deterministic=True)
    parts = [data[start : start + LINE_BYTES] for start in range(0, len(data), LINE_BYTES)]
    content = "\n".join("    b" + '"' + "".join(map(escape, part)) + '"' for part in parts)
    imports = ["from google.protobuf.descriptor_pool import DescriptorPool"]
    if descriptor.enum_type:
        imports.append("from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper")
    imports.append("from google.protobuf.message_factory import GetMessageClass")
    lines = []
    for enum in descriptor.enum_type:
        lines.append(f'{enum.name} = EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["{enum.name}"])')
        lines += [f"{value.name} = {value.number}" for value in enum.value]
    for message in descriptor.message_type:
        lines.append(f'{message.name} = GetMessageClass(DESCRIPTOR.message_types_by_name["{message.name}"])')
    return MODULE.format(name=name, imports="\n".join(imports), content=content, classes="\n".join(lines))


def escape(byte: int) -> str:
    character = chr(byte)
    return character if character.isascii() and character.isprintable() and character not in '"\\' else f"\\x{byte:02x}"


if __name__ == "__main__":
    generate(FOLDER)
