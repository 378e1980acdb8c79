"""Writes the golden vectors of mxfp4, mxfp8 and nvfp4 beside this file, computed by mlx's CPU backend from input_f32.bin.

Usage: python block_float.py   (a Python with mlx and numpy, scripts/python-venv makes one)

nvfp4 is what mx.quantize gives. The scale of mxfp4 and mxfp8 is the one of the commit that README.md names, round(log2(amax / top)),
in mlx's own operations on float32; mx.quantize of mlx 0.32.4 takes the ceiling instead. Values are what mx.dequantize makes of them.
"""

import pathlib

import mlx.core as mx
import numpy as np

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def mx_quantize(rows: mx.array, bits: int) -> tuple[mx.array, mx.array]:
    groups = mx.reshape(rows, (-1, 32))
    scales = mx.max(mx.abs(groups), -1, keepdims=True) / (6.0 if bits == 4 else 448.0)
    exponents = mx.where(scales == 0, 0, mx.round(mx.log2(scales)).astype(mx.int32))
    groups = groups / mx.power(mx.array(2.0), exponents)
    if bits == 8:
        codes = mx.to_fp8(groups)
    else:
        grid = mx.array(E2M1 + [-value for value in E2M1])
        nearest = mx.argmin(mx.abs(groups[..., None] - grid), -1)
        codes = (nearest[:, 0::2] + nearest[:, 1::2] * 16).astype(mx.uint8)
    scale_bytes = (exponents + 127).astype(mx.uint8)
    return mx.reshape(codes, (64, -1)).view(mx.uint32), mx.reshape(scale_bytes, (64, -1))


mx.set_default_device(mx.cpu)
folder = pathlib.Path(__file__).parent
rows = mx.array(np.fromfile(folder / "input_f32.bin", dtype=np.float32).reshape(64, 256))
for mode, group, bits in (("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)):
    if mode == "nvfp4":
        codes, scales = mx.quantize(rows, group_size=group, bits=bits, mode=mode)
    else:
        codes, scales = mx_quantize(rows, bits)
    values = mx.dequantize(codes, scales, group_size=group, bits=bits, mode=mode)  # bfloat16
    sections = [codes, scales, values.view(mx.uint16)]
    (folder / f"{mode}.bin").write_bytes(b"".join(np.array(part).tobytes() for part in sections))
