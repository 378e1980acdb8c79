"""Two mlx_lm servers, processes of their own, on one prefixd: what one computed, the other does
not.

Greedy answers are compared with those of the engine alone. Prefixes are shared in multiples of the
prefill step, so that the engine does the same arithmetic in the same pieces, cold or not: equal
tokens are then equal bits, and no close call between two tokens can go either way.
"""

import random
import signal
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from processes import DEADLINE_S, Daemon, Server
from tiny_model import Geometry, write_checkpoint

QUANTIZED = ["--kv-bits=8", "--kv-group-size=64", "--quantized-kv-start=0"]
NO_CACHE = ["--prompt-cache-size=0"]


def prompt(tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(250), k=tokens)


class Servers(unittest.TestCase):
    """Servers `one` and `two` on a daemon, and the engine alone, which computes every prompt in
    full."""

    flags: list[str] = []
    prefill_step = 16
    geometry = Geometry()

    @classmethod
    def setUpClass(cls):
        temp = tempfile.TemporaryDirectory(prefix="prefixd-mlx-")
        cls.addClassCleanup(temp.cleanup)
        cls.folder = Path(temp.name)
        cls.model = write_checkpoint(cls.folder / "tiny", cls.geometry)
        cls.start_daemon()
        cls.addClassCleanup(lambda: cls.daemon.stop())
        cls.addClassCleanup(lambda: cls.daemon.lose_arena())
        cls.alone = cls.server("alone", NO_CACHE, None)
        cls.one = cls.server("one", [], cls.daemon.address)
        cls.two = cls.server("two", [], cls.daemon.address)

    @classmethod
    def start_daemon(cls) -> None:
        cls.daemon = Daemon(cls.folder / "daemon")

    @classmethod
    def server(cls, name: str, flags: list[str], daemon_address: str | None) -> Server:
        flags = [*cls.flags, f"--prefill-step-size={cls.prefill_step}", *flags]
        server = Server(cls.folder, name, cls.model, flags, daemon_address)
        cls.addClassCleanup(server.stop)
        return server

    def assert_as_alone(
        self, server: Server, tokens: list[int], cached: int, count: int = 12
    ) -> None:
        """The server answers as the engine alone, having computed all but `cached` tokens."""
        answer = server.complete(tokens, count)
        self.assertEqual(answer.prompt_tokens, len(tokens))
        self.assertEqual(answer.cached_tokens, cached)
        self.assertEqual(answer.tokens, self.alone.complete(tokens, count).tokens)
        self.assertNotIn("Traceback", server.log())


class PrefixesOfQuantizedCaches(Servers):
    flags = QUANTIZED

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.stored = prompt(64, seed=1)
        cls.one.complete(cls.stored, 12)

    def test_G1_an_exact_repeat_computes_one_token(self):
        self.assert_as_alone(self.two, self.stored, cached=63)

    def test_a_longer_prompt_computes_what_is_new(self):
        longer = self.stored[:48] + prompt(32, seed=2)
        self.assert_as_alone(self.two, longer, cached=48)
        self.assert_as_alone(self.one, longer[:64] + prompt(16, seed=3), cached=64)

    def test_a_shorter_prompt_computes_one_token(self):
        self.assert_as_alone(self.two, self.stored[:33], cached=32)

    def test_a_diverging_prompt_shares_up_to_the_token(self):
        diverging = self.stored[:32] + prompt(20, seed=4)
        self.assertNotEqual(diverging[32], self.stored[32])
        self.assert_as_alone(self.two, diverging, cached=32)

    def test_another_prompt_shares_nothing(self):
        self.assert_as_alone(self.two, prompt(20, seed=5), cached=0)

    def test_a_conversation_goes_on_as_it_would_in_the_engines_own_cache(self):
        engine = self.server("engine", [], None)
        first = prompt(40, seed=6)
        answered = self.one.complete(first, 9).tokens
        self.assertEqual(engine.complete(first, 9).tokens, answered)
        second = first + answered + prompt(11, seed=7)
        here, there = self.two.complete(second, 12), engine.complete(second, 12)
        self.assertEqual(here, there)
        self.assertEqual(here.cached_tokens, 49)

    def test_what_is_cached_decides_what_is_answered(self):
        """The others would prove nothing on a model that looks at its last token only."""
        tail = prompt(1, seed=8)
        answers = {
            tuple(self.alone.complete(prompt(32, seed) + tail, 12).tokens) for seed in range(3)
        }
        self.assertEqual(len(answers), 3)


class PrefixesQuantizedFromAStartOn(Servers):
    """mlx-lm converts a cache as a whole once it is long enough; what was saved before stays raw."""

    flags = ["--kv-bits=8", "--kv-group-size=64", "--quantized-kv-start=128"]

    def test_go_on_from_raw_rows_and_from_both_as_in_the_engines_own_cache(self):
        engine = self.server("engine", [], None)
        short = prompt(80, seed=1)
        long = short[:64] + prompt(80, seed=2)
        third = long[:112] + prompt(16, seed=3)
        here, there = [], []
        for server, tokens in ((self.one, short), (self.two, long), (self.one, third)):
            here.append(server.complete(tokens, 12))
            there.append(engine.complete(tokens, 12))
        self.assertEqual([answer.cached_tokens for answer in here], [0, 64, 112])
        self.assertEqual(here, there)
        # The first block is raw, as the short prompt left it, and so is the short one's own tail.
        # The other blocks of the long one and of the third are quantized.
        (space,) = self.daemon.control("stats")["spaces"]
        raw, packed = 4 * 2 * 2 * (2 * 64), 4 * 2 * 2 * (64 + 4)
        in_raw, quantized = 80 + 12, (144 + 12 - 64) + (128 + 12 - 64)
        self.assertEqual(space["ram_payload_bytes"], in_raw * raw + quantized * packed)


class PrefixesQuantizedToBeSaved(Servers):
    flags = ["--kv-cache-quantization", "--kv-cache-min-quantize-tokens=0"]

    @classmethod
    def server(cls, name: str, flags: list[str], daemon_address: str | None) -> Server | None:
        return super().server(name, flags, daemon_address) if daemon_address else None

    def test_take_the_bytes_of_8_bits_and_answer_alike_in_every_server(self):
        stored = prompt(64, seed=1)
        self.one.complete(stored, 12)
        (space,) = self.daemon.control("stats")["spaces"]
        self.assertEqual(space["ram_payload_bytes"], 76 * 4 * 2 * 2 * (64 + 4))
        here, there = self.one.complete(stored, 12), self.two.complete(stored, 12)
        self.assertEqual(here, there)
        self.assertEqual(here.cached_tokens, 63)


class PrefixesInFullPrecision(Servers):
    """Without --kv-bits the server batches; prompts are saved in segments, too."""

    def test_are_shared_between_servers_that_batch(self):
        stored = prompt(64, seed=1)
        self.one.complete(stored, 12)
        self.assert_as_alone(self.two, stored, cached=63)
        self.assert_as_alone(self.two, stored[:32] + prompt(20, seed=2), cached=32)

    def test_are_shared_by_four_requests_at_a_time(self):
        system = prompt(48, seed=6)
        self.one.complete(system, 2)
        asked = [system + prompt(16, seed=7 + n) for n in range(4)]
        saved = self.two.stores()
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda tokens: self.two.complete(tokens, 12), asked))
        self.assertEqual([answer.cached_tokens for answer in answers], [48] * 4)
        self.assertEqual([len(answer.tokens) for answer in answers], [12] * 4)
        self.two.wait_for_line(r"cache_store tokens=", seen=saved + 4)
        for tokens in asked:  # what a batch saved is each one's own
            self.assertEqual(self.one.complete(tokens, 1).cached_tokens, 63)
        self.assertNotIn("Traceback", self.two.log())

    def test_of_chats_are_shared_from_the_system_prompt_on(self):
        system = {"role": "system", "content": " ".join(f"w{t}" for t in prompt(46, seed=3))}
        for server, seed, cached in ((self.one, 4, 0), (self.two, 5, 48)):
            user = {"role": "user", "content": " ".join(f"w{t}" for t in prompt(15, seed=seed))}
            answer = server.chat([system, user], 8)
            self.assertEqual(answer.cached_tokens, cached)
            self.assertEqual(answer.tokens, self.alone.chat([system, user], 8).tokens)


class ModelsThatPrefixdDoesNotHold(Servers):
    geometry = Geometry(window=32)

    def test_are_served_from_the_engines_own_cache_and_it_is_said_once(self):
        tokens = prompt(48, seed=1)
        for _ in range(2):
            answer = self.one.complete(tokens, 12)
            self.assertEqual(answer.tokens, self.alone.complete(tokens, 12).tokens)
        said = self.one.log().count("prefixd does not hold caches of")
        self.assertEqual(said, 1)
        self.assertIn("keeps the last 32 tokens, windows of 64 and more can be", self.one.log())
        self.assertNotIn("Traceback", self.one.log())


class DraftModels(Servers):
    """Speculative decoding: the caches of two models, a space each."""

    @classmethod
    def server(cls, name: str, flags: list[str], daemon_address: str | None) -> Server:
        draft = write_checkpoint(cls.folder / "draft", Geometry(layers=2, kv_heads=1, seed=3))
        flags = [*flags, f"--draft-model={draft}", "--num-draft-tokens=2"]
        return super().server(name, flags, daemon_address)

    def test_have_their_prefixes_shared_as_well(self):
        stored = prompt(64, seed=1)
        self.one.complete(stored, 12)
        self.assertEqual(len(self.daemon.control("stats")["spaces"]), 2)
        self.assert_as_alone(self.two, stored, cached=63)


class QuantizedDraftModels(DraftModels):
    flags = QUANTIZED

    def test_have_their_prefixes_shared_as_well(self):
        """Here the engine quantizes copies, and keeps what it had before: the first prefill step.
        Its objects say so in `offset`, and no more than that is saved of them."""
        stored = prompt(64, seed=1)
        self.one.complete(stored, 12)
        self.assert_as_alone(self.two, stored, cached=self.prefill_step)


class CommandLine(unittest.TestCase):
    def test_a_group_that_does_not_divide_head_dim_is_refused_at_once(self):
        with tempfile.TemporaryDirectory(prefix="prefixd-mlx-") as folder:
            model = write_checkpoint(Path(folder) / "tiny", Geometry(head_dim=64))
            flags = [f"--model={model}", "--kv-bits=8", "--kv-group-size=128", "--port=0"]
            done = subprocess.run(
                [sys.executable, "-m", "prefixd.mlx.server", *flags],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
            )
        self.assertEqual(done.returncode, 2)
        self.assertIn("group_size 128 does not divide head_dim 64", done.stderr)


class PrefixdGoesAway(Servers):
    flags = QUANTIZED

    def setUp(self):  # servers attach when they are first asked
        for server in (self.one, self.two):
            server.complete(prompt(3, seed=0), 1)
        self.daemon.wait_for_sessions(2)

    def restart(self, how: signal.Signals, reboot: bool = False) -> None:
        self.daemon.stop(how)
        if reboot:
            self.daemon.lose_arena()
        self.start_again()

    def start_again(self) -> None:
        self.start_daemon()
        self.daemon.wait_for_sessions(2)

    def test_prefixes_outlive_a_restart(self):
        stored = prompt(64, seed=1)
        self.one.complete(stored, 12)
        self.restart(signal.SIGTERM, reboot=True)
        self.assert_as_alone(self.two, stored, cached=63)
        self.assert_as_alone(self.one, stored, cached=63)

    def test_prefixes_outlive_kill_9(self):
        stored = prompt(64, seed=2)
        self.one.complete(stored, 12)
        self.restart(signal.SIGKILL)
        self.assert_as_alone(self.two, stored, cached=63)

    def test_servers_answer_without_it_and_share_again_once_it_is_back(self):
        stored = prompt(64, seed=3)
        self.daemon.stop(signal.SIGKILL)
        self.assert_as_alone(self.two, stored, cached=0)
        self.assert_as_alone(self.two, stored, cached=63)  # of the engine's own cache
        self.start_again()
        later = prompt(64, seed=4)
        self.one.complete(later, 12)
        self.assert_as_alone(self.two, later, cached=63)


if __name__ == "__main__":
    unittest.main()
