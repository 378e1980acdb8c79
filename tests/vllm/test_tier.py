"""PrefixdTier behind vLLM's real TieringOffloadingManager, in memory of the CPU; see tiers.py."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from engines import MODEL, Answers, DaemonTest, Engine, prompt, wait_for_tokens
from prefixd_process import Daemon, wait_for
from stored import damage
from tiers import (
    BLOCK,
    BLOCKS,
    CHUNK_BYTES,
    PLACES,
    Server,
    bytes_of,
    documented,
    key_of,
    loaded,
    said,
)
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_offload.base import Locality, make_offload_key
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager
from vllm.v1.request import Request

from prefixd.vllm import OptionError, PrefixdTier
from prefixd.vllm.tier_chunks import TOKENS
from prefixd.vllm.tier_identity import TierIdentity
from prefixd.vllm.tier_options import TierOptions

LOOKUP_S = 1.0  # deadline in the test of a hung prefixd
SLOW_CALL_S = LOOKUP_S / 2  # no call of the scheduler waits for a lookup
CHUNK = BLOCK * BLOCKS
LONG = prompt(0, 3000)
ENGINE_CHUNK = 256  # tokens; vLLM's pages on the CPU have 128
FOUND = len(LONG) // ENGINE_CHUNK * ENGINE_CHUNK  # whole chunks


class TierTest(DaemonTest):
    """Each test has chunks of its own."""

    def serve(self, model: Path = MODEL, address: str = "", **more: Any) -> Server:
        server = Server(said(address or self.daemon.address, **more), model)
        self.addCleanup(server.close)
        return server

    def restart(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.daemon.stop(how)
        self.start_daemon()

    def copied_model(self, name: str) -> Path:
        folder = self.folder / name / MODEL.name
        shutil.copytree(MODEL, folder)
        return folder

    def test_V6_the_documented_command_makes_vllms_manager_with_this_tier(self) -> None:
        (entry,) = documented()["kv_connector_extra_config"]["secondary_tiers"]
        self.assertEqual((entry["type"], entry["module_path"]), ("PrefixdTier", "prefixd.vllm"))
        server = self.serve()
        self.assertIs(type(server.manager), TieringOffloadingManager)
        self.assertIs(type(server.tier), PrefixdTier)

    def test_V6_chunks_that_vllm_evicted_come_back_byte_for_byte(self) -> None:
        server = self.serve().wait_until_shared()
        server.store(*range(100, 105))
        server.store(*range(110, 110 + PLACES))
        self.assertFalse(any(map(server.has_itself, range(100, 105))))
        self.assertEqual(loaded(server, range(100, 106)), [True] * 5 + [False])
        self.assertEqual(loaded(server, range(110, 110 + PLACES)), [True] * PLACES)
        self.assertEqual(server.failed_jobs(), (0, 0))
        self.assertLess(server.slowest_s, SLOW_CALL_S)

    def test_V6_chunks_of_another_group_of_caches_are_others(self) -> None:
        server = self.serve().wait_until_shared()
        server.store(120)
        server.forget()
        self.assertEqual(server.load(120, group=1), [None])
        server.store_keys({key_of(120, 1): bytes_of(121)})
        server.finish()
        server.forget()
        self.assertEqual(loaded(server, [120]), [True])
        (other,) = server.load(120, group=1)
        np.testing.assert_array_equal(other, bytes_of(121))

    def test_V6_requests_of_vllms_scheduler_hit_up_to_where_their_tokens_part(self) -> None:
        init_none_hash(sha256)
        server = self.serve().wait_until_shared()
        tokens = prompt(0, 3 * CHUNK + 10)
        hashes = self.request("first", tokens).block_hashes[BLOCKS - 1 :: BLOCKS]
        server.store_keys(
            {make_offload_key(one, 0): bytes_of(130 + at) for at, one in enumerate(hashes)}
        )
        server.finish()
        server.forget()
        parted = tokens[: CHUNK + 5] + prompt(9000, 2 * CHUNK)
        self.assertEqual(self.matched(server, self.request("same", tokens)), 3 * CHUNK)
        self.assertEqual(self.matched(server, self.request("parted", parted)), CHUNK)
        self.assertEqual(self.matched(server, self.request("salted", tokens, "salt")), 0)

    def request(self, name: str, tokens: list[int], salt: str | None = None) -> Request:
        hasher = get_request_block_hasher(BLOCK, sha256)
        sampling = SamplingParams(max_tokens=1)
        return Request(name, tokens, sampling, None, block_hasher=hasher, cache_salt=salt)

    def matched(self, server: Server, request: Request) -> int:
        scheduler = server.connector.connector_scheduler
        scheduler.on_new_request(request)

        def ask() -> int | None:
            tokens, _ = scheduler.get_num_new_matched_tokens(request, 0)
            server.step()
            return None if tokens is None else tokens + 1

        return wait_for("an answer", ask, tick_s=0.002) - 1

    def test_V6_another_process_loads_what_this_one_stored(self) -> None:
        server = self.serve().wait_until_shared()
        server.store(*range(140, 144))
        script = Path(__file__).with_name("tiers.py")
        command = [sys.executable, script, self.daemon.address, *map(str, range(139, 144))]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        self.assertIn(
            f"loaded {json.dumps([False] + [True] * 4)}", done.stdout, done.stderr[-4000:]
        )

    def test_V6_a_killed_prefixd_that_is_back_has_the_chunks(self) -> None:
        server = self.serve().wait_until_shared()
        server.store(*range(150, 154))
        server.forget()
        self.restart(signal.SIGKILL)
        wait_for("hits", lambda: all(loaded(server, range(150, 154))))
        fresh = self.serve().wait_until_shared()
        self.assertEqual(loaded(fresh, range(150, 154)), [True] * 4)

    def test_V6_a_prefixd_killed_amid_jobs_gives_right_bytes_or_none(self) -> None:
        server = self.serve().wait_until_shared()
        for kill in range(3):
            seeds = range(160 + 10 * kill, 160 + 10 * kill + PLACES)
            server.store_keys({key_of(seed): bytes_of(seed) for seed in seeds})
            self.daemon.stop(signal.SIGKILL)
            server.finish()
            self.assertEqual(loaded(server, seeds), [True] * PLACES)  # vLLM's own memory
            server.forget()
            self.assertEqual(loaded(server, seeds), [False] * PLACES)
            self.start_daemon()
            self.wait_until_works(server, 200 + kill)
            loaded(server, seeds)

    def wait_until_works(self, server: Server, seed: int) -> None:
        """Until a chunk can be stored and comes back."""

        def works() -> bool:
            server.forget()
            server.store(seed)
            server.forget()
            return loaded(server, [seed]) == [True]

        wait_for("jobs to work", works)

    def test_V6_without_prefixd_jobs_fail_until_it_is_there(self) -> None:
        folder = self.folder / "late"
        with self.assertLogs("vllm.prefixd") as said_:
            server = self.serve(address=f"unix://{folder / 'prefixd.sock'}").wait_until_shared()
            server.store(210, 211)
            server.store(212)
            self.assertEqual(server.failed_jobs(), (2, 0))
            server.forget()
            self.assertEqual(loaded(server, [210, 211, 212]), [False] * 3)
            late = Daemon(folder)
            self.addCleanup(late.lose_arena)
            self.addCleanup(late.stop, signal.SIGKILL)
            self.wait_until_works(server, 213)
        levels = [record.levelname for record in said_.records]
        self.assertEqual(levels.count("WARNING"), 1, said_.output)
        self.assertIn("prefixd is back", said_.output[-1])

    def test_V6_a_hung_prefixd_fails_jobs_by_their_deadline_and_delays_no_call(self) -> None:
        deadlines = {"lookup_deadline_ms": int(LOOKUP_S * 1000), "store_deadline_ms": 1000}
        server = self.serve(**deadlines).wait_until_shared()
        server.store(*range(220, 224))
        server.forget()
        self.addCleanup(self.daemon.send, signal.SIGCONT)
        began = 0.0

        def hang() -> None:
            nonlocal began
            self.daemon.hang()
            began = time.monotonic()

        with self.assertLogs("vllm.prefixd", "WARNING") as said_:
            self.assertEqual(server.load(*range(220, 224), before_jobs=hang), [None] * 4)
            self.assertLess(time.monotonic() - began, 2.0 + 1.0)  # load_deadline_ms
            self.assertEqual(server.failed_jobs(), (0, 1))
            wait_for("the pause to end", lambda: server.tier._space.now(), tick_s=0.01)
            began = time.monotonic()
            server.store(224, 225)
            self.assertLess(time.monotonic() - began, 1.0 + 1.0)
            self.assertEqual(server.failed_jobs(), (1, 0))
            wait_for("the pause to end", lambda: server.tier._space.now(), tick_s=0.01)
            began = time.monotonic()
            self.assertEqual(loaded(server, range(330, 330 + PLACES)), [False] * PLACES)
            self.assertLess(time.monotonic() - began, 2 * LOOKUP_S)  # one deadline, not eight
        self.assertEqual(len(said_.output), 1, said_.output)
        self.assertLess(server.slowest_s, SLOW_CALL_S)
        self.daemon.send(signal.SIGCONT)
        wait_for("hits again", lambda: all(loaded(server, range(220, 224))))
        self.wait_until_works(server, 227)

    def test_V6_whatever_is_raised_in_a_job_is_a_failed_job(self) -> None:
        server = self.serve().wait_until_shared()
        raising = mock.Mock(side_effect=RuntimeError("planned"))
        with (
            self.assertLogs("vllm.prefixd", "WARNING"),
            mock.patch("prefixd.Space.reserve", raising),
        ):
            server.store(350, 351)
        self.assertEqual(server.failed_jobs(), (1, 0))
        server.forget()
        server.store(350, 351)
        server.forget()
        with (
            self.assertLogs("vllm.prefixd", "WARNING"),
            mock.patch("prefixd.Space.acquire", raising),
        ):
            self.assertEqual(server.load(350, 351), [None] * 2)
        self.assertEqual(server.failed_jobs(), (0, 1))
        with mock.patch("prefixd.Space.match", raising):
            self.assertEqual(server.load(350), [None])
        self.assertEqual(loaded(server, [350, 351]), [True] * 2)

    def test_V6_a_server_ends_beside_a_hung_prefixd_and_gives_its_memory_back(self) -> None:
        server = Server(said(self.daemon.address, store_deadline_ms=500)).wait_until_shared()
        self.daemon.hang()
        self.addCleanup(self.daemon.send, signal.SIGCONT)
        server.store_keys({key_of(seed): bytes_of(seed) for seed in range(230, 238)})
        began = time.monotonic()
        with self.assertNoLogs(SharedOffloadRegion.__module__, "WARNING"):  # it can be unmapped
            server.close()
        self.assertLess(time.monotonic() - began, 0.5 + 1.0)
        self.assertFalse(server.region.exists())

    def test_V6_a_damaged_page_is_a_miss_and_is_stored_again(self) -> None:
        server = self.serve().wait_until_shared()
        seeds = range(240, 240 + PLACES)
        server.store(*seeds)
        server.forget()
        self.assertIsNotNone(self.daemon.control("flush"))
        self.daemon.stop()
        self.daemon.lose_arena()
        damage(self.folder / "d" / "ssd")
        self.start_daemon()
        self.daemon.wait_for_sessions(1)
        server.failed_jobs()
        hits = loaded(server, seeds)
        self.assertIn(True, hits)
        self.assertIn(False, hits)
        self.assertGreater(server.failed_jobs()[1], 0)
        server.store(*seeds)
        server.forget()
        self.assertEqual(loaded(server, seeds), [True] * PLACES)

    def test_V6_another_checkpoint_or_salt_hits_nothing(self) -> None:
        server = self.serve().wait_until_shared()
        server.store(260, 261)
        same = self.copied_model("same")
        weights = self.copied_model("weights")
        data = bytearray((weights / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (weights / "model.safetensors").write_bytes(data)
        config = self.copied_model("config")
        fields = json.loads((config / "config.json").read_text())
        (config / "config.json").write_text(json.dumps({**fields, "rope_theta": 12345.0}))
        self.assertEqual(loaded(self.ready(same), [260, 261]), [True] * 2)
        self.assertEqual(loaded(self.ready(weights), [260, 261]), [False] * 2)
        self.assertEqual(loaded(self.ready(config), [260, 261]), [False] * 2)
        self.assertEqual(loaded(self.ready(salt="b"), [260, 261]), [False] * 2)

    def ready(self, model: Path = MODEL, **more: Any) -> Server:
        return self.serve(model, **more).wait_until_shared()

    def test_V6_whatever_decides_what_stands_where_in_a_chunk_parts_spaces(self) -> None:
        spec = self.serve().tier._offloading_spec
        config, options = spec.config, TierOptions()

        def salt(**changed: Any) -> str:
            spec.config = dataclasses.replace(config, **changed)
            return TierIdentity.of(spec, options).salt

        parallel = dataclasses.replace(config.parallel, is_parallelism_agnostic=False)
        group = config.groups[0]
        others = [
            salt(),
            salt(model=dataclasses.replace(config.model, dtype="fp8")),
            salt(kv_cache_layout="LBNHC"),
            salt(replicated_layout=True),
            salt(canonical_layout=True, kv_cache_layout="LBHNC"),
            salt(groups=(dataclasses.replace(group, layer_names=group.layer_names[:3]),)),
            salt(groups=(dataclasses.replace(group, tokens_per_block=32),)),
            salt(cache=dataclasses.replace(config.cache, tokens_per_hash=32)),
            salt(parallel=parallel),
            salt(parallel=dataclasses.replace(parallel, tp_size=2)),
            salt(parallel=dataclasses.replace(parallel, pp_size=2)),
        ]
        self.assertEqual(len(set(others)), len(others))
        self.assertEqual(salt(), others[0])
        agnostic = dataclasses.replace(config.parallel, is_parallelism_agnostic=True)
        self.assertEqual(
            salt(parallel=agnostic), salt(parallel=dataclasses.replace(agnostic, tp_size=2))
        )
        self.assertEqual(
            salt(model=dataclasses.replace(config.model, name=str(self.copied_model("moved")))),
            others[0],
        )

    def test_V6_a_reset_of_vllms_memory_waits_for_the_jobs_on_it(self) -> None:
        server = self.serve().wait_until_shared()
        for round in range(5):
            seeds = range(270 + 10 * round, 270 + 10 * round + PLACES)
            server.store_keys({key_of(seed): bytes_of(seed) for seed in seeds})
            server.forget()
            server.memory[:] = 0
            self.assertEqual(loaded(server, seeds), [True] * PLACES)

    def test_V6_more_chunks_than_prefixd_has_memory_for_come_back_from_its_ssd(self) -> None:
        server = self.serve().wait_until_shared()
        seeds = list(range(400, 400 + 39 * PLACES))  # 350 MiB, prefixd has 256
        for at in range(0, len(seeds), PLACES):
            server.store(*seeds[at : at + PLACES])
        found = [
            one
            for at in range(0, len(seeds), PLACES)
            for one in loaded(server, seeds[at : at + PLACES])
        ]
        self.assertGreater(sum(found) * CHUNK_BYTES, 256 << 20)

    def test_V6_a_model_without_files_is_served_without_prefixd(self) -> None:
        folder = self.copied_model("no weights")
        (folder / "model.safetensors").unlink()
        with self.assertLogs("vllm.prefixd", "WARNING") as said_:
            server = self.serve(folder)
            wait_for("the refusal", lambda: said_.output)
            server.store(340)
        self.assertIn("does not hold chunks of", said_.output[0])
        self.assertEqual(len(said_.output), 1)
        server.forget()
        self.assertEqual(loaded(server, [340]), [False])

    def test_V6_vllms_backpressure_and_locality_are_taken(self) -> None:
        detector = {"backpressure_cls": "EMABackpressureDetector"}
        server = self.serve(backpressure=detector, locality="LOCAL").wait_until_shared()
        with mock.patch.object(server.tier.bp_detector, "update") as update:
            server.store(360, 361)
        update.assert_called_once_with(mock.ANY, 2 * CHUNK_BYTES)
        self.assertEqual(server.tier.locality, Locality.LOCAL)
        server.forget()
        self.assertEqual(loaded(server, [360, 361]), [True] * 2)

    def test_V6_an_unknown_option_is_refused_at_the_start(self) -> None:
        for wrong in ({"adress": "x"}, {"threads": "4"}, {"threads": 0}, {"locality": "HERE"}):
            with self.assertRaises(OptionError, msg=str(wrong)):
                TierOptions.of(wrong)
        with self.assertRaisesRegex(OptionError, "'adress' is none of address, token_file"):
            Server(said(self.daemon.address, adress="x"))

    def test_V6_the_package_is_imported_without_vllm(self) -> None:
        check = "import sys, prefixd.vllm; sys.exit(bool({'vllm', 'torch'} & set(sys.modules)))"
        self.assertEqual(subprocess.run([sys.executable, "-c", check], check=False).returncode, 0)


def remove_memory(engine_id: str) -> None:
    """Of an engine that was killed."""
    for path in Path("/dev/shm").glob(f"vllm_offload_{engine_id}*"):
        path.unlink()


class TierEngineTest(DaemonTest):
    """Whole engines of vLLM. Their worker alone is not vLLM's: see copies.py."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        first = cls.engine("first")
        cls.cold = first.ask(LONG, max_tokens=24)
        wait_for_tokens(cls.daemon, FOUND // ENGINE_CHUNK * TOKENS)
        first.kill()
        cls.daemon.stop(signal.SIGKILL)
        cls.start_daemon()
        cls.one = cls.engine("one")
        cls.warm = cls.one.ask(LONG, max_tokens=24)

    @classmethod
    def engine(cls, name: str) -> Engine:
        transfer = said(cls.daemon.address, lookup_deadline_ms=2000)  # one that a busy machine keeps
        transfer["engine_id"] = f"{cls.folder.name}-{name}"
        cls.addClassCleanup(remove_memory, transfer["engine_id"])
        transfer["kv_connector_extra_config"].update(
            spec_name="CpuTieringSpec",
            spec_module_path="copies",
            block_size=ENGINE_CHUNK,
            cpu_bytes_to_use=16 * ENGINE_CHUNK * 6144,  # 16 chunks, of 6 layers
        )
        engine = Engine(cls.folder, name, None, kv_transfer_config=transfer)
        cls.addClassCleanup(engine.end)
        engine.wait_until_shared()
        wait_for("the space", lambda: "prefixd holds chunks of" in engine.log())
        return engine

    def fill(self) -> None:
        """Neither vLLM's caches nor its memory have the prompt any more."""
        for begin in (10000, 14000):
            self.one.ask(prompt(begin, len(LONG)), max_tokens=1, forget=True)

    def again(self) -> Answers:
        self.fill()
        return self.ask()

    def ask(self) -> Answers:
        answers = self.one.ask(LONG, max_tokens=24, forget=True)
        self.assertEqual(answers[0].tokens, self.cold[0].tokens)
        return answers

    def test_V6_an_engine_goes_on_from_what_a_killed_engine_and_a_killed_prefixd_had(self) -> None:
        self.assertEqual(self.cold.external_hits, 0)
        self.assertEqual((self.warm.external_hits, self.warm[0].cached), (FOUND, FOUND))
        self.assertEqual(self.warm[0].tokens, self.cold[0].tokens)

    def test_V6_what_vllm_evicted_comes_back(self) -> None:
        wait_for("hits", lambda: self.again().external_hits == FOUND)

    def test_V6_a_hung_prefixd_costs_hits_alone(self) -> None:
        wait_for("hits", lambda: self.again().external_hits == FOUND)
        self.fill()  # while what leaves its memory can be taken
        self.daemon.hang()
        self.addCleanup(self.daemon.send, signal.SIGCONT)
        self.assertEqual(self.ask().external_hits, 0)
        self.daemon.send(signal.SIGCONT)
        wait_for("hits again", lambda: self.again().external_hits == FOUND)

    def test_V6_damaged_pages_are_computed_again(self) -> None:
        self.assertIsNotNone(self.daemon.control("flush"))
        self.daemon.stop()
        self.daemon.lose_arena()
        damage(self.folder / "d" / "ssd")
        self.start_daemon()
        self.daemon.wait_for_sessions(1)
        self.assertLess(self.again().external_hits, FOUND)
        wait_for("hits again", lambda: self.again().external_hits == FOUND)


if __name__ == "__main__":
    unittest.main()
