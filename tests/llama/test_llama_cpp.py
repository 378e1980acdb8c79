"""prefixd.llama_cpp under llama-cpp-python, alone and beside llama-servers behind prefixd-llama."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import make_gguf
import plain_llama
from prefixd_process import DEADLINE_S
from servers import LlamaTest, text

F16 = 1
Q8_0 = 8
SLACK_S = 30.0  # of a busy machine, beside a deadline
_numbers = itertools.count(1)


class Llama:
    """A process with a llama_cpp.Llama and, with an address, its LlamaPrefixdCache."""

    def __init__(self, folder: Path, model: Path, address: str, options: dict[str, Any]):
        environment = options.pop("environment", {})
        self.log_path = folder / f"python-{next(_numbers)}.log"
        command = [sys.executable, Path(__file__).with_name("plain_llama.py"), model, address]
        with self.log_path.open("w") as log:
            self._child = subprocess.Popen(
                [*map(str, command), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | environment,
            )
        self.opened_s = self._answer()["opened_s"]

    def _answer(self) -> dict[str, Any]:
        line = self._child.stdout.readline()
        if not line:
            raise AssertionError(f"llama-cpp-python ended:\n{self.log()}")
        return json.loads(line)

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        self._child.stdin.write(json.dumps(request) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def complete(self, prompt: str | list[int], count: int = 8, **more: Any) -> dict[str, Any]:
        return self._request({"prompt": prompt, "count": count, **more})

    def value(self, expression: str) -> str:
        return self._request({"do": expression})["is"]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> None:
        self._child.kill()
        self._child.wait(DEADLINE_S)
        self._child.stdin.close()
        self._child.stdout.close()


@unittest.skipUnless(importlib.util.find_spec("llama_cpp"), "llama-cpp-python is not installed")
class LlamaCppTest(LlamaTest):
    def start_llama(
        self, address: str | None = None, model: Path | None = None, **options: Any
    ) -> Llama:
        address = self.daemon.address if address is None else address
        llama = Llama(self.home, model or self.model, address, options)
        self.addCleanup(llama.stop)
        return llama

    def once(self, prompt: str | list[int], **options: Any) -> dict[str, Any]:
        """The answer of a process of its own."""
        count, more = options.pop("count", 8), options.pop("more", {})
        llama = self.start_llama(**options)
        answer = llama.complete(prompt, count, more=more)
        llama.stop()
        return answer


class SharedTest(LlamaCppTest):
    def test_L3_two_servers_and_a_llama_cpp_python_process_share_one_prefix_stored_once(self):
        kinds = [("F16", F16, True), ("Q8_0", Q8_0, True), ("F16", F16, False)]
        if plain_llama.has_own_library():  # see the test of rotation
            kinds.pop(1)
        for spaces, (name, number, flash) in enumerate(kinds, 1):
            with self.subTest(kind=name, flash=flash):
                prompt, other = text(0, 700), text(5000, 500)
                servers = [self.start_server(k=name, v=name, flash=flash) for _ in range(2)]
                proxies = [self.start_proxy(server) for server in servers]
                before = self.stored_tokens()
                first = proxies[0].complete(prompt)
                self.wait_until_stored(before + 707)
                stored = self.stored_tokens()
                self.assertEqual(proxies[1].complete(prompt).cached, 699)
                llama = self.start_llama(type_k=number, type_v=number, flash_attn=flash)
                answer = llama.complete(prompt)
                self.assertEqual((answer["restored"], answer["computed"]), (699, 1))
                self.assertEqual((answer["text"], answer["stored"]), (first.text, 0))
                self.assertEqual(self.stored_tokens(), stored)
                second = llama.complete(other)
                self.assertEqual((second["restored"], second["stored"]), (0, 507))
                again = proxies[0].complete(other)
                self.assertEqual((again.cached, again.text), (499, second["text"]))
                for process in (*proxies, *servers, llama):
                    process.stop()
                self.assertEqual(len(self.daemon.control("stats")["spaces"]), spaces)

    def test_L3_a_prompt_that_parts_at_token_k_restores_exactly_k(self):
        self.once(text(0, 600))
        for parts_at in (16, 100, 256, 301, 599):
            with self.subTest(parts_at=parts_at):
                prompt = text(0, parts_at) + "#" + text(9000, 100)
                answer = self.once(prompt)
                self.assertEqual(answer["restored"], parts_at)
                self.assertEqual(answer["computed"], len(prompt) - parts_at)
                self.assertEqual(answer["text"], self.once(prompt, address="")["text"])

    def test_L3_the_text_is_the_same_after_a_restart_and_after_kill_9_of_prefixd(self):
        for kind in (F16, Q8_0):
            with self.subTest(kind=kind):
                prompt = text(20_000, 600)
                options = {"type_k": kind, "type_v": kind, "count": 24}
                plain = self.once(prompt, address="", **options)
                answers = [self.once(prompt, **options), self.once(prompt, **options)]
                self.daemon.stop(signal.SIGKILL)
                self.daemon = self.start_daemon()
                answers.append(self.once(prompt, **options))
                self.assertEqual([a["tokens"] for a in answers], [plain["tokens"]] * 3)
                self.assertEqual([a["restored"] for a in answers], [0, 599, 599])
                self.assertEqual([a["stored"] for a in answers], [623, 0, 0])

    def test_L3_the_next_turn_computes_only_what_is_new_and_stores_only_that(self):
        first = self.once(text(0, 600))
        turn = first["tokens"] + list(text(3000, 100).encode())
        answer = self.once(turn)
        self.assertEqual((answer["restored"], answer["computed"]), (607, 100))
        self.assertLess(answer["stored"], 107 + 64)  # from the last border of a block on

    def test_L3_a_stream_is_stored_at_its_end_and_one_that_is_left_is_not(self):
        prompt, stream = text(0, 600), {"stream": True}
        llama = self.start_llama()
        left = llama.complete(prompt, 24, more=stream, parts=3)
        self.assertEqual((left["restored"], left["stored"]), (0, 0))
        self.assertGreater(int(llama.value("len(llm.save_state().llama_state)")), 600)
        whole = llama.complete(prompt, 24, more=stream)
        self.assertEqual((whole["restored"], whole["stored"]), (0, 623))
        again = self.once(prompt, count=24, more=stream)
        self.assertEqual((again["restored"], again["stored"]), (599, 0))
        self.assertEqual(again["tokens"], self.once(prompt, address="", count=24)["tokens"])

    def test_L3_a_lookup_alone_leaves_no_logits_to_sample_from(self):
        prompt = list(text(0, 600).encode())
        self.once(prompt)
        llama = self.start_llama()
        self.assertEqual(llama.value(f"len(cache[{prompt}].input_ids)"), "599")
        answer = llama.complete(prompt[:599])
        self.assertEqual((answer["restored"], answer["computed"]), (0, 1))
        self.assertEqual(answer["tokens"], self.once(prompt[:599], address="")["tokens"])

    def test_what_the_llama_has_itself_is_not_restored(self):
        llama = self.start_llama()
        llama.complete(text(0, 600))
        again = llama.complete(text(0, 500) + text(9000, 100))
        self.assertEqual((again["restored"], again["computed"]), (0, 100))

    def test_a_context_that_computes_other_keys_and_values_shares_nothing(self):
        prompt = text(0, 300)
        self.assertEqual(self.once(prompt)["stored"], 307)
        for options in (
            {"rope_freq_base": 20_000.0},
            {"rope_freq_scale": 0.5},
            {"kv_overrides": {"llama.attention.layer_norm_rms_epsilon": 0.01}},
            {"cache": {"salt": "mine"}},
            {"type_k": Q8_0},
        ):
            with self.subTest(options=options):
                answer = self.once(prompt, **options)
                self.assertEqual((answer["restored"], answer["stored"]), (0, 307))

    @unittest.skipUnless(plain_llama.has_own_library(), "states of xllamacpp's tell the rotation")
    def test_L4_rows_that_may_be_rotated_are_shared_by_processes_of_one_library_and_setting(self):
        prompt, options = text(0, 300), {"type_k": Q8_0, "type_v": Q8_0}
        server = self.start_server(k="Q8_0", v="Q8_0", flash=True)
        proxy = self.start_proxy(server)
        proxy.complete(prompt)
        self.wait_until_stored(307)
        plain = {"environment": {"LLAMA_ATTN_ROT_DISABLE": "1"}}
        answers = [self.once(prompt, **options) for _ in range(2)]
        answers += [self.once(prompt, **options, **plain) for _ in range(2)]
        self.assertEqual([answer["restored"] for answer in answers], [0, 299, 0, 299])

    def test_a_llama_that_wants_all_logits_computes_them(self):
        prompt = text(0, 300)
        self.once(prompt)
        plain = self.once(prompt, address="", logits_all=True, more={"logprobs": 2, "echo": True})
        answer = self.once(prompt, logits_all=True, more={"logprobs": 2, "echo": True})
        self.assertEqual((answer["restored"], answer["computed"]), (0, 300))
        self.assertEqual(answer["text"], plain["text"])

    def test_nothing_of_a_llama_that_takes_images_is_stored_or_restored(self):
        llama = self.start_llama()
        handler = "object.__new__(api.llama_chat_format.Llava15ChatHandler)"
        llama.value(f"setattr(llm, 'chat_handler', {handler})")
        answer = llama.complete(text(0, 300))
        self.assertEqual((answer["restored"], answer["stored"]), (0, 0))


class TurnsTest(LlamaCppTest):
    """Models whose caches cannot be cut anywhere. Tokens, for random weights say no text."""

    def goes_on(self, write: Any, **options: Any) -> None:
        model = self.home / "turns.gguf"
        write(model)
        options["model"] = model
        prompt = list(text(0, 600).encode())
        first = self.once(prompt, **options)
        length = len(first["tokens"])  # bytes that begin no character go on until one ends
        self.assertEqual(first["stored"], length)
        turn = first["tokens"] + list(text(3000, 100).encode())
        branch = prompt[:300] + list(text(5000, 50).encode())
        plain = {"address": "", **options}
        answer = self.once(turn, **options)
        self.assertEqual((answer["restored"], answer["computed"]), (length, 100))
        self.assertEqual(answer["tokens"], self.once(turn, **plain)["tokens"])
        answer = self.once(branch, **options)
        self.assertEqual(answer["tokens"], self.once(branch, **plain)["tokens"])
        # One process that goes back to where its own window is gone.
        llama = self.start_llama(**options)
        llama.complete(turn)
        back = llama.complete(branch)
        self.assertEqual(back["tokens"], self.once(branch, **plain)["tokens"])

    def test_L5_a_model_with_sliding_layers_goes_on_from_the_end_of_an_answer(self):
        self.goes_on(make_gguf.write_sliding)

    def test_L5_a_model_with_recurrent_layers_goes_on_from_the_end_of_an_answer(self):
        self.goes_on(make_gguf.write_hybrid)


class MemoryTest(LlamaCppTest):
    VOCABULARY = 65_536
    SLACK = 192 << 10  # lists of tokens; one row of logits has 256 KiB
    BATCH = 512

    def peaks(self, address: str | None = None) -> list[tuple[int, int]]:
        """Python's most memory in a completion, and the size of its state: storing, restoring, and
        with nothing to do."""
        model = self.home / "wide.gguf"
        if not model.exists():
            make_gguf.write_wide(model, self.VOCABULARY)
        seen = []
        prompt = list(text(0, 2000).encode())
        for new in (True, True, False):
            if new:
                llama = self.start_llama(address, model, n_batch=self.BATCH)
                llama.complete([1] * 50, 1)  # what is imported late
            answer = llama.complete(prompt, 2, traced=True)
            seen.append((answer["peak"], answer["state"]))
            if address is None:
                self.assertEqual(answer["restored"], 1999 if len(seen) == 2 else 0)
        return seen

    def test_L8_no_allocation_above_the_state_itself_and_none_of_the_size_of_logits(self):
        self.assertGreater(self.VOCABULARY * 4, self.SLACK)
        stored, restored, nothing = self.peaks()
        for peak, state in (stored, restored):
            self.assertGreater(state, 10 * self.SLACK // 2)
            self.assertGreater(peak, state // 2)
            self.assertLessEqual(peak, state + self.SLACK)
        self.assertLessEqual(nothing[0], self.SLACK)

    def test_L8_the_same_measure_sees_what_llama_cpp_pythons_own_cache_copies(self):
        for peak, state in self.peaks("own")[:1]:
            self.assertGreater(peak, self.BATCH * self.VOCABULARY * 4 + 2 * state)

    def test_L8_save_state_of_others_is_untouched_and_all_is_undone_without_the_cache(self):
        llama = self.start_llama()
        llama.complete(text(0, 300))
        self.assertEqual(llama.value("llm.save_state().n_tokens"), "307")
        self.assertEqual(llama.value("len(llm.save_state().llama_state) > 307"), "True")
        self.assertEqual(llama.value("(llm.set_cache(None), llm.save_state().n_tokens)[1]"), "307")
        self.assertEqual(llama.value("'save_state' in vars(llm)"), "False")
        answer = llama.complete(text(50, 200))
        self.assertEqual((answer["restored"], answer["stored"]), (0, 0))


class FailureTest(LlamaCppTest):
    def warnings(self, llama: Llama) -> list[str]:
        return [line for line in llama.log().splitlines() if line.startswith("LOG WARNING")]

    def test_L6_without_prefixd_all_goes_on_and_one_line_says_why(self):
        prompt = text(0, 300)
        plain = self.once(prompt, address="")
        llama = self.start_llama(f"unix://{self.home}/nobody.sock")
        for _ in range(3):
            self.assertEqual(llama.complete(prompt)["tokens"], plain["tokens"])
            llama.complete(text(5000, 100))
        self.assertEqual(len(self.warnings(llama)), 1, llama.log())
        self.assertIn("no daemon at", self.warnings(llama)[0])

    def test_L6_a_prefixd_that_hangs_delays_no_completion_beyond_the_deadlines(self):
        prompt = text(0, 300)
        llama = self.start_llama()
        first = llama.complete(prompt)
        quick = llama.complete(text(7000, 300))["took_s"]
        self.daemon.hang()
        self.addCleanup(self.daemon.send, signal.SIGCONT)
        for begin in (0, 1000, 2000, 0):
            answer = llama.complete(text(begin, 300))
            self.assertLess(answer["took_s"], 10 * quick + 20)  # without deadlines it would never end
            self.assertEqual((answer["restored"], answer["stored"]), (0, 0))
            if begin == 0:
                self.assertEqual(answer["tokens"], first["tokens"])
        self.assertEqual(len(self.warnings(llama)), 1, llama.log())
        other = self.start_llama()  # waits for prefixd as long as its first try may take
        self.assertLess(other.opened_s, SLACK_S)
        self.assertEqual(other.complete(prompt)["tokens"], first["tokens"])

    def test_L6_a_prefixd_that_comes_back_is_used_again(self):
        prompt = text(0, 300)
        llama = self.start_llama()
        llama.complete(prompt)
        self.daemon.stop(signal.SIGKILL)
        llama.complete(text(5000, 300))
        self.daemon = self.start_daemon()
        self.daemon.wait_for_sessions(1)
        answer = llama.complete(prompt)
        self.assertEqual((answer["restored"], answer["computed"]), (299, 1))
        self.assertIn("prefixd is back", llama.log())


if __name__ == "__main__":
    unittest.main()
