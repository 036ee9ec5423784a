"""Message classes of health.proto; written by tools/generate_grpc.py."""

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

DESCRIPTOR = DescriptorPool().AddSerializedFile(
    b"\x0a\x0chealth.proto\x12\x0egrpc.health."
    b"v1\x22.\x0a\x12HealthCheckRequest\x12\x18\x0a\x07"
    b"service\x18\x01 \x01(\x09R\x07service\x22\xb1\x01\x0a\x13H"
    b"ealthCheckResponse\x12I\x0a\x06status"
    b"\x18\x01 \x01(\x0e21.grpc.health.v1.Heal"
    b"thCheckResponse.ServingStatu"
    b"sR\x06status\x22O\x0a\x0dServingStatus\x12\x0b"
    b"\x0a\x07UNKNOWN\x10\x00\x12\x0b\x0a\x07SERVING\x10\x01\x12\x0f\x0a\x0b"
    b"NOT_SERVING\x10\x02\x12\x13\x0a\x0fSERVICE_UNK"
    b"NOWN\x10\x032\xae\x01\x0a\x06Health\x12P\x0a\x05Check\x12\x22"
    b".grpc.health.v1.HealthCheckR"
    b"equest\x1a#.grpc.health.v1.Heal"
    b"thCheckResponse\x12R\x0a\x05Watch\x12\x22.g"
    b"rpc.health.v1.HealthCheckReq"
    b"uest\x1a#.grpc.health.v1.Health"
    b"CheckResponse0\x01b\x06proto3"
)

HealthCheckRequest = GetMessageClass(DESCRIPTOR.message_types_by_name["HealthCheckRequest"])
HealthCheckResponse = GetMessageClass(DESCRIPTOR.message_types_by_name["HealthCheckResponse"])
