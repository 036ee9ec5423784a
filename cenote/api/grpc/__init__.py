"""gRPC server: the API of Text Embeddings Inference and gRPC's health service; needs the package grpcio."""
