"""mlx-lm's prompt-cache files through prefixctl import and export: mlx-lm loads what comes out and decodes on from it."""

import json
import subprocess

import mlx.core as mx
from mlx_lm.models.cache import KVCache, load_prompt_cache, make_prompt_cache, save_prompt_cache
from processes import BUILD
from rows import WithDaemon, prompt


class PromptCacheFiles(WithDaemon):
    def prefixctl(self, *arguments: object) -> dict:
        command = [BUILD / "prefixctl", "--server", self.daemon.address, "--json", *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

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
