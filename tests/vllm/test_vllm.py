"""prefixd.vllm with real engines of vLLM, each in a process of its own."""

from __future__ import annotations

import os
import signal
import time
import unittest

import numpy as np
from engines import (
    PAGE,
    Answer,
    DaemonTest,
    Engine,
    assert_as_alone,
    most,
    prompt,
    wait_for_tokens,
)
from prefixd_process import wait_for
from stored import damage, first_rows, rows

LONG, OTHER, SHARED = prompt(0, 3000), prompt(4000, 2100), prompt(9000, 700)
ANSWER = 140  # tokens, more than a page
DEADLINES_S = 0.2 + 0.2 + 2.0  # of the lookup, of the lease, of its pages


class VllmTest(DaemonTest):
    """Two engines on one prefixd, one after another. The tests of this class leave both running."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        first = cls.engine("first", one_process=True)
        cls.cold = first.ask(LONG, max_tokens=300)
        wait_for_tokens(cls.daemon, 3200 // 64 * 64)  # whole pages, those of the answer too
        first.kill()
        cls.daemon.stop(signal.SIGKILL)
        cls.start_daemon()
        cls.one = cls.engine("one")

    @classmethod
    def engine(cls, name: str, **settings: object) -> Engine:
        engine = Engine(cls.folder, name, cls.daemon.address, **settings)
        cls.addClassCleanup(engine.end)
        engine.wait_until_shared()
        return engine

    @classmethod
    def lose_pages(cls) -> None:
        """Ends prefixd, and starts it with what is on its SSD alone, some pages of it damaged."""
        assert cls.daemon.control("flush") is not None
        cls.daemon.stop()
        cls.daemon.lose_arena()
        damage(cls.folder / "d" / "ssd")
        cls.start_daemon()
        cls.daemon.wait_for_sessions(2)

    def test_V1_a_restart_of_both_between_equal_prompts_hits(self) -> None:
        self.one.ask(prompt(0, 10), max_tokens=1, forget=True)
        loaded = self.one.ask(LONG, max_tokens=300)
        own = self.one.ask(LONG, max_tokens=300)
        self.assertEqual(self.cold[0].cached, 0)
        self.assertEqual(loaded.external_hits, most(3000))
        self.assertEqual(loaded[0].cached, most(3000))
        self.assertEqual((own.external_hits, own[0].cached), (0, most(3000)))
        self.assertEqual(loaded[0].tokens, self.cold[0].tokens)
        self.assertEqual(loaded[0], own[0])  # log probabilities to the bit

    def test_V1_an_answer_is_a_prefix_of_the_next_turn(self) -> None:
        turn = LONG + self.cold[0].tokens[0] + prompt(7000, 100)
        loaded = self.one.ask(turn, max_tokens=4, forget=True)
        self.assertEqual(loaded[0].cached, (3000 + 299) // PAGE * PAGE)

    def test_V1_any_engine_reads_the_rows(self) -> None:
        key, value = rows(self.daemon.address, LONG, 0, most(3000))
        expected_key, expected_value = first_rows(LONG[: most(3000)])
        np.testing.assert_allclose(key[0], expected_key, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(value[0], expected_value, rtol=1e-3, atol=1e-3)

    def test_V2_a_corrupt_page_is_computed_again(self) -> None:
        before = self.one.ask(LONG, max_tokens=24, forget=True)
        wait_for("hits", lambda: self.hits(LONG))
        self.lose_pages()
        # vLLM asks prefixd nothing for a second after an answer that came late.
        wait_for("hits of what came later", lambda: self.hits(prompt(12000, 200)))
        answers = self.one.ask(LONG, LONG[:2000], max_tokens=24, forget=True)
        self.assertEqual(answers[0].tokens, before[0].tokens)
        self.assertEqual({one.reasons[0] for one in answers.each}, {"length"})
        self.assertIn("Recovered from KV load failure", self.one.log())
        healed = wait_for("all of it to be there again", lambda: self.whole(LONG, before[0]))
        self.assertEqual(healed.tokens, before[0].tokens)

    def whole(self, tokens: list[int], like: Answer) -> Answer | None:
        answer = self.one.ask(tokens, max_tokens=24, forget=True)[0]
        return answer if answer.cached == like.cached else None

    def test_V2_a_hung_prefixd_delays_a_request_by_its_deadlines_at_most(self) -> None:
        before = self.one.ask(OTHER, max_tokens=1)
        alone = self.one.ask(prompt(20000, 2100), max_tokens=1)  # as long, and as unknown
        self.daemon.hang()
        self.addCleanup(self.daemon.send, signal.SIGCONT)
        hung = self.one.ask(OTHER, max_tokens=1, forget=True)
        self.assertEqual((hung.external_hits, hung[0].tokens), (0, before[0].tokens))
        self.assertLess(hung.seconds, 3 * max(alone.seconds, before.seconds) + DEADLINES_S)
        self.daemon.send(signal.SIGCONT)
        wait_for("hits again", lambda: self.hits(OTHER))

    def test_V2_a_killed_prefixd_costs_hits_alone(self) -> None:
        before = self.one.ask(OTHER, max_tokens=8)
        wait_for("hits", lambda: self.hits(OTHER))
        self.daemon.stop(signal.SIGKILL)
        gone = self.one.ask(OTHER, max_tokens=8, forget=True)
        self.assertEqual((gone.external_hits, gone[0].tokens), (0, before[0].tokens))
        self.start_daemon()
        wait_for("hits again", lambda: self.hits(OTHER))

    def hits(self, tokens: list[int]) -> bool:
        return self.one.ask(tokens, max_tokens=1, forget=True).external_hits == most(len(tokens))

    def test_V3_another_cache_salt_is_another_space(self) -> None:
        self.one.ask(SHARED, max_tokens=1, salt="a")
        wait_for("hits with one salt", lambda: self.salted("a") == most(700))
        self.assertEqual(self.salted("b"), 0)
        wait_for("hits with the other", lambda: self.salted("b") == most(700))

    def salted(self, salt: str) -> int:
        return self.one.ask(SHARED, max_tokens=1, forget=True, salt=salt).external_hits

    def test_V1_two_engines_share_V3_but_not_across_data_types(self) -> None:
        self.one.ask(OTHER, max_tokens=1)
        wait_for("hits", lambda: self.hits(OTHER))
        other = self.engine("other", one_process=True)
        self.assertEqual(other.ask(OTHER, max_tokens=1).external_hits, most(2100))
        other.end()
        other = self.engine("bfloat16", dtype="bfloat16", one_process=True)
        self.assertEqual(other.ask(OTHER, max_tokens=1).external_hits, 0)
        wait_for(
            "hits in its own space",
            lambda: other.ask(OTHER, max_tokens=1, forget=True).external_hits == most(2100),
        )
        other.end()

    def test_V3_whole_pages_are_a_space_of_their_own(self) -> None:
        self.one.ask(OTHER, max_tokens=1)
        wait_for("hits", lambda: self.hits(OTHER))
        other = self.engine("whole", extra={"rows": False}, one_process=True)
        cold = other.ask(OTHER, max_tokens=24)
        self.assertEqual(cold.external_hits, 0)

        def again() -> bool:
            answers = other.ask(OTHER, max_tokens=24, forget=True)
            self.assertEqual(answers[0].tokens, cold[0].tokens)
            return answers.external_hits == most(2100)

        wait_for("hits in its own space", again)
        other.end()


MINUTES = float(os.environ.get("PREFIXD_VLLM_MINUTES", "0"))
REQUESTS = 64 if MINUTES else 18  # at once, of three beginnings


class PressureTest(DaemonTest):
    """An engine with little room and small steps, beside one without prefixd."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.victim = cls.folder / "victim"
        settings = {"max_num_batched_tokens": 512, "max_num_seqs": 64}
        plain = Engine(cls.folder, "plain", None, one_process=True, **settings)
        cls.addClassCleanup(plain.end)
        plain.wait_until_shared()
        cls.prompts = [
            prompt(1000 * (at % 3), 600 + 70 * (at % 18)) + prompt(30000 + 500 * at, 90)
            for at in range(REQUESTS)
        ]
        cls.expected = [plain.ask(one, max_tokens=ANSWER)[0] for one in cls.prompts]
        plain.end()
        cls.engine = Engine(
            cls.folder,
            "pressed",
            cls.daemon.address,
            module="dying",
            environment={"PREFIXD_DIES": str(cls.victim)},
            num_gpu_blocks_override=45,  # 18 requests want up to 16 each
            **settings,
        )
        cls.addClassCleanup(cls.engine.end)
        cls.engine.wait_until_shared()

    def test_V4_chunks_preemption_and_many_at_once_change_no_answer(self) -> None:
        end = time.monotonic() + 60 * MINUTES
        rounds = preemptions = hits = 0
        enough = 20 * PAGE  # vLLM shares some itself
        # What one round stores, the next ones load; a busy machine stores it late.
        while rounds < 2 or (hits <= enough and rounds < 20) or time.monotonic() < end:
            rounds += 1
            answers = self.engine.ask(*self.prompts, max_tokens=ANSWER, forget=True)
            for answer, expected in zip(answers.each, self.expected, strict=True):
                assert_as_alone(self, answer, expected)
            preemptions, hits = preemptions + answers.preemptions, answers.external_hits
        self.assertGreater(preemptions, 0)
        self.assertGreater(hits, enough)
        if rounds > 2:
            said = f"{rounds} rounds of {len(self.prompts)} requests at once in {MINUTES:g} minutes"
            print(f"{said}, {preemptions} preemptions", flush=True)

    def test_V4_several_sequences_of_one_prompt_go_on_from_one_load(self) -> None:
        self.engine.ask(self.prompts[5], max_tokens=24)
        wait_for("hits", lambda: self.hits(self.prompts[5]))
        answers = self.engine.ask(
            self.prompts[5], max_tokens=24, n=4, temperature=1e-4, forget=True
        )
        self.assertEqual(len(answers[0].tokens), 4)
        self.assertGreaterEqual(answers.external_hits, most(len(self.prompts[5])))
        assert_as_alone(self, answers[0], self.expected[5])

    def test_V2_a_prefixd_that_dies_between_promise_and_load_is_no_error(self) -> None:
        self.engine.ask(self.prompts[7], max_tokens=24)
        wait_for("hits", lambda: self.hits(self.prompts[7]))
        self.victim.write_text(str(self.daemon._child.pid))
        answers = self.engine.ask(self.prompts[7], max_tokens=24, forget=True)
        self.assertFalse(self.victim.exists())
        wait_for("prefixd to be dead", self.daemon.ended)
        self.assertEqual(answers[0].reasons, ["length"])
        assert_as_alone(self, answers[0], self.expected[7])
        self.assertIn("Recovered from KV load failure", self.engine.log())
        self.start_daemon()
        wait_for("hits again", lambda: self.hits(self.prompts[7]))

    def hits(self, tokens: list[int]) -> bool:
        answers = self.engine.ask(tokens, max_tokens=1, forget=True)
        return answers.external_hits == most(len(tokens))


if __name__ == "__main__":
    unittest.main()
