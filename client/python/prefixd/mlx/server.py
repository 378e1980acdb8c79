"""python -m prefixd.mlx.server: mlx_lm.server whose prompt cache is prefixd.

Flags that are not prefixd's go to mlx_lm.server as they came. Without a daemon it is mlx_lm.server.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import prefixd

from . import options as flags_of

log = logging.getLogger("prefixd.mlx")


def main(arguments: list[str] | None = None) -> int:
    try:
        flags = flags_of.parse(sys.argv[1:] if arguments is None else arguments)
        engine = _engine()
    except flags_of.OptionError as why:
        print(f"prefixd.mlx.server: {why}", file=sys.stderr)
        return 2
    sys.argv = ["prefixd.mlx.server", *flags.server_arguments]
    _put_into(engine, flags)
    try:
        engine.main()
    except flags_of.OptionError as why:  # the model's head_dim was not known before
        print(f"prefixd.mlx.server: {why}", file=sys.stderr)
        return 2
    return 0


def _engine() -> Any:
    try:
        import mlx_lm.server as engine
    except ImportError as why:
        raise flags_of.OptionError(f"mlx_lm.server cannot be imported: {why}") from None
    if not hasattr(engine, "DEFAULT_QUANTIZED_KV_START"):
        raise flags_of.OptionError(
            "this mlx_lm.server has no --kv-bits: mlx-lm 0.32 or later wanted"
        )
    return engine


def _put_into(engine: Any, flags: flags_of.Flags) -> None:
    """engine.main() makes a model provider and calls run(), which makes the prompt cache."""
    plain_run = engine.run
    plain_cache = engine.LRUPromptCache

    def run(host: str, port: int, provider: Any) -> None:
        for warning in flags.warnings:
            log.warning(warning)
        _check_model(provider, flags.options)
        if provider.is_distributed:
            log.warning(
                "prefixd holds no caches of a distributed server: its ranks must agree on a prefix"
            )
        else:
            engine.LRUPromptCache = lambda size: _prompt_cache(provider, flags, plain_cache(size))
        plain_run(host, port, provider)

    engine.run = run
    # run() takes a server_class and drops it: it is given where it is used, if it still is.
    serve = getattr(engine, "_run_http_server", None)
    if serve is not None:
        engine._run_http_server = functools.partial(serve, server_class=AnnouncingServer)


class AnnouncingServer(ThreadingHTTPServer):
    """Says where it listens, which --port 0 leaves to the kernel."""

    def server_activate(self) -> None:
        super().server_activate()
        host, port = self.server_address[:2]
        log.info("listening on http://%s:%d", host, port)


def _check_model(provider: Any, options: flags_of.Options) -> None:
    """OptionError when the model that the server starts with cannot be quantized like this."""
    config_file = Path(provider.cli_args.model or "") / "config.json"
    head_dim = 128
    if provider.cli_args.model and config_file.exists():
        from .geometry import head_dim as of_config
        from .geometry import read_config

        head_dim = of_config(read_config(config_file.parent))
        options.check_head_dim(head_dim)
    log.info(options.describe(head_dim))


def _prompt_cache(provider: Any, flags: flags_of.Flags, local: Any) -> Any:
    from .opening import Model, prepare_model
    from .prompt_cache import PromptCache

    client = prefixd.connect(
        flags.address, name=flags.worker_name, staging_bytes=flags.staging_bytes or None
    )

    def open_shared(key: Any) -> Callable[[], Any]:
        path, adapter, draft = key  # the provider's; its models are loaded by now
        models = [Model(provider.model, path, adapter)]
        if draft is not None:
            models.append(Model(provider.draft_model, draft))
        return prepare_model(client, models, flags.options)

    cache = PromptCache(open_shared, local)
    load = provider.load

    @functools.wraps(load)
    def load_and_open(*arguments: Any, **named: Any) -> Any:
        loaded = load(*arguments, **named)
        cache.shared(provider.model_key)  # its files are read while the first prompt is computed
        return loaded

    provider.load = load_and_open
    return cache


if __name__ == "__main__":
    sys.exit(main())
