"""mlx_lm servers as processes of their own, beside prefixd."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixd_process import BUILD, DEADLINE_S, Daemon, Process, open_url, wait_for
from tiny_model import tokens as tokens_of
from tiny_model import words

__all__ = ["BUILD", "DEADLINE_S", "Answer", "Daemon", "Process", "Server", "open_url", "wait_for"]


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    prompt_tokens: int
    cached_tokens: int


_SMALLEST = {"prompt": words([0]), "max_tokens": 1}


class Server(Process):
    """An mlx_lm server of its own process: with prefixd, or the engine alone (daemon None).

    One that starts without a model loads whichever a request names (load())."""

    def __init__(
        self,
        folder: Path,
        name: str,
        model: Path | None,
        flags: Sequence[str] = (),
        daemon_address: str | None = None,
    ):
        command = [sys.executable]
        if daemon_address is None:
            command += [str(Path(__file__).with_name("plain_server.py"))]
        else:
            command += ["-m", "prefixd.mlx.server", f"--prefixd={daemon_address}"]
            command += [f"--prefixd-name={name}", "--prefixd-deadline-ms=30000"]
        command += ["--port=0", *flags]
        if model is not None:
            command.append(f"--model={model}")
        super().__init__(command, folder / f"{name}.log")
        self._model: dict[str, str] = {}  # what a request says of it
        self._with_prefixd = daemon_address is not None

    def load(self, model: Path) -> None:
        """Every request from now on is for this model. Returns once prefixd has it open, too."""
        self._model = {"model": str(model)}
        self._ask("/v1/completions", _SMALLEST)
        if self._with_prefixd:
            self._wait_until_open()

    def wait_until_shared(self) -> None:
        """A server goes on by itself once prefixd is back, and its answers say so."""
        wait_for(f"{self.log_path.stem} to share", self._shares)

    def _shares(self) -> bool:
        with self._reply("/v1/completions", _SMALLEST) as reply:
            return reply.headers["X-Prefixd"] == "shared"

    def complete(
        self, prompt: list[int], max_tokens: int, settle: bool = True, opened: bool = True
    ) -> Answer:
        """Greedy, once the model is `opened`, and until what is saved of it is saved."""
        body = {"prompt": words(prompt), "max_tokens": max_tokens}
        answer = self._post("/v1/completions", body, settle, opened)
        return self._read(answer, answer["choices"][0]["text"])

    def chat(self, messages: list[dict[str, str]], max_tokens: int) -> Answer:
        answer = self._post(
            "/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens}
        )
        return self._read(answer, answer["choices"][0]["message"]["content"])

    def stores(self) -> int:
        return len(re.findall(r"cache_store tokens=", self.log()))

    def wait_for_store(self, tokens: int, after: int) -> None:
        """A server answers before it saves: until it saved that many, `after` that many saves."""
        wait_for(
            f"{self.log_path.stem} to save {tokens} tokens",
            lambda: any(
                int(found) == tokens
                for found in re.findall(r"cache_store tokens=(\d+)", self.log())[after:]
            ),
        )

    def url(self) -> str:
        return self.wait_for_line(r"listening on (http://\S+)").group(1)

    def _post(
        self, path: str, body: dict[str, Any], settle: bool = True, opened: bool = True
    ) -> dict[str, Any]:
        if self._with_prefixd and opened:
            self._wait_until_open()
        before = self.stores()
        answer = self._ask(path, body)
        if self._with_prefixd and settle:
            self.wait_for_store(answer["usage"]["total_tokens"], before)
        return answer

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._reply(path, body) as reply:
            return json.loads(reply.read())

    def _reply(self, path: str, body: dict[str, Any]) -> Any:
        asked = json.dumps({**body, **self._model}).encode()
        request = urllib.request.Request(self.url() + path, asked)
        return open_url(request, timeout=DEADLINE_S)

    def _wait_until_open(self) -> None:
        opened = r"prefixd (holds|does not hold) caches of "
        if self._model:  # else it is the one that the server began with
            opened += re.escape(Path(self._model["model"]).name) + r"(?![\w-])"
        self.wait_for_line(opened)

    @staticmethod
    def _read(answer: dict[str, Any], text: str) -> Answer:
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Answer(tokens_of(text), usage["prompt_tokens"], cached)
