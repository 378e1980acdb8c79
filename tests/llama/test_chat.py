"""Conversations of OpenAI's own client through the proxy, beside a server that has none.

PREFIXD_LLAMA_MINUTES makes them go on, with new conversations, for so long."""

import concurrent.futures
import os
import time
import unittest
from dataclasses import dataclass
from typing import Any

import openai
from servers import Http, LlamaTest, text

TURNS = 3
CONVERSATIONS = 16
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_verse",
            "description": "Finds a verse of the Bible.",
            "parameters": {
                "type": "object",
                "properties": {"book": {"type": "string", "enum": ["Genesis", "Exodus"]}},
                "required": ["book"],
            },
        },
    }
]
# A model of Bible verses writes JSON only if it is pushed: the server's grammar for tools allows
# text before a call. One byte is one token, and the longest call has so many.
PUSHED = {str(ord(byte)): bias for byte, bias in zip('{"}:,', (100, 60, 60, 40, 40))}
CALL = len('{"name":"find_verse","arguments":{"book":"Genesis"}}')
# llama.cpp computes a token with whatever else is in its batch, and rounds accordingly: without
# any proxy, the same request asked alone and beside others may part where its two best tokens are
# this near (log of probabilities).
NEAR = 0.05


@dataclass
class Turn:
    asked: dict[str, Any]
    message: dict[str, Any]

    @property
    def content(self) -> str:
        return self.message.get("content") or ""

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Of tools, without their random ids."""
        return [call["function"] for call in self.message.get("tool_calls") or []]


def client_of(http: Http) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{http.port}/v1", api_key="none")


def ask(client: openai.OpenAI, asked: dict[str, Any], stream: bool = False) -> dict[str, Any]:
    """The answer as the message that goes on the conversation."""
    if not stream:
        message = client.chat.completions.create(**asked).choices[0].message
        return message.model_dump(exclude_none=True)
    parts = client.chat.completions.create(**asked, stream=True)
    content = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    return {"role": "assistant", "content": content}


def converse(http: Http, number: int) -> list[Turn]:
    """Every fourth conversation must call a tool in its second turn, and is told the result; of
    the others, those of even numbers are streamed."""
    client = client_of(http)
    begin = 1000 * number % 180_000
    with_tools = number % 4 == 3
    messages: list[Any] = [{"role": "system", "content": text(begin, 200)}]
    turns = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": text(begin + 300 + turn, 60)})
        asked = {"model": "bible", "messages": list(messages), "max_tokens": 8, "temperature": 0}
        if with_tools:
            asked |= {"tools": TOOLS, "tool_choice": "none"}
        if with_tools and turn == 1:
            asked |= {"tool_choice": "required", "max_tokens": CALL, "logit_bias": PUSHED}
        turns.append(Turn(asked, ask(client, asked, stream=number % 2 == 0)))
        messages.append(turns[-1].message)
        for call in turns[-1].message.get("tool_calls") or []:
            result = {"role": "tool", "tool_call_id": call["id"], "content": text(begin, 30)}
            messages.append(result)
    return turns


def gap_where_it_parts(choice: Any, content: str) -> float:
    """How much likelier the server's token was than its next best, where `content` has another."""
    said = ""
    for token in choice.logprobs.content:
        said += token.token
        if not content.startswith(said):
            best, second = token.top_logprobs[:2]
            return best.logprob - second.logprob
    return 0.0


class ChatTest(LlamaTest):
    def part(self, turn: Turn, plain: openai.OpenAI) -> bool:
        """Whether a server without a proxy and without a cache takes another of two equally good
        tokens. Fails if it answers otherwise."""
        whole = turn.asked | {"extra_body": {"cache_prompt": False}}
        if turn.calls:
            self.assertEqual(Turn(whole, ask(plain, whole)).calls, turn.calls)
            return False
        whole |= {"logprobs": True, "top_logprobs": 2}
        choice = plain.chat.completions.create(**whole).choices[0]
        if choice.message.content == turn.content:
            return False
        gap = gap_where_it_parts(choice, turn.content)
        both = f"{turn.content!r}, without the proxy {choice.message.content!r}"
        self.assertLess(gap, NEAR, both)
        return True

    def test_L7_conversations_through_the_proxy_are_those_of_a_server_without_one(self):
        slots: dict[str, Any] = {"slots": 4, "unified": False, "context": 4 * 4096}
        patient = ("--lookup-deadline-ms", "30000")  # on a busy machine
        proxy = self.start_proxy(self.start_server(**slots), more=patient)
        plain = client_of(self.start_server(**slots))
        end = time.monotonic() + 60 * float(os.environ.get("PREFIXD_LLAMA_MINUTES", "0"))
        turns: list[Turn] = []
        parted = rounds = 0
        while rounds == 0 or time.monotonic() < end:
            numbers = range(rounds * CONVERSATIONS, (rounds + 1) * CONVERSATIONS)
            with concurrent.futures.ThreadPoolExecutor(CONVERSATIONS) as pool:
                said = list(pool.map(lambda number: converse(proxy, number), numbers))
            asked = [turn for conversation in said for turn in conversation]
            parted += sum(self.part(turn, plain) for turn in asked)
            turns += asked
            rounds += 1
        calls = sum(len(turn.calls) for turn in turns)
        print(f"L7 {len(turns)} turns, {calls} calls of tools, {parted} parted at equal tokens")
        self.assertEqual(calls, rounds * CONVERSATIONS // 4)
        self.assertLessEqual(parted, len(turns) // 20)
        self.assertIn('prefixd_llama_slots{state="free"} 4', proxy.get("/metrics"))
        self.assertEqual(proxy.count("requests"), len(turns))
        self.assertGreaterEqual(proxy.count("restores"), len(turns) // 3, proxy.log())
        self.assertEqual(proxy.count("failed_saves"), 0, proxy.log())
        self.assertEqual(proxy.count("failed_restores"), 0, proxy.log())


if __name__ == "__main__":
    unittest.main()
