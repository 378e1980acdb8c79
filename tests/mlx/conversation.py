"""Conversations over the chat API that are longer than the windows of the families' models."""

import random

from processes import Answer, Server
from tiny_model import words

SYSTEM_TOKENS = 60
USER_TOKENS = (180, 40, 60)
"""Of the three turns; with the answers a conversation has some 430 tokens."""
ANSWER_TOKENS = 24
TURNS = len(USER_TOKENS)


def _said(tokens: int, seed: str) -> str:
    return words(random.Random(seed).choices(range(250), k=tokens))


class Conversation:
    """One side of it: what it was answered is in its next question."""

    def __init__(self, number: int):
        self._number = number
        self._messages = [{"role": "system", "content": _said(SYSTEM_TOKENS, "system")}]
        self.turn = 0

    def ask(self, server: Server) -> Answer:
        """The answer to the next turn."""
        user = _said(USER_TOKENS[self.turn], f"user {self._number} {self.turn}")
        self._messages.append({"role": "user", "content": user})
        answer = server.chat(self._messages, ANSWER_TOKENS)
        self._messages.append({"role": "assistant", "content": words(answer.tokens)})
        self.turn += 1
        return answer
