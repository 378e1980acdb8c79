"""prefixd.vllm against vLLM's interfaces as they were recorded, where neither vLLM nor torch is to
be had. tests/vllm checks that the record is the installed vLLM's."""

from __future__ import annotations

import ast
import json
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "client/python/prefixd/vllm"
RECORDED = json.loads((HERE / "vllm_signatures.json").read_text())


def methods_of(place: str) -> dict[str, ast.FunctionDef]:
    """The methods of a class of the package, its own alone."""
    file, _, name = place.partition(" ")
    tree = ast.parse((PACKAGE / file).read_text())
    (found,) = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
    return {one.name: one for one in found.body if isinstance(one, ast.FunctionDef)}


def arguments_of(method: ast.FunctionDef) -> list[str]:
    """Those with a name; a method may take any others besides."""
    every = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
    return [one.arg for one in every if one.arg not in ("self", "cls")]


def _named(arguments: list[str]) -> list[str]:
    return [one for one in arguments if one not in ("args", "kwargs")]


class InterfaceTest(unittest.TestCase):
    def setUp(self) -> None:
        self.classes = {place: said for place, said in RECORDED.items() if place != "vllm"}
        self.assertEqual(len(self.classes), 2)

    def test_all_that_vllm_requires_is_there(self) -> None:
        for place, interface in self.classes.items():
            required = {name for name, one in interface.items() if one["required"]}
            self.assertTrue(required)
            self.assertLessEqual(required, set(methods_of(place)), place)

    def test_what_vllm_calls_has_its_arguments(self) -> None:
        for place, interface in self.classes.items():
            own = methods_of(place)
            public = {name: own[name] for name in own if name == "__init__" or name[0] != "_"}
            self.assertLessEqual(set(public), set(interface), "vLLM calls nothing else")
            for name, method in public.items():
                with self.subTest(place=place, method=name):
                    self.assertEqual(arguments_of(method), _named(interface[name]["arguments"]))


if __name__ == "__main__":
    unittest.main()
