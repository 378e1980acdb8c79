"""The page of a real prefixd, without a browser."""

from __future__ import annotations

import re

from hosts import tokens_of
from prefixd_process import wait_for
from watched_page import HOSTILE, PageTest

FILES = re.compile(r'(?:src|href)="([^"#]+)"')


class HttpTest(PageTest):
    def test_without_the_setting_there_is_no_page(self) -> None:
        host = self.host(page=False)
        for path in "/", "/page", "/page/", "/page/state.json", "/page/page.js":
            self.assertEqual(host.ask(path)[0], 404, path)
        self.assertEqual(host.ask("/metrics")[0], 200)
        self.assertNotIn("page: http", host.log())

    def test_every_answer_keeps_a_browser_from_loading_anything_else(self) -> None:
        host = self.host()
        status, _, body = host.ask("/page/")
        self.assertEqual(status, 200)
        named = FILES.findall(body.decode())
        self.assertIn("page.js", named)
        for path in ["/page/", "/page/state.json", "/page/nothing", *(f"/page/{name}" for name in named)]:
            status, headers, _ = host.ask(path)
            self.assertEqual(status, 404 if path.endswith("nothing") else 200, path)
            policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
            self.assertEqual(policy["default-src"], "'none'")
            for kind in "script-src", "style-src", "connect-src", "img-src":
                self.assertEqual(policy[kind], "'self'")
            self.assertEqual(policy["frame-ancestors"], "'none'")
            self.assertEqual(headers["x-content-type-options"], "nosniff")
            self.assertEqual(headers["referrer-policy"], "no-referrer")
            self.assertNotIn("access-control-allow-origin", headers)

    def test_nothing_but_reading_is_answered_and_only_by_its_own_name(self) -> None:
        host = self.host()
        for method in "POST", "PUT", "DELETE", "PATCH", "OPTIONS":
            self.assertEqual(host.ask("/page/state.json", method)[0], 405, method)
        self.assertEqual(host.ask("/page/", "HEAD")[2], b"")
        for name in "evil.example", "127.0.0.1.evil.example:80":
            self.assertEqual(host.ask("/page/", Host=name)[0], 403, name)
            self.assertEqual(host.ask("/page/state.json", Host=name)[0], 403, name)
        self.assertEqual(host.ask("/page/state.json", Host="localhost:1")[0], 200)
        self.assertEqual(host.ask("/page/state.json", **{"Sec-Fetch-Site": "cross-site"})[0], 403)

    def test_the_data_is_what_prefixctl_says(self) -> None:
        host = self.host()
        worker = self.worker(host, HOSTILE)
        for number in 1, 1, 2, 1:
            worker.turn(tokens_of(number, 200))
        stats = host.control("stats")
        counters = stats["counters"]
        state = host.data("state.json")
        self.assertEqual(state["health"], "serving")
        self.assertEqual(state["totals"]["requested"], counters["tokens.requested"])
        self.assertEqual(state["totals"]["ram"], counters["tokens.restorable.ram"])
        self.assertEqual(state["totals"]["used"], counters["tokens.used"])
        self.assertEqual(state["ssd"]["budget_bytes"], int(stats["ssd_budget_bytes"]))
        self.assertEqual([plain["question"] for plain in state["answers"]], [
            "Is it hitting?", "Are evictions building up?", "Is a clear safe?", "What survives?",
        ])
        self.assertEqual(host.data("spaces.json")["spaces"][0]["model"], HOSTILE)
        self.assertEqual(host.data("sessions.json")["sessions"][0]["pid"], int(host.control("sessions")["sessions"][0]["pid"]))
        newest = host.data("requests.json?last=1")["requests"][0]
        self.assertEqual((newest["requested"], newest["restorable"]), (200, 200))
        self.assertEqual([step["title"] for step in newest["steps"]], ["Asked", "Matched", "Answered", "Used"])
        self.assertEqual(newest["phases"][-1]["end_us"], max(phase["end_us"] for phase in newest["phases"]))
        prefix = host.data("prefixes.json")["prefixes"][0]
        self.assertEqual((prefix["from_token"], prefix["to_token"], prefix["requests"]), (0, 192, 2))
        settings = {setting["name"]: setting for setting in host.data("config.json")["settings"]}
        self.assertEqual((settings["page"]["value"], settings["page"]["source"]), ("true", "flag"))
        host.control("budget", "--ram=90MiB")

        def ram() -> tuple[str, str]:
            return next((one["value"], one["source"]) for one in host.data("config.json")["settings"] if one["name"] == "ram")

        wait_for("the new budget", lambda: ram() == ("90MiB", "budget"))
