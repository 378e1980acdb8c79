"""engine.affine against what MLX itself computed (tests/data/mlx)."""

import unittest
from pathlib import Path

import numpy as np
import torch
from prefixd.engine import affine

DATA = Path(__file__).resolve().parents[1] / "data" / "mlx"
ROWS, DIM = 64, 256
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def read(name: str) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(DATA / name, np.uint8))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit. One zero is as good as the other where MLX's own builds differ in it."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


class GoldenVectors(unittest.TestCase):
    def test_codes_scales_biases_and_dequantized_rows_are_those_of_mlx(self):
        for name, dtype in DTYPES.items():
            rows = read(f"input_{name}.bin").view(dtype).view(ROWS, DIM)
            for bits in (2, 3, 4, 5, 6, 8):
                for group in (32, 64, 128):
                    with self.subTest(dtype=name, bits=bits, group=group):
                        self.check(name, rows, bits, group)

    def check(self, name: str, rows: torch.Tensor, bits: int, group: int) -> None:
        golden = read(f"{name}_b{bits}_g{group}.bin")
        item, code_bytes = rows.element_size(), ROWS * DIM * bits // 8
        sizes = [code_bytes, *[ROWS * DIM // group * item] * 2]
        codes, scales, biases = golden[: sum(sizes)].split(sizes)
        mine = affine.quantize(rows, bits, group)
        self.assertTrue(torch.equal(mine[0].flatten(), codes))
        self.assertTrue(same_bits(mine[1].flatten().view(torch.uint8), scales))
        self.assertTrue(same_bits(mine[2].flatten().view(torch.uint8), biases))
        if group == 64:
            given = golden[sum(sizes) :].view(rows.dtype).view(ROWS, DIM)
            self.assertTrue(same_bits(affine.dequantize(mine, bits, group), given))


if __name__ == "__main__":
    unittest.main()
