"""What prefixd publishes over ZeroMQ, as routers see it."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import zmq

from hosts import BLOCK, Host, Model, Worker, tokens_of
from prefixd_process import BUILD, DEADLINE_S, Process, wait_for
from routers import Cleared, Index, by_dynamo, by_llm_d, by_vllm

END = (-1).to_bytes(8, "big", signed=True)


class PublishingHost(Host):
    """A host with an SSD tier that publishes its events; what it stored outlives a kill."""

    def __init__(self, folder: Path, *options: str, publish: str = "") -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.arena = Path("/dev/shm") / f"{folder.parent.name}-{folder.name}"
        self.address = f"unix://{folder / 'prefixd.sock'}"
        self.publish, self.replay = publish or f"ipc://{folder / 'events'}", f"ipc://{folder / 'replay'}"
        command: list[Any] = ["env", "-i", BUILD / "prefixd", f"--socket={folder / 'prefixd.sock'}"]
        command += [f"--arena={self.arena}", "--ram=96MiB", "--log-interval=0s", "--ssd=512MiB"]
        command += [f"--directory={folder / 'ssd'}", "--ssd-floor=0", "--direct-io=off"]
        command += [f"--events-publish={self.publish}", f"--events-replay={self.replay}"]
        Process.__init__(self, [*command, *options], folder / "prefixd.log")
        self.wait_for_line("listening on")

    def dump(self) -> Index:
        """The daemon's own: whole blocks, as prefixctl shows them."""
        index = Index()
        command = [BUILD / "prefixctl", f"--server={self.address}", "--json", "events", "--once", "--tokens"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE_S, env={}, check=True)
        held: dict[str, Any] = {}
        for reply in map(json.loads, done.stdout.splitlines()):
            held.update((block["block_hash"], block) for block in reply["blocks"])
            for event in reply["events"]:
                block = event["block"]
                if event["kind"] in ("stored", "changed"):
                    held[block["block_hash"]] = block
                elif event["kind"] == "removed":
                    held.pop(block["block_hash"], None)
        for block in held.values():
            if block["tokens"] != BLOCK:
                continue
            name, parent = (int(block[field][-16:] or "0", 16) for field in ("block_hash", "parent_hash"))
            index.blocks[name] = (parent if block["first_token"] else None, tuple(block["token_ids"]))
            mediums = {"ram": "CPU", "ssd": "DISK", "mixed": "DISK"}
            index.mediums[name] = {mediums[tier] for tier in block["tiers"]}
        return index


class Subscriber:
    """A router: subscribes, asks for what it missed, and decodes with each of the three."""

    def __init__(self, host: PublishingHost, topic: bytes = b"") -> None:
        self.host, self.topic = host, topic
        self.context = zmq.Context()
        self.last = -1
        self.topics: set[bytes] = set()
        self.indexes = {decode: Index() for decode in (by_vllm, by_dynamo, by_llm_d)}
        self.subscribe()

    def subscribe(self) -> None:
        self.live = self.context.socket(zmq.SUB)
        self.live.setsockopt(zmq.SUBSCRIBE, self.topic)
        self.live.connect(self.host.publish)

    def leave(self) -> None:
        self.live.close(linger=0)

    def close(self) -> None:
        self.leave()
        self.context.term()

    def apply(self, topic: bytes, sequence: int, payload: bytes) -> None:
        self.last = sequence
        self.topics.add(topic)
        for decode, index in self.indexes.items():
            index.apply(decode(payload, BLOCK))

    def take(self, topic: bytes, number: bytes, payload: bytes) -> None:
        sequence = int.from_bytes(number, "big")
        if sequence <= self.last:
            if Cleared() not in by_vllm(payload, BLOCK):
                return  # it came by the replay before
            self.last = sequence - 1  # the clock was set back before prefixd began again
        if sequence > self.last + 1:
            self.catch_up()
        if sequence == self.last + 1:
            self.apply(topic, sequence, payload)

    def read(self) -> None:
        while self.live.poll(0):
            self.take(*self.live.recv_multipart())

    def catch_up(self) -> None:
        with self.context.socket(zmq.DEALER) as asks:
            asks.setsockopt(zmq.LINGER, 0)
            asks.connect(self.host.replay)
            asks.send_multipart([b"", (self.last + 1).to_bytes(8, "big")])
            while asks.poll(DEADLINE_S * 1000):
                empty, topic, number, payload = asks.recv_multipart()
                assert empty == b""
                if number == END:
                    return
                sequence = int.from_bytes(number, "big")
                if sequence == self.last + 1 or Cleared() in by_vllm(payload, BLOCK):
                    self.apply(topic, sequence, payload)
            raise TimeoutError("no replay")

    def equals(self, dump: Index) -> bool:
        self.read()
        self.catch_up()
        self.read()
        return all(index == dump for index in self.indexes.values())


class PublisherTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="prefixd_events_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def host(self, *options: str, **more: Any) -> PublishingHost:
        host = PublishingHost(self.folder / "host", *options, **more)
        self.addCleanup(host.stop)
        return host

    def subscriber(self, host: PublishingHost, *topic: bytes) -> Subscriber:
        subscriber = Subscriber(host, *topic)
        self.addCleanup(subscriber.close)
        return subscriber

    def worker(self, host: PublishingHost, name: str = "a model") -> Worker:
        worker = Worker(host, model=Model(name=name))
        self.addCleanup(worker.close)
        return worker

    def assert_equal(self, host: PublishingHost, subscriber: Subscriber) -> Index:
        """Once what prefixd does in the background is done."""
        def look() -> Index | None:
            dump = host.dump()
            return dump if subscriber.equals(dump) and host.dump() == dump else None

        return wait_for("the index of the routers to be prefixd's", look)

    def test_S5_vLLMs_classes_and_both_routers_decode_what_is_stored_spilled_and_cleared(self) -> None:
        host = self.host()
        subscriber, worker = self.subscriber(host), self.worker(host)
        tokens = tokens_of(1, 5 * BLOCK + 7)
        worker.store(tokens)
        host.flush()
        dump = self.assert_equal(host, subscriber)
        self.assertEqual(len(dump.blocks), 5)
        self.assertEqual({medium for one in dump.mediums.values() for medium in one}, {"CPU", "DISK"})
        self.assertEqual({one for _, part in dump.blocks.values() for one in part}, set(tokens[: 5 * BLOCK]))
        host.text("clear", "--all", "--yes")
        self.assertEqual(self.assert_equal(host, subscriber).blocks, {})
        self.assertEqual(subscriber.topics, {b""})

    def test_who_comes_late_or_was_away_has_what_prefixd_has(self) -> None:
        draw = random.Random(26)
        host = self.host()
        worker, subscriber = self.worker(host), self.subscriber(host)
        for number in range(60):
            worker.store(tokens_of(draw.randrange(20), BLOCK * draw.randrange(1, 9)))
            subscriber.read()
            if draw.random() < 0.5:
                subscriber.leave()
                worker.store(tokens_of(100 + number, 2 * BLOCK))
                subscriber.subscribe()
        host.flush()
        self.assertGreater(len(self.assert_equal(host, subscriber).blocks), 100)
        late = self.subscriber(host)
        self.assert_equal(host, late)

    def test_after_a_kill_routers_hear_what_was_recovered(self) -> None:
        host = self.host()
        subscriber = self.subscriber(host)
        worker = self.worker(host)
        for number in range(8):
            worker.store(tokens_of(number, 4 * BLOCK))
        before = self.assert_equal(host, subscriber)
        worker.close()
        for how in (signal.SIGKILL, signal.SIGTERM):
            host.again(how)
            after = self.assert_equal(host, subscriber)
            self.assertEqual(set(after.blocks), set(before.blocks))

    def test_who_was_away_while_prefixd_began_again_hears_that_it_did(self) -> None:
        host = self.host()
        subscriber, worker = self.subscriber(host), self.worker(host)
        worker.store(tokens_of(1, 4 * BLOCK))
        host.flush()
        self.assert_equal(host, subscriber)
        subscriber.leave()
        worker.close()
        host.text("clear", "--all", "--yes")
        host.again(signal.SIGKILL)
        worker = self.worker(host)
        for number in range(2, 10):  # more batches than the subscriber had of the life before
            worker.store(tokens_of(number, 2 * BLOCK))
            self.assert_equal(host, self.subscriber(host))
        host.flush()
        subscriber.subscribe()
        self.assertEqual(len(self.assert_equal(host, subscriber).blocks), 16)

    def test_the_topic_names_the_model(self) -> None:
        host = self.host("--events-topic=kv@10.0.0.7:8000@{model}")
        one, other = self.worker(host, "org/one"), self.worker(host, "org/other")
        one.store(tokens_of(1, 2 * BLOCK))
        other.store(tokens_of(2, 2 * BLOCK))
        both = self.subscriber(host, b"kv@")
        self.assert_equal(host, both)
        topics = {b"kv@10.0.0.7:8000@" + model for model in (b"", b"org/one", b"org/other")}  # none when prefixd began
        self.assertEqual(both.topics, topics)

    def test_an_address_beyond_loopback_is_said_and_one_in_use_ends_the_start(self) -> None:
        host = self.host(publish="tcp://127.0.0.1:*")
        address = host.wait_for_line(r"events: published at (tcp://127\.0\.0\.1:\d+)").group(1)
        self.assertNotIn("is not loopback", host.log())
        other = ["env", "-i", BUILD / "prefixd", f"--socket={self.folder / 'other.sock'}", "--arena=off", "--ram=64MiB"]
        other += ["--ssd=off", f"--events-publish={address}"]
        done = subprocess.run(list(map(str, other)), capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn(f"cannot bind {address}", done.stderr)
        host.stop()
        open_to_all = PublishingHost(self.folder / "open", publish="tcp://*:*")
        self.addCleanup(open_to_all.stop)
        open_to_all.wait_for_line(r"events: tcp://\S+ is not loopback")


if __name__ == "__main__":
    unittest.main()
