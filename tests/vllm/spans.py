"""A collector of traces that keeps what it is sent, unread: vLLM's environment has no OpenTelemetry."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Collector:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector._lock:
                    collector._messages.append(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def has(self, trace_id: str, call: str) -> bool:
        """Returns whether a span of that call of PrefixCache came, in that trace."""
        # A span begins with field 1, the 16 bytes of its trace.
        with self._lock:
            sent = b"".join(self._messages)
        spans = sent.split(b"\x0a\x10")[1:]
        name = f"prefixd.v1.PrefixCache/{call}".encode()
        return any(one.startswith(bytes.fromhex(trace_id)) and name in one for one in spans)
