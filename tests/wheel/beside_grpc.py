"""Uses grpcio and prefixd in one process, each a gRPC of its own: beside_grpc.py grpc|prefixd ADDRESS

The one that is named is imported first.
"""

import importlib
import sys
from concurrent import futures

first, address = sys.argv[1:]
importlib.import_module(first)

import grpc
import prefixd
import prefixd.__main__


def echoes() -> None:
    """Calls a server of grpcio's in this process 100 times."""
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.Echo", {"Echo": echo})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/t.Echo/Echo")
        for number in range(100):
            sent = str(number).encode() * 1000
            assert call(sent, timeout=60) == sent
    server.stop(0)


sys.argv[1:] = [address]
for _ in range(3):
    echoes()
    assert prefixd.__main__.main() == 0
print("both served")
