"""S4: the page in a headless Chromium, before a prefixd under load."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import hosts
from browser import Browser
from hosts import tokens_of
from prefixd_process import wait_for
from watched_page import HOSTILE, PageHost, PageTest

TOOLS = Path(os.environ["PREFIXD_TEST_TOOLS"])
VIEWS = ("overview", "prefixes", "requests", "spaces", "sessions", "settings")
WIDTHS = (400, 800, 1600)
DRAWN = {
    "overview": "#answers .answer-card p.answer",
    "prefixes": "#tree li",
    "requests": "#requests-table button",
    "spaces": "#spaces-table tbody tr",
    "sessions": "#sessions-table tbody tr",
    "settings": "#settings-table tbody tr",
}


class BrowserTest(PageTest):
    def setUp(self) -> None:
        super().setUp()
        self.browser = Browser()
        self.addCleanup(self.browser.close)

    def busy_host(self) -> PageHost:
        host = self.host()
        self.load = hosts.Load(self.worker(host, HOSTILE), 1)
        self.addCleanup(self.load.stop)
        second = self.worker(host, "a second model", 8)
        for number in 5, 5, 6:
            second.turn(tokens_of(number, 400))
        self.load.wait_for(20)
        return host

    def open(self, host: PageHost, view: str = "overview") -> None:
        self.browser.go("about:blank")
        self.browser.go(f"{host.url}#{view}")
        self.browser.wait(f"document.querySelector('{DRAWN[view]}') !== null && document.querySelector('#uptime').textContent !== ''")

    def choose_a_request(self) -> None:
        self.browser.evaluate("document.querySelector('#requests-table button').click()")
        self.browser.wait("document.querySelectorAll('#story .steps li').length > 2")

    def check_quiet(self, host: PageHost) -> None:
        self.assertEqual(self.browser.complaints, [])
        foreign = {url for url in self.browser.requests if url.startswith("http") and urlsplit(url).netloc != host.web}
        self.assertEqual(foreign, set())
        self.assertTrue(any(url.endswith("state.json") for url in self.browser.requests))

    def test_S4_every_view_at_three_widths_in_light_and_dark(self) -> None:
        """Screenshots stay in the build folder, to be looked at."""
        host = self.busy_host()
        shots = TOOLS / "shots"
        shutil.rmtree(shots, ignore_errors=True)
        shots.mkdir(parents=True)
        grounds = {}
        for colours, width in itertools.product(("light", "dark"), WIDTHS):
            self.browser.prefer(prefers_color_scheme=colours)
            self.browser.size(width)
            for view in VIEWS:
                self.open(host, view)
                if view == "requests":
                    self.choose_a_request()
                wider = self.browser.evaluate("document.documentElement.scrollWidth - innerWidth")
                self.assertLessEqual(wider, 0, f"{view} is wider than {width}")
                self.browser.screenshot(shots / f"{view}-{width}-{colours}.png")
            grounds[colours] = self.browser.evaluate("getComputedStyle(document.body).backgroundColor")
        self.assertNotEqual(grounds["light"], grounds["dark"])
        self.assertEqual(len(list(shots.iterdir())), 36)
        self.check_quiet(host)

    def test_S4_axe_core_finds_nothing_serious(self) -> None:
        host = self.busy_host()
        axe = (TOOLS / "axe.min.js").read_text()
        for colours, width, view in itertools.product(("light", "dark"), (400, 1600), VIEWS):
            self.browser.prefer(prefers_color_scheme=colours)
            self.browser.size(width)
            self.open(host, view)
            if view == "requests":
                self.choose_a_request()
            self.browser.evaluate(f"{axe}; true")
            looked = "axe.run().then((all) => JSON.stringify([all.passes.length, all.violations]))"
            passed, found = json.loads(self.browser.evaluate(looked))
            self.assertGreater(passed, 20, "axe-core has looked at something")
            said = [(one["id"], one["impact"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found]
            self.assertEqual(said, [], f"{view} at {width}, {colours}")

    def test_a_hostile_name_is_text_and_nothing_else(self) -> None:
        host = self.busy_host()
        for view in "spaces", "prefixes", "requests", "sessions":
            self.open(host, view)
            if view == "requests":
                self.choose_a_request()
            where = "#sessions" if view == "sessions" else f"#{view}"
            if view != "sessions":
                self.browser.wait(f"document.querySelector('{where}').textContent.includes({json.dumps(HOSTILE)})")
            self.assertEqual(self.browser.evaluate("document.querySelectorAll('main img, main script').length"), 0)
        self.check_quiet(host)

    def test_the_figures_are_prefixds_and_bars_are_as_long_as_they_say(self) -> None:
        host = self.busy_host()
        self.open(host)
        self.browser.evaluate("document.querySelector('#pause').click()")  # what is drawn now stays
        drawn = self.browser.evaluate(
            "[...document.querySelectorAll('.tier')].map((tier) => [tier.querySelector('h3').textContent,"
            " [...tier.querySelectorAll('rect')].reduce((sum, rect) => sum + Number(rect.getAttribute('width')), 0),"
            " tier.querySelector('strong').textContent])"
        )
        state = host.data("state.json")
        budgets = {"RAM": state["ram"]["budget_bytes"], "SSD": state["ssd"]["budget_bytes"]}
        self.assertEqual([name for name, _, _ in drawn], ["RAM", "SSD"])
        for name, width, text in drawn:
            self.assertTrue(text.startswith(f"{width:.1f} %"), (width, text))
            self.assertIn(f"of {budgets[name] / 2**20:.1f} MiB", text)
        # RAM that is in use only grows here, a little, between the two looks.
        used = 100 * state["ram"]["used_bytes"] / state["ram"]["budget_bytes"]
        self.assertAlmostEqual(drawn[0][1], used, delta=15)

    def test_it_goes_on_while_it_is_open_and_stands_still_when_paused(self) -> None:
        host = self.busy_host()
        self.open(host)
        asked = "document.querySelector('#saved').children[3].querySelector('.value').textContent"
        first = self.browser.evaluate(asked)
        self.browser.wait(f"{asked} !== {json.dumps(first)}")
        self.browser.evaluate("document.querySelector('#pause').click()")
        self.browser.wait("document.querySelector('#pause').getAttribute('aria-pressed') === 'true'")
        seen = len(self.browser.requests)
        self.load.wait_for(300)
        late = [url for url in self.browser.requests[seen:] if url.endswith(".json")]
        self.assertLessEqual(len(late), 1, "one may have been on its way")

    def test_a_daemon_that_goes_away_is_said_and_waited_for(self) -> None:
        host = self.host()
        self.open(host)
        host.stop()
        self.browser.wait("!document.querySelector('#failure').hidden")
        self.assertEqual(self.browser.evaluate("document.querySelector('#health').textContent"), "no answer")

    def test_everything_is_reached_by_keyboard_and_shows_where_it_is(self) -> None:
        host = self.busy_host()
        self.browser.go(host.url)
        self.browser.press("Tab")
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "skip")
        self.browser.press("Enter")
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "main")
        self.open(host, "requests")
        names = []
        for _ in range(6):
            self.browser.press("Tab")
            names.append(self.browser.evaluate("document.activeElement.id || document.activeElement.className"))
            line = self.browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            self.assertEqual(line, "solid", names)
        self.assertEqual(names, ["requests-id", "requests-below", names[2], "requests-table", "link", "link"])
        self.browser.press("Enter")
        self.browser.wait("document.querySelectorAll('#story .steps li').length > 2")
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "story")

    def test_the_switch_of_colours_holds_over_a_reload(self) -> None:
        host = self.host()
        self.browser.prefer(prefers_color_scheme="light")
        self.open(host)
        light = self.browser.evaluate("getComputedStyle(document.body).backgroundColor")
        self.browser.evaluate(
            "const select = document.querySelector('#theme'); select.value = 'dark'; select.dispatchEvent(new Event('change')); true"
        )
        dark = self.browser.evaluate("getComputedStyle(document.body).backgroundColor")
        self.assertNotEqual(light, dark)
        self.open(host)
        self.assertEqual(self.browser.evaluate("getComputedStyle(document.body).backgroundColor"), dark)

    def test_a_thousand_spaces_are_turned_over_and_searched(self) -> None:
        host = self.host("--max-sessions=2000", ram="256MiB")
        worker = self.worker(host, "model 0")
        spaces = [hosts.Model(name=f"model {number}", weights=7).open(worker.client) for number in range(1, 1000)]
        self.assertEqual(len(spaces), 999)
        wait_for("a thousand spaces", lambda: host.data("spaces.json")["total"] == 1000)
        self.open(host, "spaces")
        self.browser.evaluate("document.querySelector('#spaces-next').click()")
        self.browser.wait("document.querySelector('#spaces-text').textContent.startsWith('51 to 100 of 1,000')")
        self.browser.evaluate("document.querySelector('#spaces-find').value = 'MODEL 99'; document.querySelector('#spaces-controls button').click()")
        self.browser.wait("document.querySelector('#spaces-text').textContent.startsWith('1 to 11 of 11')")
        self.check_quiet(host)
