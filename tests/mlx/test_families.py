"""X1: conversations with a model of each family, on two servers that share prefixd, are those of
mlx_lm.server alone, and as much of them is cached.

Three server processes go through all families: each loads the model that a request names. Turns go
to `one`, `two` and `one` again. Between the turns of the second conversation prefixd is restarted,
once with its arena lost, between those of the third it is killed.
"""

import signal
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import families
from conversation import TURNS, Conversation
from processes import Answer, Daemon, Server

PLAIN = ["--prompt-cache-size=100"]  # of its least recently used ones it shall need none
NO_CACHE = ["--prompt-cache-size=0"]
CONVERSATIONS = 3


@dataclass
class Row:
    """What the table says of a family."""

    family: str
    classes: str
    answers: str = "not all"
    plain_cached: int = 0
    cached: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        cached = f"{self.plain_cached:5} {self.cached:5}"
        return f"{self.family:22} {self.answers:8} {cached} {self.seconds:6.1f}  {self.classes}"


@dataclass
class Asked:
    """A turn as plain mlx_lm.server and the servers on prefixd answered it."""

    where: str
    plain: Answer
    here: Answer
    expected: list[int]

    @property
    def differs(self) -> bool:
        return self.here.tokens != self.expected

    @property
    def plain_wrong(self) -> bool:
        return self.plain.tokens != self.expected

    @property
    def cached_less(self) -> bool:
        return self.here.cached_tokens < self.plain.cached_tokens

    @property
    def cached_elsewhere(self) -> bool:
        return self.here.cached_tokens != self.plain.cached_tokens


class ConversationsWithEveryFamily(unittest.TestCase):
    rows: list[Row] = []

    @classmethod
    def setUpClass(cls):
        temp = tempfile.TemporaryDirectory(prefix="prefixd-families-")
        cls.addClassCleanup(temp.cleanup)
        cls.folder = Path(temp.name)
        cls.servers: dict[str, Server] = {}
        cls.daemon = Daemon(cls.folder / "daemon")
        cls.addClassCleanup(lambda: cls.daemon.lose_arena())
        cls.addClassCleanup(lambda: cls.daemon.stop())
        for name in ("plain", "one", "two"):  # which start side by side
            cls.server(name)

    @classmethod
    def tearDownClass(cls):
        head = f"{'family':22} {'answers':8} {'plain':>5} {'here':>5} {'s':>6}  caches"
        print("", "Cached tokens of plain mlx_lm.server and of prefixd's:", head, sep="\n")
        print(*cls.rows, sep="\n", flush=True)

    @classmethod
    def server(cls, name: str) -> Server:
        """The one of that name, started anew if it has ended."""
        if name not in cls.servers or cls.servers[name].ended():
            flags = {"plain": PLAIN, "cold": NO_CACHE}.get(name, [])
            address = cls.daemon.address if name in ("one", "two") else None
            server = Server(cls.folder, name, None, flags, address)
            cls.addClassCleanup(server.stop)
            cls.servers[name] = server
        return cls.servers[name]

    def converse_with(self, family: str) -> None:
        row = Row(family, families.cache_classes(family))
        self.rows.append(row)
        began = time.monotonic()
        try:
            asked = self.asked_of(family)
        finally:
            row.seconds = time.monotonic() - began
        row.plain_cached = sum(turn.plain.cached_tokens for turn in asked)
        row.cached = sum(turn.here.cached_tokens for turn in asked)
        differ = sum(turn.differs for turn in asked)
        row.answers = f"{differ} differ" if differ else "equal"
        self.judge(family, asked)

    def judge(self, family: str, asked: list[Asked]) -> None:
        """One failure that says all that is wrong."""
        wrong = []
        for turn in asked:
            cached = f"{turn.here.cached_tokens} tokens cached, plain {turn.plain.cached_tokens}"
            if turn.here.prompt_tokens != turn.plain.prompt_tokens:
                wrong.append(f"{turn.where}: another prompt")
            if turn.differs and not (family in families.AS_CACHED and turn.cached_elsewhere):
                wrong.append(f"{turn.where}: another answer, {cached}")
            if turn.cached_less and not turn.plain_wrong and family not in families.NOT_HELD:
                wrong.append(f"{turn.where}: {cached}")
        self.assertFalse(wrong, "\n" + "\n".join(wrong))

    def asked_of(self, family: str) -> list[Asked]:
        """Every turn of every conversation with a model of that family."""
        model = families.write_family(self.folder / family, family)
        names = ["plain", "one", "two"] + ["cold"] * (family in families.PLAIN_WRONG)
        servers = {name: self.server(name) for name in names}
        began = {name: len(server.log()) for name, server in servers.items()}
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(lambda server: server.load(model), servers.values()))
        asked = [
            turn
            for number in range(CONVERSATIONS)
            for turn in self.conversation(family, servers, number)
        ]
        for name, server in servers.items():
            self.assertNotIn("Traceback", server.log()[began[name] :], name)
        return asked

    def conversation(self, family: str, servers: dict[str, Server], number: int) -> list[Asked]:
        sides = {name: Conversation(number) for name in servers if name not in ("one", "two")}
        here = Conversation(number)
        asked = []
        for turn in range(TURNS):
            if turn > 0:
                self.between_turns(number, turn)
                if family not in families.NOT_HELD:
                    servers["one"].wait_until_shared()
                    servers["two"].wait_until_shared()
            name = ("one", "two")[turn % 2]
            with ThreadPoolExecutor(1) as pool:  # the engines on one core, prefixd's on another
                others = pool.submit(
                    lambda: {side: told.ask(servers[side]) for side, told in sides.items()}
                )
                answer = here.ask(servers[name])
            answers = others.result()
            where = f"turn {turn + 1} of conversation {number + 1}, on {name}"
            expected = answers.get("cold", answers["plain"]).tokens
            asked.append(Asked(where, answers["plain"], answer, expected))
        return asked

    def between_turns(self, number: int, turn: int) -> None:
        if number == 1:
            self.restart(signal.SIGTERM, reboot=turn == TURNS - 1)
        elif number == 2:
            self.restart(signal.SIGKILL)

    def restart(self, how: signal.Signals, reboot: bool = False) -> None:
        sessions = self.daemon.control("stats")["sessions"]
        self.daemon.stop(how)
        if reboot:
            self.daemon.lose_arena()
        type(self).daemon = Daemon(self.folder / "daemon")
        self.daemon.wait_for_sessions(sessions)


def _add_test(family: str) -> None:
    def test(self: ConversationsWithEveryFamily) -> None:
        self.converse_with(family)

    setattr(ConversationsWithEveryFamily, f"test_X1_{family}", test)


for _family in families.selected():
    _add_test(_family)


if __name__ == "__main__":
    unittest.main()
