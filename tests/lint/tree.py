"""The project's own files, and how a lint proves that it can turn red."""
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = ("src", "daemon", "client")


def cpp_files(root, folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh") and path.is_file():
                yield path


def self_test(check, clean, violations):
    """`check(root)` gives a list of complaints. It must give none for the files of `clean`, and one that contains the
    expected text for each of `violations`: (what to plant, the file's path, its text, expected text)."""
    def complaints(files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return check(root)

    failures = [f"complains about clean files: {c}" for c in complaints(clean)]
    for what, name, text, expected in violations:
        seen = complaints({**clean, name: text})
        if not any(expected in complaint for complaint in seen):
            failures.append(f"does not see {what}; it said {seen}")
    return report(failures)


def report(complaints):
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0
