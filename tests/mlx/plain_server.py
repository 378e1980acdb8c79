"""mlx_lm.server as it is, the engine alone, saying which port --port 0 became."""

import logging
from http.server import ThreadingHTTPServer

import mlx_lm.server as engine


class Announcing(ThreadingHTTPServer):
    def server_activate(self):
        super().server_activate()
        logging.info("listening on http://%s:%d", *self.server_address[:2])


def run(host, port, provider, plain_run=engine.run):
    plain_run(host, port, provider, server_class=Announcing)


if __name__ == "__main__":
    engine.run = run
    engine.main()
