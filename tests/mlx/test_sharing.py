"""Servers that share a conversation as it grows: how soon, through kills and clears, and what they
say when they cannot."""

import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

import mlx_lm
import prefixd
from families import write_family
from prefixd.mlx import Model, Options, open_model
from processes import DEADLINE_S, Daemon, Server, wait_for
from test_servers import Servers, prompt
from tiny_model import Geometry, words, write_checkpoint


def said(tokens: list[int]) -> str:
    return words(tokens)


class TheNextTurn(Servers):
    """X4: what one server answered, another goes on from at once."""

    geometry = Geometry(dtype="float32")
    prefill_step = 512

    def test_X4_the_second_server_hits_all_of_turn_1_as_soon_as_it_ends(self):
        model, _ = mlx_lm.load(str(self.model))
        shared = open_model(
            prefixd.connect(self.daemon.address),
            [Model(model, str(self.model))],
            Options(deadline_ms=30_000),
        )
        (part,) = shared._parts
        took = []
        for seed in range(5):
            asked = prompt(700, seed)
            answered = self.one.complete(asked, 40, settle=False).tokens
            ended = time.monotonic()
            whole = [*asked, *answered]
            wait_for(
                "turn 1 to be there",
                lambda: part.space.match(whole).restorable_tokens == len(whole),
                tick_s=0.001,
            )
            took.append(1000 * (time.monotonic() - ended))
            turn_2 = whole + prompt(20, seed + 100)
            self.assertEqual(self.two.complete(turn_2, 8).cached_tokens, len(whole))
        print(f"\nX4 turn 1 is there {min(took):.1f} to {max(took):.1f} ms after its end (50 ms)")

    def test_X4_the_prompt_is_there_while_the_answer_is_generated(self):
        asked = prompt(400, seed=50)
        self.two.complete(asked, 1)  # both are attached, the model is open
        asked = prompt(400, seed=51)
        slow = threading.Thread(target=lambda: self.one.complete(asked, 400))
        slow.start()
        try:
            wait_for("the prompt", lambda: self.two.complete(asked, 1).cached_tokens == 399)
            self.assertTrue(slow.is_alive())
        finally:
            slow.join()

    def test_X4_the_first_request_of_a_process_shares(self):
        asked = prompt(300, seed=60)
        self.one.complete(asked, 4)
        late = self.server("late", [], self.daemon.address)
        self.assertEqual(late.complete(asked, 4, opened=False).cached_tokens, 299)

    def test_status_tells_the_tokens_that_were_used_and_the_time_that_was_saved(self):
        asked = prompt(500, seed=70)
        self.one.complete(asked, 4)
        self.one.complete(prompt(500, seed=71), 4)  # it knows what a token of a prompt costs
        before = self.daemon.control("stats")
        self.one.complete(asked, 4)
        after = self.daemon.control("stats")
        used = after["counters"]["tokens.used"] - before["counters"].get("tokens.used", 0)
        self.assertEqual(used, 499)
        self.assertGreater(after["seconds_saved"], before["seconds_saved"])


class ThroughKillsAndClears(Servers):
    """X5: 200 turns, 20 kills of prefixd and as many clears in their midst."""

    geometry = Geometry(dtype="float32")
    prefill_step = 512

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = cls.server("plain", [], None)

    def test_X5_no_answer_differs_and_no_request_fails(self):
        chance = random.Random(5)
        ended = threading.Event()
        kills = threading.Thread(target=self.kill_again_and_again, args=(ended,))
        kills.start()
        try:
            conversations = [prompt(40, seed) for seed in range(4)]
            for turn in range(200):
                at = chance.randrange(4)
                asked = conversations[at] + prompt(chance.randrange(1, 30), 1000 + turn)
                server = chance.choice((self.one, self.two))
                mine = server.complete(asked, 6, settle=False).tokens
                self.assertEqual(mine, self.plain.complete(asked, 6).tokens, f"turn {turn}")
                conversations[at] = asked + mine
                if len(conversations[at]) > 400:
                    conversations[at] = prompt(40, seed=2000 + turn)
                if turn % 10 == 9:
                    self.daemon.control("clear", "--yes")
        finally:
            ended.set()
            kills.join()
        self.assertEqual(self.kills, 20)
        for server in (self.one, self.two):
            self.assertNotIn("Traceback", server.log())

    def kill_again_and_again(self, ended: threading.Event) -> None:
        type(self).kills = 0
        while self.kills < 20:
            ended.wait(0.2)
            self.daemon.stop(signal.SIGKILL)
            self.start_daemon()
            type(self).kills += 1


class WithAMaximumSize(Servers):
    """--max-kv-size, of a model that makes no caches of its own: the first 4 tokens and the last."""

    flags = ["--max-kv-size=96"]
    prefill_step = 512

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.alone = cls.server("alone_", ["--prefixd-salt=alone"], cls.daemon.address)

    @classmethod
    def server(cls, name: str, flags: list[str], daemon_address: str | None) -> Server | None:
        cls.model = write_family(cls.folder / "qwen3", "qwen3")
        return super().server(name, flags, daemon_address) if daemon_address else None

    def test_a_conversation_goes_on_in_another_server_after_its_caches_wrapped(self):
        conversation = prompt(150, seed=1)
        for turn, server in enumerate((self.one, self.two, self.one)):
            held = len(conversation) if turn else 0
            asked = conversation + (prompt(20, seed=turn) if turn else [])
            answer = server.complete(asked, 30)
            self.assertEqual(answer.cached_tokens, held)
            self.assertEqual(answer.tokens, self.alone.complete(asked, 30).tokens)
            conversation = asked + answer.tokens
        self.assertNotIn("has no effect", self.one.log())


class ModelsThatAreNotShared(Servers):
    geometry = Geometry(window=32)
    WHY = "a layer keeps the last 32 tokens, windows of 64 and more can be shared"

    def header(self, server: Server) -> str:
        body = {"prompt": said(prompt(9, seed=1)), "max_tokens": 1}
        request = urllib.request.Request(
            server.url() + "/v1/completions", json.dumps(body).encode()
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=DEADLINE_S
        ) as reply:
            reply.read()
            return reply.headers["X-Prefixd"]

    def test_say_why_in_the_log_in_the_answers_header_and_to_whoever_asks_prefixd(self):
        self.one.complete(prompt(20, seed=1), 1)
        self.assertEqual(self.header(self.one), f"not shared: {self.WHY}")
        self.assertIn(f"why='{self.WHY}'", self.one.log())
        self.assertNotIn("Traceback", self.one.log())
        sessions = self.daemon.control("sessions")["sessions"]
        (mine,) = [one for one in sessions if one["worker"] == "one"]
        self.assertEqual(mine["not_shared"], [{"model": "tiny", "reason": self.WHY}])
        self.assertGreaterEqual(self.daemon.control("stats")["counters"]["spaces.refused"], 1)


class SharedModels(Servers):
    def test_say_so_in_the_answers_header(self):
        self.one.complete(prompt(9, seed=1), 1)
        self.assertEqual(ModelsThatAreNotShared.header(self, self.one), "shared")


class Required(unittest.TestCase):
    """--prefixd-required"""

    def run_server(self, geometry: Geometry, address: str, folder: Path) -> tuple[int, str]:
        model = write_checkpoint(folder / "tiny", geometry)
        flags = [f"--model={model}", "--prefixd-required", f"--prefixd={address}", "--port=0"]
        flags.append("--prefixd-load-deadline-ms=300")
        done = subprocess.run(
            [sys.executable, "-m", "prefixd.mlx.server", *flags],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stderr

    def test_refuses_to_start_with_a_model_that_is_not_shared(self):
        with tempfile.TemporaryDirectory(prefix="prefixd-mlx-") as temp:
            daemon = Daemon(Path(temp) / "daemon")
            try:
                code, text = self.run_server(Geometry(window=32), daemon.address, Path(temp))
            finally:
                daemon.stop()
                daemon.lose_arena()
        self.assertEqual(code, 2, text)
        self.assertIn(
            "--prefixd-required: caches of tiny are not shared: a layer keeps the last 32", text
        )
        self.assertNotIn("Traceback", text)
        self.assertNotIn("listening on", text)

    def test_refuses_to_start_without_prefixd(self):
        with tempfile.TemporaryDirectory(prefix="prefixd-mlx-") as temp:
            address = f"unix://{temp}/nobody.sock"
            code, text = self.run_server(Geometry(), address, Path(temp))
        self.assertEqual(code, 2, text)
        self.assertIn(f"are not shared: client: no daemon at {address}", text)

    def test_wants_a_model(self):
        done = subprocess.run(
            [sys.executable, "-m", "prefixd.mlx.server", "--prefixd-required"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        self.assertEqual((done.returncode, "--prefixd-required without --model" in done.stderr), (2, True))


if __name__ == "__main__":
    unittest.main()
