"""S2: scripted terminal sessions of prefixctl top before a real prefixd."""

from __future__ import annotations

import re
import signal
import subprocess
from typing import Any

import hosts
from hosts import tokens_of
from prefixd_process import BUILD, DEADLINE_S
from terminal import width_of
from watched_top import INTERVAL, Top, TopHost, TopTest

SIZES = ((80, 24), (120, 40), (200, 50))
BAR = re.compile(r"(ram|ssd)  \[[█░]+\] +\d+\.\d %")
COLOURS = {str(code) for code in [*range(30, 50), *range(90, 108)]}
HIT = re.compile(r"hit rate  (\S+ ?%?) now, (\S+ ?%?) last minute, (\S+ ?%?) since start")


def rate_of(found: int, requested: int) -> str:
    return f"{100 * found / requested:.1f} %"


def since_start(stats: dict[str, Any]) -> str:
    return rate_of(stats["counters"]["tokens.restorable"], stats["counters"]["tokens.requested"])


def width(line: str) -> int:
    return sum(map(width_of, line))


class ScriptedTest(TopTest):
    def check_frame(self, top: Top, columns: int, rows: int) -> None:
        lines = top.shows("q quit")
        self.assertEqual(len(lines), rows)
        self.assertIn("q quit", lines[-1])
        self.assertIn("every 0.2 s", lines[0])
        for tier in "ram", "ssd":
            self.assertTrue(any(line.startswith(tier) and BAR.match(line) for line in lines), lines)
        self.assertLessEqual(max(map(width, lines)), columns)
        self.assertEqual(top.terminal.wrapped, 0)

    def check_restored(self, top: Top) -> None:
        """Modes, cursor and screen are as before top began."""
        top.drained()
        self.assertEqual(top.after(), top.before)
        self.assertEqual(top.terminal.modes & {"1049", "1000", "2004"}, set())
        self.assertFalse(top.terminal.hidden_cursor)

    def test_s2_a_session_under_load_at_three_sizes(self) -> None:
        host = self.host()
        loads = [hosts.Load(self.worker(host, f"model {seed}"), seed) for seed in range(2)]
        for columns, rows in SIZES:
            with self.subTest(columns=columns, rows=rows):
                self.session(host, columns, rows)
        for load in loads:
            load.stop()

    def session(self, host: TopHost, columns: int, rows: int) -> None:
        """Every key once."""
        top = self.top(host.address, columns, rows)
        # Both workers were asked for something since top began.
        top.see("hit rates", lambda lines: any("%" in (HIT.match(line) or [""] * 4)[2] for line in lines))
        top.shows("model 1")
        self.check_frame(top, columns, rows)
        top.press("s")
        top.shows("*HIT")
        top.press("p")
        top.shows("PAUSED")
        top.press("p")
        top.see("that it goes on", lambda lines: "every 0.2 s" in lines[0])
        top.press("down")
        top.press("enter")
        space = top.see("a space alone", lambda lines: next((l for l in lines if re.match(r"space \w{12}  model", l)), None))
        self.assertRegex(space, r"model [01]$")
        self.assertNotIn("SPACE ", top.terminal.text())
        top.press("esc")
        top.shows("*HIT")
        top.resize(columns + 7, rows - 3)
        top.see("the new size", lambda lines: "q quit" in lines[-1] and "every 0.2 s" in lines[0][columns - 12 :])
        self.assertEqual(top.terminal.looks & COLOURS, set())
        top.press("q")
        self.assertEqual(top.wait(), 0)
        self.check_restored(top)

    def test_s2_hit_rates_are_those_of_stats(self) -> None:
        host = self.host()
        worker = self.worker(host)
        worker.turn(tokens_of(1, 1_000))  # nothing is found, and nobody watches
        before = host.control("stats")["counters"]
        top = self.top(host.address)
        top.see("two samples", lambda lines: any(line.endswith("now") for line in lines))
        for number in (1, 2, 1, 1):
            worker.turn(tokens_of(number, 1_000))
        stats = host.control("stats")
        after = stats["counters"]
        deltas = [after[f"tokens.{name}"] - before[f"tokens.{name}"] for name in ("restorable", "requested")]
        self.assertNotEqual(rate_of(*deltas), since_start(stats))
        self.assertEqual(deltas[1], 4_000)
        top.shows(f" now, {rate_of(*deltas)} last minute, {since_start(stats)} since start".removeprefix(" now"))
        saved = f"saved   {after['tokens.used']:,} tokens"
        top.shows(saved)
        space = stats["spaces"][0]
        top.shows(space["space_id"][:8])
        row = next(line for line in top.lines() if line.startswith(space["space_id"][:8]))
        self.assertIn(rate_of(*deltas), row)
        self.assertIn(f"{space['stored_tokens']:,}", row)
        top.press("enter")
        top.shows(f" {rate_of(*deltas)} last minute, {since_start(stats)} since start")

    def test_s2_a_killed_daemon_is_said_and_one_that_starts_again_is_shown(self) -> None:
        host = self.host()
        worker = self.worker(host)
        worker.turn(tokens_of(1, 1_000))
        top = self.top(host.address)
        top.shows("serving")
        host.kill()
        top.shows("DOES NOT ANSWER")
        top.shows("no answer")
        self.assertTrue(any(BAR.match(line) for line in top.lines()), "the last numbers stay")
        top.press("s")  # keys are heard meanwhile
        top.shows("*HIT")
        host.start()
        top.see("that it serves again", lambda lines: "serving" in lines[0] and not any("no answer" in l for l in lines))
        worker.close()
        worker = self.worker(host)
        worker.turn(tokens_of(2, 640))
        worker.turn(tokens_of(2, 640))
        top.shows(f"{since_start(host.control('stats'))} since start")
        top.press("q")
        self.assertEqual(top.wait(), 0)
        self.check_restored(top)

    def test_a_daemon_that_starts_after_top_is_found_with_its_spaces(self) -> None:
        host = self.host()
        self.worker(host, "late model").turn(tokens_of(1, 200))
        host.kill()
        (host.folder / "prefixd.admin.sock").unlink()  # as where none ever ran
        top = self.top(host.address)
        top.shows("DOES NOT ANSWER")
        host.start()
        top.shows("late model")

    def test_s2_the_terminal_is_as_it_was_after_an_interrupt_and_a_signal(self) -> None:
        host = self.host()
        for how in ("interrupt", signal.SIGTERM, signal.SIGHUP):
            with self.subTest(how=how):
                top = self.top(host.address)
                top.shows("serving")
                top.press(how) if isinstance(how, str) else top.send(how)
                self.assertEqual(top.wait(), 0)
                self.check_restored(top)

    def test_an_ascii_locale_gets_ascii(self) -> None:
        host = self.host()
        self.worker(host, "大きなモデル").turn(tokens_of(1, 200))
        top = self.top(host.address, locale="C")
        top.shows("??????")
        top.shows("ram  [#")
        self.assertTrue(top.terminal.text().isascii())

    def test_a_paused_screen_stands_still(self) -> None:
        host = self.host()
        worker = self.worker(host)
        top = self.top(host.address)
        worker.turn(tokens_of(1, 640))
        top.shows("0.0 % since start")
        top.press("p")
        top.shows("PAUSED")
        worker.turn(tokens_of(1, 640))
        seen = host.control("stats")
        self.assertFalse(any(since_start(seen) in line for line in top.lines()))
        top.press("p")
        top.shows(f"{since_start(seen)} since start")


class OnceTest(TopTest):
    def once(self, address: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [BUILD / "prefixctl", f"--server={address}", "top", "--once", f"--interval={INTERVAL}", *options]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE_S, env=environment)

    def test_s2_once_prints_a_frame_of_the_width_that_was_asked_for(self) -> None:
        host = self.host()
        worker = self.worker(host, "m" * 200)
        for _ in range(2):
            worker.turn(tokens_of(1, 1_000))
        rate = since_start(host.control("stats"))
        for columns, options, environment in (
            (80, (), {}), (120, ("--width=120",), {"COLUMNS": "90"}), (200, (), {"COLUMNS": "200"}), (80, (), {"COLUMNS": "x"}),
        ):
            done = self.once(host.address, *options, **environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = done.stdout.splitlines()
            self.assertEqual(max(map(len, lines)), columns)
            self.assertIn(f"{rate} since start", done.stdout)
            self.assertTrue(done.stdout.isascii())
            self.assertNotIn("\x1b", done.stdout)
            self.assertNotIn("q quit", done.stdout)

    def test_without_a_daemon_it_says_so(self) -> None:
        done = self.once(f"unix://{self.folder}/none.sock")
        self.assertEqual(done.returncode, 3)
        self.assertIn("does not answer", done.stderr)

    def test_without_a_terminal_it_names_once(self) -> None:
        command = [BUILD / "prefixctl", f"--server=unix://{self.folder}/none.sock", "top"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL, env={})
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("top --once prints one frame", done.stderr)

    def test_a_terminal_that_nobody_knows_is_refused(self) -> None:
        done = self.once("unix:///none", "--sort=colour")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--sort", done.stderr)
