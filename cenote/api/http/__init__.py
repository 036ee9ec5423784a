"""HTTP/1.1 server for ASGI apps: connections, requests and responses."""
