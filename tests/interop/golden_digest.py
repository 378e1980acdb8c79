#!/usr/bin/env python3
"""The golden vectors of checkpoint_digest_test.cc, computed without any of the room's code."""
import hashlib
import json
import pathlib
import struct


def framed(text): return struct.pack("<I", len(text.encode())) + text.encode()


def digest(tensors):
    data = framed("prefixd/1/weights") + struct.pack("<Q", len(tensors))
    for name, dtype, shape, raw in sorted(tensors, key=lambda t: t[0].encode()):
        data += framed(name) + framed(dtype) + struct.pack("<I", len(shape))
        data += b"".join(struct.pack("<Q", size) for size in shape) + hashlib.sha256(raw).digest()
    return hashlib.sha256(data).hexdigest()


def read(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
    return [(name, t["dtype"], t["shape"], data[slice(*t["data_offsets"])])
            for name, t in header.items() if name != "__metadata__"]


print(digest([("w", "F16", [2, 2], b"wwwwwwww"), ("b", "U8", [2], b"bb")]))
print(digest(read(pathlib.Path(__file__).parent.parent / "data/model/model.safetensors")))
