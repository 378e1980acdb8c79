"""mlx_lm.server as it is, the engine alone, saying which port --port 0 became."""

import functools
import logging
from http.server import ThreadingHTTPServer

import mlx_lm.server as engine


class Announcing(ThreadingHTTPServer):
    def server_activate(self):
        super().server_activate()
        logging.info("listening on http://%s:%d", *self.server_address[:2])


if __name__ == "__main__":
    engine._run_http_server = functools.partial(engine._run_http_server, server_class=Announcing)
    engine.main()
