"""Layers with fewer formats than others of their space, and readers of a set that take formats of
their own."""

import numpy as np
import prefixd
from support import DaemonTest, same

DIM, HEADS, TOKENS = 64, 2, 150
RAW, PACKED = prefixd.raw("float32"), prefixd.mlx_affine(8, 64, "float32")
BOTH = prefixd.FullLayer(HEADS, DIM, DIM, [RAW, PACKED])
RAW_ALONE = prefixd.SlidingLayer(HEADS, DIM, DIM, [RAW], window=100)


def rows(seed: int, packed: bool):
    rng = np.random.default_rng(seed)
    if not packed:
        return (rng.random((1, HEADS, TOKENS, DIM), np.float32),)
    codes = rng.integers(0, 1 << 32, (1, HEADS, TOKENS, DIM // 4), np.uint32)
    return codes, *(rng.random((1, HEADS, TOKENS, 1), np.float32) for _ in range(2))


class FewerFormats(DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon.start()
        self.client = self.attached()
        self.tokens = list(range(TOKENS))

    def open(self, model: str, *layers):
        rope = prefixd.Rope(theta=1e4)
        return self.client.open_space(model=model, weights=bytes([5]) * 32, rope=rope, layers=layers)

    def store(self, space, own, writable) -> None:
        with space.reserve(self.tokens, writable=[writable]) as plan:
            for begin, end in plan.missing:
                for layer, (key, value) in enumerate(own):
                    cut = [tuple(part[:, :, begin:end] for part in side) for side in (key, value)]
                    self.assertTrue(plan.write_packed(layer, begin, key=cut[0], value=cut[1]))
                plan.commit(end)
            self.assertEqual(plan.commit(TOKENS, sequence_end=True).error, "")

    def test_a_layer_with_fewer_is_written_in_its_last_beside_one_that_has_it(self):
        space = self.open("mixed", BOTH, RAW_ALONE)
        own = [(rows(1, True), rows(2, True)), (rows(3, False), rows(4, False))]
        self.store(space, own, writable=1)
        with space.acquire(self.tokens) as lease:
            self.assertEqual(lease.wait_all(), TOKENS)
            self.assertTrue(same([lease.gather(0, TOKENS)], [own[0]]))
            self.assertEqual(lease.runs(0), [(0, TOKENS, 1)])
            self.assertEqual(lease.runs(1), [(0, TOKENS, 0)])
            window = [tuple(part[:, :, 50:] for part in side) for side in own[1]]
            self.assertTrue(same([lease.gather(1, 100, begin=50)], [tuple(window)]))

    def test_each_reader_of_a_set_takes_its_own_formats(self):
        spaces = [self.open("one", BOTH), self.open("two", BOTH)]
        self.store(spaces[0], [(rows(1, True), rows(2, True))], writable=1)
        self.store(spaces[1], [(rows(3, False), rows(4, False))], writable=0)

        def found(readable):
            leases = prefixd.acquire_set(spaces, self.tokens, readable=readable)
            return [lease.wait_all() for lease in leases]

        self.assertEqual(found(None), [TOKENS, TOKENS])
        self.assertEqual(found([[1], [0]]), [TOKENS, TOKENS])
        self.assertEqual(found([[0], [0]]), [0, 0])
        with self.assertRaisesRegex(prefixd.Error, "readable has 1 entries for 2 spaces"):
            found([[0]])
