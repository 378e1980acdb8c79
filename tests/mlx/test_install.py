"""What `pip install 'prefixd[mlx]'` brings, by the metadata of the wheel."""

import importlib.util
import tomllib
import unittest
from pathlib import Path

from packaging.requirements import Requirement

PACKAGE = Path(__file__).resolve().parents[2] / "client" / "python"


class TheExtraMlx(unittest.TestCase):
    def needed(self, system: str, extra: str) -> set[str]:
        """Of an installation with the extra."""
        spec = importlib.util.spec_from_file_location("build_wheel", PACKAGE / "build_wheel.py")
        backend = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(backend)
        project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
        lines = backend._metadata(project).split("\n\n")[0].splitlines()
        needed = [Requirement(li.partition(": ")[2]) for li in lines if "Requires-Dist" in li]
        where = {"extra": extra, "platform_system": system}
        return {str(n).split(";")[0] for n in needed if not n.marker or n.marker.evaluate(where)}

    def test_brings_mlx_itself_on_linux_where_mlx_lm_does_not(self):
        self.assertEqual(
            self.needed("Linux", "mlx"), {"numpy>=1.24", "mlx-lm>=0.32", "mlx[cpu]"}
        )

    def test_leaves_mlx_to_mlx_lm_elsewhere(self):
        self.assertEqual(self.needed("Darwin", "mlx"), {"numpy>=1.24", "mlx-lm>=0.32"})

    def test_is_not_needed(self):
        self.assertEqual(self.needed("Linux", ""), {"numpy>=1.24"})


if __name__ == "__main__":
    unittest.main()
