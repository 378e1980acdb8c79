"""A collector of traces: OTLP over HTTP, decoded by the official messages."""

from __future__ import annotations

import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

PATIENCE_S = 60


class Collector:
    """`certificate`: PEM with its key, for https. `wants`: a header that each message must have."""

    def __init__(
        self, certificate: Path | None = None, wants: tuple[str, str] | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._spans: list = []  # (service, Span)
        self._bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if wants is not None and self.headers[wants[0]] != wants[1]:
                    self.send_error(401)
                    return
                collector._take(self.path, self.headers["Content-Type"], body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path: str, content_type: str, body: bytes) -> None:
        assert (path, content_type) == ("/v1/traces", "application/x-protobuf")
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            self._bodies.append(body)
            for resource in request.resource_spans:
                facts = {a.key: a.value.string_value for a in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self._spans += [(facts["service.name"], span) for span in scope.spans]

    @property
    def bodies(self) -> list[bytes]:
        with self._lock:
            return list(self._bodies)

    def spans(self, service: str = "prefixd") -> list:
        with self._lock:
            return [span for of, span in self._spans if of == service]

    def wait_for(self, *names: str) -> dict:
        """Returns the first span of prefixd's of each name, once all are here."""
        end = time.monotonic() + PATIENCE_S
        while True:
            found = {span.name: span for span in reversed(self.spans())}
            if all(name in found for name in names):
                return found
            if time.monotonic() > end:
                raise AssertionError(f"of {names} came {sorted(found)}")
            time.sleep(0.01)
