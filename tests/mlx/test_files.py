"""mlx-lm's prompt-cache files through prefixctl import and export: mlx-lm loads what comes out and decodes on from it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import KVCache, load_prompt_cache, make_prompt_cache, save_prompt_cache
from prefixd.engine.files import Files
from prefixd.mlx import geometry
from processes import BUILD
from rows import WithDaemon, prompt
from tiny_model import tokens as tokens_of
from tiny_model import words


class WithPrefixctl(WithDaemon):
    def prefixctl(self, *arguments: object) -> dict:
        command = [BUILD / "prefixctl", "--server", self.daemon.address, "--json", *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


class PromptCacheFiles(WithPrefixctl):
    def continuation(self, caches: list, count: int = 12) -> list[int]:
        token, tokens = mx.array([[7]]), []
        for _ in range(count):
            token = mx.argmax(self.model(token, cache=caches)[:, -1:, :], axis=-1)
            tokens.append(token.item())
        return tokens

    def round_trip(self, bits: int) -> None:
        ids = prompt(100, seed=bits)
        caches = make_prompt_cache(self.model)
        self.model(mx.array([ids]), cache=caches)
        if bits:
            caches = [cache.to_quantized(group_size=32, bits=bits) for cache in caches]
        path, back = self.folder / f"in{bits}.safetensors", self.folder / f"out{bits}.safetensors"
        save_prompt_cache(str(path), caches)
        identity = self.folder / f"identity{bits}.json"
        identity.write_text(json.dumps({"model": f"tiny-{bits}", "weights_digest": "ab" * 32}))
        tokens = self.folder / "ids.json"
        tokens.write_text(json.dumps(ids))
        whose = ["--identity", identity, "--tokens-file", tokens]
        stored = self.prefixctl("import", path, *whose)
        self.assertEqual(stored["stored_tokens"], 100)
        written = self.prefixctl("export", back, "--space", stored["space_id"], "--tokens-file", tokens)
        self.assertEqual(written["tokens"], 100)
        loaded = load_prompt_cache(str(back))
        self.assertEqual([type(c) for c in loaded], [type(c) for c in caches])
        self.assertEqual([c.offset for c in loaded], [100] * len(caches))
        for one, other in zip(caches, loaded):
            left, right = one.keys_and_values(), other.keys_and_values()
            if isinstance(one, KVCache):
                left, right = [[part] for part in left], [[part] for part in right]
            for a, b in zip([*left[0], *left[1]], [*right[0], *right[1]]):
                self.assertEqual(a.dtype, b.dtype)
                self.assertTrue(mx.array_equal(a.view(mx.uint8), b.view(mx.uint8)))
        self.assertEqual(self.continuation(loaded), self.continuation(caches))

    def test_full_precision_comes_back_and_decodes_on(self):
        self.round_trip(0)

    def test_8_bits_come_back_and_decode_on(self):
        self.round_trip(8)

    def test_4_bits_come_back_and_decode_on(self):
        self.round_trip(4)

    def test_mlx_lm_generate_goes_on_from_an_exported_file(self):
        ids = prompt(60, seed="generate")
        caches = make_prompt_cache(self.model)
        self.model(mx.array([ids]), cache=caches)
        path, back = self.folder / "mine.safetensors", self.folder / "back.safetensors"
        save_prompt_cache(str(path), caches)
        ids_file = self.folder / "generate.json"
        ids_file.write_text(json.dumps(ids))
        whose = ["--model", self.checkpoint, "--tokens-file", ids_file]
        stored = self.prefixctl("import", path, *whose)
        export = ["export", back, "--space", stored["space_id"], "--tokens-file", ids_file]
        self.prefixctl(*export, "--model", self.checkpoint)
        command = [sys.executable, "-m", "mlx_lm", "generate", "--prompt-cache-file", back]
        command += ["--model", self.checkpoint, "--prompt", words([7]), "--max-tokens", "6"]
        done = subprocess.run(
            [*map(str, command), "--ignore-chat-template", "--verbose", "False"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(tokens_of(done.stdout), self.continuation(caches, 6))

    def test_export_leaves_a_file_that_is_there_alone_unless_it_is_forced(self):
        ids = prompt(20, seed="force")
        caches = make_prompt_cache(self.model)
        self.model(mx.array([ids]), cache=caches)
        path = self.folder / "precious.safetensors"
        save_prompt_cache(str(path), caches)
        before = path.read_bytes()
        tokens = ["--tokens", ",".join(map(str, ids))]
        space = self.prefixctl("import", path, "--model", self.checkpoint, *tokens)["space_id"]
        export = [BUILD / "prefixctl", "--server", self.daemon.address, "export", path]
        export = list(map(str, [*export, "--space", space, *tokens]))
        done = subprocess.run(export, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("is there already", done.stderr)
        self.assertEqual(path.read_bytes(), before)
        self.prefixctl("export", path, "--force", "--space", space, *tokens)
        self.assertNotEqual(path.read_bytes(), before)


class Identities(WithPrefixctl):
    """What prefixctl says of a model's folder, and what the Python adapters say."""

    def identity(self, folder: Path) -> dict:
        return self.prefixctl("identity", "--model", folder)

    def test_an_import_lands_in_the_space_of_the_server(self):
        ids = prompt(100, seed="whose")
        self.prompt_cache().insert_cache("model", ids, self.engine_caches(100))
        (theirs,) = [
            space
            for space in self.prefixctl("spaces")["spaces"]
            if space["identity"]["model"] == self.checkpoint.name
        ]
        path = self.folder / "theirs.safetensors"
        save_prompt_cache(str(path), self.engine_caches(100))
        tokens = ["--tokens", ",".join(map(str, ids))]
        whose = ["--model", self.checkpoint, "--salt", self.id()]
        report = self.prefixctl("import", path, *whose, *tokens)
        self.assertEqual(report["space_id"], theirs["space_id"])
        self.assertEqual(report["stored_tokens"], 0)
        self.assertIn(f"that of {self.checkpoint.name}, with 100 tokens before", report["whose"])
        elsewhere = self.prefixctl("import", path, *whose[:2], "--salt", "another", *tokens)
        self.assertIn("a new one, which no worker has opened", elsewhere["whose"])

    def test_agree_with_pythons_for_every_spelling_of_a_configuration(self):
        fields = [
            {"rope_theta": 1e6, "some": 1e-5, "more": [1e16, 123456789.125, -0.0, 1.0, 2, True, None]},
            {"rope_theta": 500000, "ünï": "\u00e9\U0001f600\x7f\n\"", "nested": {"eos_x": 1, "b": {}, "a": []}},
            {"_name_or_path": "a/b", "transformers_version": "9", "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"partial_rotary_factor": 0.5, "rope_traditional": True, "tiny": 2.5e-310, "huge": 1.7e308},
        ]
        for number, changed in enumerate(fields):
            folder = shutil.copytree(self.checkpoint, self.folder / f"spelling{number}")
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, **changed}))
            files, said = Files.of(str(folder)), self.identity(folder)
            rope = geometry.rotation(files.config(), 64)
            self.assertEqual(said["model"], folder.name)
            self.assertEqual(said["weights_digest"], files.weights().hex(), changed)
            self.assertEqual(said["tokenizer_digest"], files.tokenizer().hex())
            self.assertEqual(said["rope"]["theta"], rope.theta)
            self.assertEqual(said["rope"]["rotary_dim"], rope.rotary_dim)
            self.assertEqual(said["rope"]["scaling"], rope.scaling)
            self.assertEqual(said["rope"]["interleaved"], rope.interleaved)
