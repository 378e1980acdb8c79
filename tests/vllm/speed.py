"""What prefixd costs and gives a vLLM server: `tests/vllm/run BUILD_DIR speed`. No test: figures
depend on what else the machine does. PREFIXD_FORMAT: "raw", "8", "8,4" or "4"."""

from __future__ import annotations

import os
import random
import statistics
import unittest

from engines import DaemonTest, Engine, most, prompt
from prefixd_process import wait_for

ROUNDS = int(os.environ.get("PREFIXD_ROUNDS", "15"))
FORMAT = os.environ.get("PREFIXD_FORMAT", "raw")
ANSWER = 256  # tokens


class Speed(DaemonTest):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.alone = cls.engine("alone", None)
        cls.idle = cls.engine("idle", f"unix://{cls.folder}/nobody")
        cls.shared = cls.engine("shared", cls.daemon.address)

    @classmethod
    def engine(cls, name: str, address: str | None) -> Engine:
        engine = Engine(cls.folder, name, address, extra={"format": FORMAT})
        cls.addClassCleanup(engine.end)
        if name == "idle":
            engine._read()  # that it runs
        else:
            engine.wait_until_shared()
        return engine

    def test_the_first_token_at_4k_tokens(self) -> None:
        text = prompt(0, 4000)
        own, warm = [], []
        wait_for("hits", lambda: self.loads(text, warm))
        warm.clear()
        for _ in range(2 * ROUNDS):
            own.append(self.shared.ask(text, max_tokens=1).seconds)
            self.loads(text, warm)
        ratio = statistics.median(warm) / statistics.median(own)
        print(f"\n{FORMAT}: vLLM's own {ms(own)}, from prefixd {ms(warm)}: {ratio:.2f} x")

    def loads(self, text: list[int], times: list[float]) -> bool:
        answers = self.shared.ask(text, max_tokens=1, forget=True)
        times.append(answers.seconds)
        return answers.external_hits == most(len(text))

    def test_saving_beside_the_steps(self) -> None:
        """Prompts that nobody has, and their answers: vLLM alone, with a connector that finds no
        prefixd, and with saving, in turns."""
        chance = random.Random(1)
        engines = {"alone": self.alone, "without prefixd": self.idle, "with saving": self.shared}
        took: dict[str, list[float]] = {name: [] for name in engines}
        for at in range(ROUNDS + 1):
            text = [chance.randrange(256) for _ in range(2000)]
            turn = at % len(engines)
            for name in (*list(engines)[turn:], *list(engines)[:turn]):
                took[name].append(engines[name].ask(text, max_tokens=ANSWER).seconds)
        said = ", ".join(f"{name} {ms(times[1:])}" for name, times in took.items())
        print(f"\n{FORMAT}: 2,000 tokens and {ANSWER} of an answer: {said}")


def ms(times: list[float]) -> str:
    return f"{1000 * statistics.median(times):.1f} ms ({1000 * min(times):.1f} at best)"


if __name__ == "__main__":
    unittest.main()
