"""python -m prefixd.mlx.server: mlx_lm.server whose prompt cache is prefixd.

Flags that are not prefixd's go to mlx_lm.server unchanged. Without a daemon it is mlx_lm.server.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import mlx_lm

import prefixd

from . import options as flags_of

log = logging.getLogger("prefixd.mlx")

_OPEN_S = 600.0  # longest time to read the files of a large checkpoint
_HEADER = "X-Prefixd"
_HEADER_CHARACTERS = 300


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
    except flags_of.OptionError as why:  # an option that does not fit the model
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
            "this mlx_lm.server has no --kv-bits: it needs mlx-lm 0.32 or later"
        )
    return engine


def _put_into(engine: Any, flags: flags_of.Flags) -> None:
    """Replaces engine.run(), which makes the prompt cache. engine.main() calls it with the model
    provider that it made."""
    plain_run = engine.run

    def run(host: str, port: int, provider: Any) -> None:
        for warning in flags.warnings:
            log.warning(warning)
        _check_model(provider, flags)
        if provider.is_distributed:
            why = "its ranks must agree on a prefix"
            if flags.required:
                raise flags_of.OptionError(f"--prefixd-required: a distributed server, {why}")
            log.warning("prefixd holds no caches of a distributed server: %s", why)
            _serve_with(engine, AnnouncingServer, engine.APIHandler)
        else:
            _Sharing(engine, flags, provider).put_in()
        plain_run(host, port, provider)

    engine.run = run


def _check_model(provider: Any, flags: flags_of.Flags) -> None:
    """Raises OptionError if a required model is not named, or the first cannot be quantized so."""
    if flags.required and not provider.cli_args.model:
        raise flags_of.OptionError("--prefixd-required without --model")
    config_file = Path(provider.cli_args.model or "") / "config.json"
    head_dim = 128
    if provider.cli_args.model and config_file.exists():
        from ..engine.files import read_config
        from .geometry import head_dim as of_config

        head_dim = of_config(read_config(config_file.parent)) or head_dim
        flags.options.check_head_dim(head_dim)
    log.info(flags.options.describe(head_dim))


def _serve_with(engine: Any, server: type[Any], handler: type[Any]) -> None:
    """Makes the engine serve with `server` and `handler`. run() drops its server_class, so
    _run_http_server is given them."""
    engine._run_http_server = functools.partial(
        engine._run_http_server, server_class=server, handler_class=handler
    )


class AnnouncingServer(ThreadingHTTPServer):
    """Logs where it listens, as --port 0 leaves the port to the kernel."""

    def server_activate(self) -> None:
        super().server_activate()
        host, port = self.server_address[:2]
        log.info("listening on http://%s:%d", host, port)


class _Sharing:
    """Puts prefixd into an engine that serves one model at a time, whichever its provider loads."""

    def __init__(self, engine: Any, flags: flags_of.Flags, provider: Any):
        from .prompt_cache import PromptCache

        self._engine = engine
        self._flags = flags
        self._provider = provider
        self._client = prefixd.connect(
            flags.address,
            name=flags.worker_name,
            engine=f"mlx-lm {mlx_lm.__version__}",
            staging_bytes=flags.staging_bytes or None,
        )
        self._cache = PromptCache(
            self._open,
            in_background=True,
            open_deadline_s=flags.options.load_deadline_ms / 1000,
            tell=lambda key, why: self._client.not_shared(self._name_of(key), why),
            name_of=self._name_of,
        )
        self._loaded = threading.Event()  # the first model is loaded

    def put_in(self) -> None:
        from .generation import saving_batch_generator, saving_stream_generate

        engine, cache = self._engine, self._cache
        plain_cache = engine.LRUPromptCache

        def prompt_cache(size: int) -> Any:
            cache.use_local(plain_cache(size))
            return cache

        engine.LRUPromptCache = prompt_cache
        engine.BatchGenerator = saving_batch_generator(engine.BatchGenerator, cache, self._key)
        engine.stream_generate = saving_stream_generate(engine.stream_generate, cache, self._key)
        self._limit_kv_size()
        self._provider.load = self._loading(self._provider.load)
        _serve_with(engine, AnnouncingServer, self._handler())
        if self._flags.required:
            engine._run_http_server = self._once_it_shares(engine._run_http_server)

    def _key(self) -> Any:
        return self._provider.model_key

    def _name_of(self, key: Any) -> str:
        return self._flags.options.model_name or Path(key[0]).name

    def _open(self, key: Any) -> Callable[[], Any]:
        from .opening import Model, prepare_model

        path, adapter, draft = key  # the provider's key; its models are loaded by now
        models = [Model(self._provider.model, path, adapter)]
        if draft is not None:
            models.append(Model(self._provider.draft_model, draft))
        return prepare_model(self._client, models, self._flags.options)

    def _loading(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the provider's load(), extended to open the model at once and to read its files
        meanwhile."""
        from ..engine.files import read_early

        provider = self._provider

        @functools.wraps(load)
        def load_and_open(model: str, adapter: str | None = None, draft: str | None = None) -> Any:
            key = (
                provider._model_map.get(model, model),
                provider._adapter_map.get(model, adapter),
                provider._draft_model_map.get(draft, draft),
            )
            if key != provider.model_key:
                for path in (key[0], key[2]):
                    if path is not None:
                        read_early(path)
            before = provider.model_key
            loaded = load(model, adapter, draft)
            self._cache.shared(provider.model_key)
            if provider.model_key != before:
                self._limit_batches()
            if self._flags.required and self._loaded.is_set():
                why = self._why_not_required()
                if why:
                    raise ValueError(f"--prefixd-required: {why}")
            self._loaded.set()
            return loaded

        return load_and_open

    def _limit_kv_size(self) -> None:
        """Applies --max-kv-size, which mlx_lm.server has no flag for."""
        limit = self._flags.options.max_kv_size
        if limit is not None:
            plain = self._engine.make_prompt_cache
            self._engine.make_prompt_cache = lambda model: plain(model, limit)

    def _limit_batches(self) -> None:
        """Turns batches off for a model that was just loaded, if --max-kv-size applies: mlx_lm's
        batches keep no sinks."""
        limit = self._flags.options.max_kv_size
        if limit is None:
            return
        if hasattr(self._provider.model, "make_cache"):
            log.warning("--max-kv-size %d has no effect: the model makes its own caches", limit)
        else:
            self._provider.is_batchable = False

    def _why_not_required(self) -> str:
        """Waits until it is known why the loaded model is not shared. Returns why; "" if it is."""
        key = self._key()
        self._cache.wait_shared(key, _OPEN_S)
        self._client.wait_attached(self._flags.options.load_deadline_ms)
        why = self._why_not(key)
        return f"caches of {self._name_of(key)} are not shared: {why}" if why else ""

    def _why_not(self, key: Any) -> str:
        return self._cache.why_not(key) or self._client.error

    def _once_it_shares(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a `serve` that serves once the model is shared, or ends the process."""

        def serve_shared(host: str, port: int, generator: Any) -> None:
            while not self._loaded.wait(0.1) and generator.generation_available():
                pass
            why = self._why_not_required() if self._loaded.is_set() else "no model was loaded"
            if not why:
                serve(host, port, generator)
                return
            print(f"prefixd.mlx.server: --prefixd-required: {why}", file=sys.stderr, flush=True)
            logging.shutdown()
            os._exit(2)  # MLX's own threads abort an interpreter that ends while they run

        return serve_shared

    def _handler(self) -> type[Any]:
        """Returns the engine's handler of requests, extended to say in its answers whether their
        caches are shared."""

        def header() -> str:
            why = self._why_not(self._key())
            text = f"not shared: {why}" if why else "shared"
            return text.encode("ascii", "replace").decode().replace("\n", " ")[:_HEADER_CHARACTERS]

        class Handler(self._engine.APIHandler):
            def _set_completion_headers(self, status_code: int = 200) -> None:
                super()._set_completion_headers(status_code)
                self._say_shared(status_code)

            def _set_stream_headers(self, status_code: int = 200) -> None:
                super()._set_stream_headers(status_code)
                self._say_shared(status_code)

            def _say_shared(self, status_code: int) -> None:
                if self.command == "POST" and status_code == 200:
                    self.send_header(_HEADER, header())

        return Handler


if __name__ == "__main__":
    sys.exit(main())
