"""What bash, zsh and fish complete is what --help lists, no more and no less."""

from __future__ import annotations

import shutil
import tempfile
import unittest
from pathlib import Path

import installed

_BASH = """
source "$1"
shift
program=$1
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
compopt() { :; }
"$(complete -p "$program" | sed 's/.* -F \\([^ ]*\\) .*/\\1/')" "$program"
printf '%s\\n' "${COMPREPLY[@]}"
"""
_ZSH = Path(__file__).resolve().with_name("zsh_complete.zsh")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TERM": "dumb"}


def by_bash(script: Path, *words: str) -> set[str]:
    return set(installed.output("bash", "-c", _BASH, "bash", script, *words, environment=_ENVIRONMENT).split())


def by_zsh(script: Path, *words: str) -> set[str]:
    return set(installed.output("zsh", "-f", _ZSH, script, " ".join(words), environment=_ENVIRONMENT).split())


def by_fish(script: Path, *words: str) -> set[str]:
    with tempfile.TemporaryDirectory() as home:  # fish keeps a history and settings
        program = f"source {script}; complete -C '{' '.join(words)}'"
        said = installed.output("fish", "--no-config", "-c", program, environment=_ENVIRONMENT | {"HOME": home})
    return {line.partition("\t")[0] for line in said.splitlines()}


class CompletionTest(unittest.TestCase):
    """Each test runs for each shell that is there."""

    def shells(self):
        share = installed.prefix() / "share"
        places = {
            "bash": (by_bash, share / "bash-completion/completions", "{}"),
            "zsh": (by_zsh, share / "zsh/site-functions", "_{}"),
            "fish": (by_fish, share / "fish/vendor_completions.d", "{}.fish"),
        }
        for shell, (complete, folder, name) in places.items():
            if shutil.which(shell):
                yield shell, lambda *words: complete(folder / name.format(words[0]), *words)

    def test_a_program_completes_the_flags_of_its_help(self) -> None:
        for shell, complete in self.shells():
            for program in installed.PROGRAMS:
                wanted = {flag for flag in installed.flags_of(program) if flag.startswith("--")}
                found = {flag.rstrip("=") for flag in complete(program, "--")}
                self.assertEqual(found, wanted, f"{shell}, {program}")

    def test_a_command_completes_its_own_flags_and_those_of_the_program(self) -> None:
        for shell, complete in self.shells():
            for command in installed.commands_of("prefixctl"):
                wanted = {flag for flag in installed.flags_of("prefixctl", command) if flag.startswith("--")}
                found = {flag.rstrip("=") for flag in complete("prefixctl", command, "--")}
                self.assertEqual(found, wanted, f"{shell}, {command}")

    def test_prefixctl_completes_its_commands(self) -> None:
        for shell, complete in self.shells():
            self.assertEqual(complete("prefixctl", ""), set(installed.commands_of("prefixctl")), shell)

    def test_a_value_that_is_one_of_few_is_completed(self) -> None:
        for shell, complete in self.shells():
            self.assertEqual(complete("prefixd", "--direct-io", ""), {"on", "off"}, shell)
            self.assertEqual(complete("prefixd-worker", "--attention", ""), {"fast", "precise"}, shell)

    def test_a_path_is_completed_by_files_and_a_size_by_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "some-file").touch()
            for shell, complete in self.shells():
                found = complete("prefixctl", "--token-file", f"{folder}/so")
                self.assertTrue(any(word.endswith("some-file") for word in found), (shell, found))
                self.assertEqual(complete("prefixd", "--ram", ""), set(), shell)

    def test_a_value_is_not_taken_for_a_command(self) -> None:
        for shell, complete in self.shells():
            if shell != "fish":  # it looks for a command among all words
                found = complete("prefixctl", "--salt", "match", "")
                self.assertEqual(found, set(installed.commands_of("prefixctl")), shell)

    def test_bash_completes_a_value_behind_an_equals_sign(self) -> None:
        script = installed.prefix() / "share/bash-completion/completions/prefixd"
        self.assertEqual(by_bash(script, "prefixd", "--direct-io", "=", "of"), {"off"})


if __name__ == "__main__":
    unittest.main()
