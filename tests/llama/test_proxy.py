"""prefixd-llama before real llama-servers: what is restored, that texts stay the same, and what
happens when somebody dies."""

import concurrent.futures
import json
import signal
import time
import unittest
import urllib.request
from typing import Any

import make_gguf
from prefixd_process import wait_for
from servers import DATA, Answer, LlamaTest, Proxy, text


class RestoreTest(LlamaTest):
    def test_L1_a_prompt_is_found_again_after_kill_9_of_everything(self):
        prompt = text(0, 3000)
        server = self.start_server()
        proxy = self.start_proxy(server)
        cold = proxy.complete(prompt, 16)
        self.assertEqual((cold.cached, cold.computed), (0, 3000))
        self.wait_until_stored(3015)  # and all generated tokens but the last
        for process in (proxy, server, self.daemon):
            process.stop(signal.SIGKILL)
        self.daemon = self.start_daemon()
        proxy = self.start_proxy(self.start_server())
        again = proxy.complete(prompt, 16)
        self.assertEqual((again.cached, again.computed), (2999, 1))
        self.assertEqual(again.promised, 2999)
        self.assertEqual(again.text, cold.text)
        # With its own speed known, the next restore says what it saved.
        self.assertEqual(proxy.count("restored_tokens"), 2999)

    def test_L2_of_a_prompt_that_parts_at_1777_all_1777_tokens_are_restored(self):
        server = self.start_server(slots=2)
        proxy = self.start_proxy(server)
        proxy.complete(text(0, 2400), 1)
        self.wait_until_stored(2400)
        parting = text(0, 1777) + "#" + text(100_000, 200)
        one, other = self.start_server(), self.start_server()
        restored = self.start_proxy(one).complete(parting, 12)
        self.assertEqual((restored.cached, restored.computed), (1777, 201))
        cold = other.complete(parting, 12)
        self.assertEqual(cold.cached, 0)
        self.assertEqual(restored.text, cold.text)

    def test_L3_two_servers_share_what_is_stored_once(self):
        one, two = self.start_server(), self.start_server()
        proxies = self.start_proxy(one), self.start_proxy(two)
        prompt = text(5000, 700)
        first = proxies[0].complete(prompt)
        self.wait_until_stored(707)
        second = proxies[1].complete(prompt)
        self.assertEqual(second.cached, 699)
        self.assertEqual(second.text, first.text)
        proxies[1].complete(prompt + " ")  # in the slot now: the server has it itself
        self.assertEqual(proxies[1].count("restored_tokens"), 699)
        self.assertEqual(len(self.daemon.control("stats")["spaces"]), 1)
        self.assertLess(self.stored_tokens(), 707 + 2 * 64)  # where the last prompt parts

    def test_L3_with_every_slot_busy_all_requests_still_hit(self):
        server = self.start_server(slots=4, unified=False, context=4 * 2048)
        proxy = self.start_proxy(server)
        prompts = [text(begin, 600) for begin in range(0, 8000, 1000)]
        alone = [proxy.complete(prompt, 6) for prompt in prompts]
        self.wait_until_stored(8 * 605)
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            crowd = list(pool.map(lambda prompt: proxy.complete(prompt, 6), prompts))
        self.assertEqual([a.text for a in crowd], [a.text for a in alone])
        self.assertEqual([a.cached for a in crowd], [599] * 8)

    def test_several_servers_behind_one_proxy_take_turns(self):
        servers = [self.start_server(), self.start_server()]
        proxy = self.start_proxy(*servers)
        prompts = [text(begin, 400) for begin in (0, 500, 1000, 1500)]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda prompt: proxy.complete(prompt, 4), prompts))
        self.assertEqual([answer.status for answer in answers], [200] * 4)
        for server in servers:
            self.assertIn("task", server.log())


class KindsTest(LlamaTest):
    KINDS = (
        {"k": "F16", "v": "F16"},
        {"k": "F16", "v": "F16", "flash": False},
        {"k": "Q8_0", "v": "Q8_0"},
        {"k": "Q4_0", "v": "Q4_0"},
        {"k": "Q8_0", "v": "F16", "flash": False},
        {"k": "Q8_0", "v": "F16"},
    )

    def saved(self, server) -> bytes:
        self.assertEqual(server.post("/slots/0?action=save", {"filename": "test.bin"}).status, 200)
        return (self.states / "test.bin").read_bytes()

    def test_L4_every_kind_comes_back_byte_for_byte_and_none_is_shared(self):
        prompt = text(20_000, 300)
        for number, kind in enumerate(self.KINDS, 1):
            with self.subTest(kind=kind):
                server = self.start_server(**kind)
                proxy = self.start_proxy(server)
                first = proxy.complete(prompt, 1)
                self.assertEqual(first.cached, 0, "nothing is shared with another kind")
                self.wait_until_stored(number * 300)
                before = self.saved(server)
                proxy.stop()
                server.stop()
                server = self.start_server(**kind)
                proxy = self.start_proxy(server)
                again = proxy.complete(prompt, 1)
                self.assertEqual(again.cached, 299)
                self.assertEqual(again.text, first.text)
                after = self.saved(server)
                proxy.stop()
                server.stop()
                self.assertEqual(len(after), len(before))
                # Only the last token was computed anew, alone instead of in a batch.
                differing = sum(a != b for a, b in zip(after, before, strict=True))
                self.assertLess(differing, len(before) // 300 + 1)
        self.assertEqual(len(self.daemon.control("stats")["spaces"]), len(self.KINDS))

    def test_L4_a_model_with_longrope_shares_nothing_between_long_and_short_contexts(self):
        model = self.home / "longrope.gguf"
        make_gguf.write(DATA / "model", model, "longrope", original_context=1024)
        prompt = text(20_000, 300)

        def ask(context: int, stored: int) -> Answer:
            server = self.start_server(model=model, context=context)
            proxy = self.start_proxy(server)
            answer = proxy.complete(prompt, 24)
            self.wait_until_stored(stored)
            proxy.stop()
            server.stop()
            return answer

        short, long = ask(512, 300), ask(4096, 600)
        self.assertNotEqual(short.text, long.text, "llama.cpp turned the keys by other factors")
        self.assertEqual((short.cached, long.cached), (0, 0))
        self.assertEqual((ask(1024, 600).cached, ask(8192, 600).cached), (299, 299))


class TurnsTest(LlamaTest):
    """Models whose caches cannot be cut anywhere. Tokens, for random weights say no text."""

    def ask(self, tokens: list[int], proxy: bool = True) -> Answer:
        server = self.start_server(model=self.folder / "turns.gguf")
        asked = self.start_proxy(server) if proxy else server
        answer = asked.complete(tokens, 9, return_tokens=True)
        self.assertNotIn("full prompt re-processing", server.log())
        if proxy and answer.cached < len(tokens) // 2:
            self.wait_until_stored(len(tokens) + 8)  # the last token was not computed
        if asked is not server:
            asked.stop()
        server.stop()
        return answer

    def goes_on(self, write, length: int, cached: tuple[int, int]) -> None:
        write(self.folder / "turns.gguf")
        prompt = list(text(0, length).encode())
        first = self.ask(prompt)
        next_turn = prompt + first.body["tokens"][:8] + list(text(3000, 100).encode())
        branch = prompt + list(text(5000, 50).encode())
        after_turn, after_prompt = cached
        for tokens, restored in (
            (prompt, after_prompt),
            (branch, after_prompt),
            (next_turn, after_turn),
        ):
            answer = self.ask(tokens)
            self.assertEqual((answer.cached, answer.promised), (restored, restored))
            self.assertEqual(answer.computed, len(tokens) - restored)
            self.assertEqual(answer.body["tokens"], self.ask(tokens, False).body["tokens"])

    def test_L5_a_model_with_sliding_layers_goes_on_from_turn_ends_and_checkpoints(self):
        self.goes_on(make_gguf.write_sliding, 600, (608, 596))

    def test_L5_not_before_its_window_is_full(self):
        self.goes_on(make_gguf.write_sliding, 100, (0, 0))

    def test_L5_a_model_with_recurrent_layers_goes_on_from_turn_ends_and_checkpoints(self):
        self.goes_on(make_gguf.write_hybrid, 600, (608, 596))


class WhyTest(LlamaTest):
    """Why a request found less than it could: in the answer, in the log and in prefixctl why."""

    def ask(self, proxy: Proxy, prompt: str | list[int], request_id: str) -> Answer:
        body = {"prompt": prompt, "n_predict": 1, "temperature": 0}
        return proxy.post("/completion", body, headers={"X-Request-Id": request_id})

    def why(self, request_id: str) -> dict[str, Any]:
        return self.daemon.control("why", request_id, "--below=100%")["answers"][0]

    def test_prefixctl_why_knows_a_request_by_the_id_of_its_client(self):
        proxy = self.start_proxy(self.start_server())
        answer = self.ask(proxy, text(0, 300), "chat-17")
        self.assertEqual(answer.request_id, "chat-17")
        self.assertEqual(self.why("chat-17")["requested_tokens"], 300)

    def test_prefixctl_why_knows_a_request_without_an_id_by_a_new_one(self):
        proxy = self.start_proxy(self.start_server())
        one = proxy.complete(text(0, 300), 1).request_id
        other = proxy.complete(text(5000, 200), 1).request_id
        self.assertNotEqual(one, other)
        self.assertEqual(self.why(one)["requested_tokens"], 300)
        self.assertEqual(self.why(other)["requested_tokens"], 200)

    def test_an_id_that_no_log_should_hold_is_replaced(self):
        proxy = self.start_proxy(self.start_server())
        for odd in ("two words", "a" * 129, "caf\u00e9"):
            with self.subTest(id=odd):
                answer = self.ask(proxy, text(0, 300), odd)
                self.assertEqual(answer.status, 200)
                self.assertRegex(answer.request_id, r"^llama-\d+-\d+$")
                self.assertNotIn(odd, proxy.log())

    def test_L5_what_cannot_be_restored_is_explained_where_a_prompt_parts_within_a_turn(self):
        make_gguf.write_hybrid(self.folder / "turns.gguf")
        proxy = self.start_proxy(self.start_server(model=self.folder / "turns.gguf"))
        turn = text(0, 600)
        self.ask(proxy, list(turn.encode()), "whole")
        self.wait_until_stored(600)
        parting = list((turn[:300] + text(5000, 50)).encode())
        answer = self.ask(proxy, parting, "parting")
        # Its slot begins with the same 300 tokens, but cannot go back to them: at most to a
        # checkpoint that the server made before.
        self.assertEqual(answer.promised, 0)
        self.assertLess(answer.cached, 300)
        lost = {each["reason"]: each["tokens_lost"] for each in self.why("parting")["shortened_by"]}
        self.assertEqual(lost, {"no_state_snapshot": 300})
        said = "parting: 0 of 300 tokens that match can be restored: no_state_snapshot 300"
        self.assertIn(said, proxy.log())
        self.assertEqual(proxy.count("recomputed_tokens"), 0)

    def test_tokens_that_the_server_computes_again_are_counted_and_explained(self):
        server = self.start_server()
        proxy = self.start_proxy(server)
        prompt = text(0, 300)
        proxy.complete(prompt, 1)
        self.assertEqual(self.ask(proxy, prompt + "#", "once").computed, 1)
        self.assertEqual(proxy.count("recomputed_tokens"), 0)
        wait_for("both states to be saved", lambda: proxy.count("saves") == 2)
        # Somebody asks the server itself for as many other tokens: its slot looks as before.
        server.complete("#" * 301, 1, id_slot=0)
        answer = self.ask(proxy, prompt + "##", "again")
        self.assertEqual((answer.cached, answer.computed), (0, 302))
        said = "again: the server computed 301 of 301 tokens again that were in its slot: somebody"
        proxy.wait_for_line(said)  # the answer comes before it
        self.assertEqual(proxy.count("recomputed_tokens"), 301)


class FailureTest(LlamaTest):
    def test_L6_without_prefixd_answers_are_the_same(self):
        server = self.start_server()
        prompt = text(0, 300)
        alone = server.complete(prompt)
        self.daemon.stop(signal.SIGKILL)
        proxy = self.start_proxy(server)
        self.assertEqual(proxy.complete(prompt).text, alone.text)

    def test_L6_a_prefixd_that_hangs_delays_no_request_beyond_the_deadlines(self):
        server = self.start_server()
        proxy = self.start_proxy(server)
        first = proxy.complete(text(0, 400))
        self.wait_until_stored(400)
        self.daemon.hang()
        self.addCleanup(self.daemon.send, signal.SIGCONT)
        for begin in (0, 1000, 2000):
            answer = proxy.complete(text(begin, 400))
            self.assertEqual(answer.status, 200)
            if begin == 0:
                self.assertEqual(answer.text, first.text)

    def test_L6_a_prefixd_that_hangs_for_a_moment_still_stores(self):
        proxy = self.start_proxy(self.start_server())
        proxy.complete(text(0, 400))
        self.wait_until_stored(400)
        self.daemon.hang()
        self.addCleanup(self.daemon.send, signal.SIGCONT)
        proxy.complete(text(1000, 400))
        wait_for("a second state", lambda: proxy.count("saves") == 2)
        begin = time.monotonic()  # longer than a lookup waits
        wait_for("half a second", lambda: time.monotonic() - begin > 0.5)
        self.daemon.send(signal.SIGCONT)
        self.wait_until_stored(800)
        self.assertEqual(proxy.count("failed_saves"), 0, proxy.log())

    def test_L6_a_server_that_was_killed_is_503_and_then_hits_again(self):
        server = self.start_server()
        proxy = self.start_proxy(server)
        prompt = text(0, 500)
        first = proxy.complete(prompt)
        self.wait_until_stored(500)
        server.stop(signal.SIGKILL)
        self.assertEqual(proxy.complete(prompt).status, 503)
        self.start_server(port=server.port)

        def hit():
            answer = proxy.complete(prompt)
            return answer if answer.status == 200 and answer.cached == 499 else None

        self.assertEqual(wait_for("a hit", hit).text, first.text)

    def test_L6_a_server_that_came_back_unnoticed_hits_at_once(self):
        server = self.start_server()
        proxy = self.start_proxy(server)
        prompt = text(0, 500)
        proxy.complete(prompt)
        self.wait_until_stored(500)
        server.stop(signal.SIGKILL)
        self.start_server(port=server.port)
        self.assertEqual(proxy.complete(prompt).cached, 499)

    def test_L6_a_server_that_came_back_with_other_flags_shares_nothing(self):
        server = self.start_server()
        proxy = self.start_proxy(server)
        prompt = text(0, 500)
        proxy.complete(prompt)
        self.wait_until_stored(500)
        server.stop(signal.SIGKILL)
        server = self.start_server(port=server.port, k="Q8_0", v="Q8_0")
        answer = proxy.complete(prompt)
        self.assertEqual((answer.status, answer.cached), (200, 0))
        self.assertEqual(proxy.count("failed_restores"), 0)

    def test_a_client_that_goes_away_ends_its_request_and_gives_its_slot_back(self):
        server = self.start_server()
        proxy = self.start_proxy(server)
        prompt = text(0, 300)
        with self.assertRaises(OSError):
            proxy.post(
                "/completion",
                {"prompt": prompt, "n_predict": 7000, "ignore_eos": True},
                deadline_s=1,
            )
        self.assertEqual(proxy.complete(text(50_000, 100), 4).status, 200)


class PassThroughTest(LlamaTest):
    def test_what_is_no_prompt_goes_through_untouched(self):
        server = self.start_server()
        proxy = self.start_proxy(server)
        for path in ("/health", "/props", "/v1/models", "/slots", "/lora-adapters"):
            with self.subTest(path=path):
                self.assertEqual(proxy.get(path), server.get(path))
        body = {"content": "In the beginning"}
        self.assertEqual(
            proxy.post("/tokenize", body).body, server.post("/tokenize", body).body
        )
        self.assertEqual(proxy.post("/nowhere", {}).status, 404)
        for odd in ({}, {"prompt": []}, {"prompt": ["a", "b"], "n_predict": 1}, {"prompt": 7}):
            with self.subTest(body=odd):
                self.assertEqual(
                    proxy.post("/completion", odd).status, server.post("/completion", odd).status
                )

    def test_a_stream_comes_as_it_is_made(self):
        proxy = self.start_proxy(self.start_server())
        body = {"prompt": text(0, 50), "n_predict": 24, "stream": True, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{proxy.port}/completion", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            self.assertEqual(reply.headers.get_content_type(), "text/event-stream")
            self.assertEqual(reply.headers["X-Prefixd-Cached-Tokens"], "0")
            events = [line for line in reply if line.startswith(b"data: ")]
        self.assertGreaterEqual(len(events), 24)


if __name__ == "__main__":
    unittest.main()
