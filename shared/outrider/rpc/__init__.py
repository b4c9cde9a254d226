"""gRPC: server and channel set-up, status mapping, the replica streams at both ends. Protobuf stops at `convert.py`."""
