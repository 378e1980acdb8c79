"""What a scrape of a real prefixd says."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request

import hosts
from hosts import Model, note, tokens_of
from prefixd_process import open_url
from watched import DEPLOY, README, RULES, WatchedTest, alerts, families, family_of, promtool, samples

SPACES = 1000
MOST_BYTES = 200_000
SOON_MS = 20


class ScrapeTest(WatchedTest):
    def test_s3_promtool_has_nothing_to_say_of_a_scrape_and_of_the_rules(self) -> None:
        host = self.host()
        worker = self.worker(host)
        for number in range(3):
            worker.turn(tokens_of(number, 200))
            worker.turn(tokens_of(number, 260))
        promtool("check", "metrics", stdin=host.scrape())
        promtool("check", "rules", RULES)
        promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")
        promtool("test", "rules", RULES.parents[2] / "tests" / "metrics" / "rules_test.yml")

    def test_every_metric_and_every_alert_stands_in_the_readme_and_no_other(self) -> None:
        host = self.host("--remote=redis://127.0.0.1:9", "--remote-insecure")
        self.worker(host).turn(tokens_of(1, 200))
        shown = {name for name in families(host.scrape()) if not name.startswith("process_")}
        text = README.read_text()
        told = set(re.findall(r"^\| `(prefixd_\w+)", text, re.MULTILINE))
        # These come with their first count.
        late = set(re.findall(r"^\| `(prefixd_\w+)[^|]*\|[^|]*\| \(once counted\)", text, re.MULTILINE))
        self.assertEqual(shown - told, set(), "not in the README")
        self.assertEqual(told - late - shown, set(), "in the README alone")
        self.assertEqual(set(re.findall(r"^\| `(Prefixd\w+)`", text, re.MULTILINE)), alerts())

    def test_a_scrape_and_prefixctl_say_the_same(self) -> None:
        host = self.host()
        worker = self.worker(host)
        for number in range(5):
            worker.turn(tokens_of(number, 300))
            self.assertEqual(worker.read(tokens_of(number, 300)), 300)
        worker.close()
        stats = host.control("stats")
        shown = host.samples()
        self.assertEqual(total(shown, "prefixd_tokens_requested_total"), stats["counters"]["tokens.requested"])
        self.assertEqual(total(shown, "prefixd_tokens_used_total"), stats["counters"]["tokens.used"])
        self.assertEqual(total(shown, "prefixd_tokens_restorable_total"), 5 * 300)
        (space,) = stats["spaces"]
        label = space["space_id"][:16]
        self.assertEqual(shown[f'prefixd_tokens_requested_total{{space="{label}"}}'], space["tokens"]["requested"])
        self.assertEqual(shown[f'prefixd_space_stored_tokens{{space="{label}"}}'], 5 * 300)
        self.assertEqual(shown["prefixd_ram_budget_bytes"], stats["ram_budget_bytes"])
        self.assertEqual(shown["prefixd_block_reuse_gap_seconds_count"], 5 * (300 // hosts.BLOCK))

    def test_s3_a_thousand_spaces_are_scraped_in_bounded_size(self) -> None:
        host = self.host(ram="256MiB")
        worker = self.worker(host)
        tokens = tokens_of(1, hosts.BLOCK)
        for number in range(SPACES):
            worker.space = Model(layers=1, name=f"model {number} " + 300 * "x").open(worker.client)
            worker.layers = worker.space.layers
            worker.model = Model(layers=1)
            worker.store(tokens)
            worker.read(tokens)
        begun = time.monotonic()
        text = host.scrape()
        first_ms = (time.monotonic() - begun) * 1000
        shown = samples(text)
        self.assertGreaterEqual(shown["prefixd_spaces"], SPACES)
        series = [name for name in shown if name.startswith("prefixd_tokens_requested_total{")]
        self.assertEqual(len(series), 51)
        self.assertEqual(total(shown, "prefixd_tokens_requested_total"), SPACES * hosts.BLOCK)
        self.assertLessEqual(len(text), MOST_BYTES)
        promtool("check", "metrics", stdin=text)
        said = "within" if first_ms <= SOON_MS else "NOT within"
        note(f"S3: {SPACES} spaces: {len(text):,} bytes in {first_ms:.1f} ms, {said} {SOON_MS} ms")

    def test_scrapes_beside_load_are_whole_and_nothing_is_read_wrong(self) -> None:
        host = self.host()
        loads = [hosts.Load(self.worker(host, model=Model(name=f"model {seed}")), seed) for seed in range(2)]
        last = 0.0
        for _ in range(50):
            shown = host.samples()
            requested = total(shown, "prefixd_tokens_requested_total")
            self.assertGreaterEqual(requested, last, "a counter fell")
            last = requested
        for load in loads:
            load.wait_for(5)
            load.stop()  # raises for a wrong byte
        self.assertGreater(total(host.samples(), "prefixd_tokens_requested_total"), 0)

    def test_nothing_else_is_served_and_nothing_can_be_changed(self) -> None:
        host = self.host()
        for path in "", "metrics/x", "..%2f..%2fetc/passwd", "debug/pprof":
            with self.assertRaises(urllib.error.HTTPError) as refused:
                open_url(f"http://{host.metrics}/{path}")
            self.assertIn(refused.exception.code, (400, 404), path)
        for method in "POST", "PUT", "DELETE", "OPTIONS":
            with self.assertRaises(urllib.error.HTTPError) as refused:
                open_url(urllib.request.Request(f"http://{host.metrics}/metrics", method=method, data=b""))
            self.assertEqual(refused.exception.code, 405)

    def test_a_salt_and_tokens_are_in_no_scrape(self) -> None:
        host = self.host()
        worker = self.worker(host)
        tokens = [41_234] * 200
        worker.turn(tokens)
        text = host.scrape()
        self.assertNotIn("41234", text)


def total(shown: dict[str, float], family: str) -> float:
    """Of all series."""
    found = [value for name, value in shown.items() if name.partition("{")[0] == family]
    assert found, family
    return sum(found)
