#!/usr/bin/env python3
"""Words that do not belong here: unfinished work, names that say nothing, files too long to read."""
import re
import sys

import tree

FOLDERS = ("src", "daemon", "client", "proto", "tests", "bench", "scripts", ".ci", "deploy")
SUFFIXES = (".h", ".cc", ".proto", ".py", ".md", ".txt", ".toml", "")
MOST_LINES = 600
UNFINISHED = re.compile(r"\b(" + "TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")  # cut so that this line passes
SAYS_NOTHING = re.compile(r"(manager|helper|util)", re.I)
NAMED = re.compile(r"^\s*(?:template\s*<[^>]*>\s*)?(?:class|struct|enum(?:\s+class)?|union|namespace|message|using)\s+([\w:]+)", re.M)


def files(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            inside = path.relative_to(root).parts
            golden = path.name == "golden_descriptor.txt"  # made by its test
            if path.is_file() and not golden and path.suffix in SUFFIXES and inside[:2] != ("tests", "data") and "__pycache__" not in inside:
                yield path


def check(root):
    complaints = []
    for path in files(root):
        name = str(path.relative_to(root))
        if SAYS_NOTHING.search(name):
            complaints.append(f"words: {name}: the file's name does not say what it is")
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if UNFINISHED.search(line):
                complaints.append(f"words: {name}:{number}: unfinished: {line.strip()}")
        if len(lines) > MOST_LINES and path.suffix != ".md":
            complaints.append(f"words: {name} has {len(lines)} lines, at most {MOST_LINES}")
        if path.suffix not in (".h", ".cc", ".proto"):
            continue
        for type_name in NAMED.findall("\n".join(lines)):
            if SAYS_NOTHING.search(type_name.split("::")[-1]):
                complaints.append(f"words: {name}: the name {type_name} does not say what it is")
    return complaints


def self_test():
    clean = {"src/base/size.h": "class Size {};\nnamespace prefixd::base {}\n", "tests/data/x.txt": "TO" + "DO\n"}
    return tree.self_test(check, clean, [
        ("unfinished work", "src/base/a.cc", "// TO" + "DO: later\n", "unfinished"),
        ("a file of helpers", "src/base/string_util.h", "", "file's name"),
        ("a manager", "daemon/a.h", "class PageManager {};\n", "PageManager"),
        ("a helper namespace", "client/cpp/a.cc", "namespace prefixd::helper {}\n", "prefixd::helper"),
        ("a long file", "tests/base/a_test.cc", "\n" * 601, "601 lines"),
    ])


if __name__ == "__main__":
    sys.exit(self_test() if "--self-test" in sys.argv else tree.report(check(tree.ROOT)))
