"""A real Prometheus watches a real prefixd under load: what deploy/ ships has data."""

from __future__ import annotations

import re
import shutil
import unittest
from collections.abc import Callable

import hosts
import prefixd
from hosts import Model, note, tokens_of
from prefixd_process import wait_for
from servers import Server
from watched import Prometheus, WatchedHost, WatchedTest, dashboard_queries, family_of, metrics_in


# Queries that give data only where something is wrong.
COMPARES = re.compile(r" (>|<|==) ")


class PrometheusTest(WatchedTest):
    def test_s3_every_query_of_the_dashboard_and_of_the_rules_is_answered_under_load(self) -> None:
        remote = None
        if shutil.which("redis-server"):
            redis = Server(self.folder / "redis", "--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru")
            self.addCleanup(redis.stop)
            remote = redis.url
        host = self.host(remote=remote or "redis://127.0.0.1:9", ram="64MiB")
        prometheus = Prometheus(self.folder / "prometheus", host.metrics)
        self.addCleanup(prometheus.stop)
        wait_for("a first scrape", lambda: prometheus.query("up == 1"))
        self.work(host)

        queries = list(dashboard_queries()) + prometheus.rules()
        self.assertGreater(len(queries), 80)
        asked = {family_of(name) for _, query in queries for name in metrics_in(query)}
        self.waits_until_none_is_left(
            "metrics that nothing has", lambda: asked - {family_of(name) for name in prometheus.names()}
        )
        empty = set(queries)

        def still_empty() -> set[str]:
            empty.difference_update([one for one in empty if prometheus.query(one[1])])
            return {f"{title}: {query}" for title, query in empty if not COMPARES.search(query)}

        self.waits_until_none_is_left("queries without data", still_empty)
        note(f"S3: {len(queries) - len(empty)} of {len(queries)} queries gave data; none: {', '.join(sorted(t for t, _ in empty))}")
        (scrape,) = prometheus.query("max_over_time(scrape_duration_seconds[1h])")
        (size,) = prometheus.query("scrape_samples_scraped")
        note(f"the longest scrape took {float(scrape['value'][1]) * 1000:.1f} ms, {size['value'][1]} samples")

    def test_it_keeps_the_traces_of_traced_calls_as_exemplars(self) -> None:
        host = self.host("--otlp-endpoint=http://127.0.0.1:9/v1/traces")
        prometheus = Prometheus(self.folder / "prometheus", host.metrics)
        self.addCleanup(prometheus.stop)
        trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
        with prefixd.trace(f"00-{trace_id}-00f067aa0ba902b7-01"):
            self.worker(host).turn(tokens_of(1, 300))
        calls = 'prefixd_request_duration_seconds_bucket{verb="acquire"}'
        exemplars = wait_for("an exemplar", lambda: prometheus.exemplars(calls) or None)
        self.assertEqual({one["labels"]["trace_id"] for one in exemplars}, {trace_id})

    def work(self, host: WatchedHost) -> None:
        """Until everything that the dashboard draws has happened; it goes on meanwhile."""
        loads = [hosts.Load(self.worker(host, model=Model(name=f"model {seed}")), seed) for seed in range(2)]
        self.addCleanup(lambda: [load.stop() for load in loads])
        worker = self.worker(host)
        happened = {
            "a hit": "tokens.used.ram",
            "a page from SSD": "pages.promoted",
            "an eviction": "pages.evicted",
        }
        number = iter(range(1000, 100_000))

        def all_happened() -> bool:
            worker.turn(tokens_of(next(number), 300))
            counters = host.counters()
            return all(counters.get(name, 0) > 0 for name in happened.values())

        wait_for(" and ".join(happened), all_happened)

    def waits_until_none_is_left(self, what: str, left: Callable[[], set[str]]) -> None:
        try:
            wait_for(f"no {what}", lambda: not left(), deadline_s=60)
        except TimeoutError:
            self.assertEqual(left(), set(), what)


if __name__ == "__main__":
    unittest.main()
