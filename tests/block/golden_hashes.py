#!/usr/bin/env python3
"""Golden vectors of the block room, computed without any of its code.

Prints the constants that stand in block_hash_test.cc, space_identity_test.cc, page_check_test.cc and
page_layout_test.cc. Needs the package xxhash. The tests do not run this; it is how their constants were
made, and how another implementation checks itself.
"""
import hashlib
import struct

import xxhash


def u8(v): return struct.pack("<B", v)
def u16(v): return struct.pack("<H", v)
def u32(v): return struct.pack("<I", v)
def u64(v): return struct.pack("<Q", v)
def f64(v): return struct.pack("<d", v)
def framed(text): return u32(len(text)) + text.encode()


def root_hash(space):
    return hashlib.sha256(b"prefixd/1/root" + space).digest()[:16]


KEY = bytes(range(100, 132))


def block_hash(parent, tokens, content=()):
    data = KEY + parent + u32(len(tokens)) + b"".join(u32(t) for t in tokens) + u32(len(content))
    for start, item_offset, length, digest in content:
        data += u32(start) + u32(item_offset) + u32(length) + digest
    return hashlib.sha256(data).digest()[:16]


def tensor_format(codec, dtype, bits, group_size, scale_dtype, rotation=1, layout=1):
    return (u8(codec) + u8(dtype) + u8(bits) + u16(group_size) + u8(scale_dtype) + u8(rotation) +
            u8(layout))


def layer_group(name, kind, layers, heads, key_dim, value_dim, value_source, prefix_dim, tensor_rank,
                pipeline_rank, window, sinks, state_bytes, ladder):
    return (framed(name) + u8(kind) + u32(len(layers)) + b"".join(u32(l) for l in layers) + u32(heads) +
            u32(key_dim) + u32(value_dim) + u8(value_source) + u32(prefix_dim) + u32(tensor_rank) +
            u32(pipeline_rank) + u32(window) + u32(sinks) + u64(state_bytes) + u32(len(ladder)) +
            b"".join(key + value for key, value in ladder))


def identity():
    mlx8 = tensor_format(2, 2, 8, 64, 2)
    mlx4 = tensor_format(2, 2, 4, 64, 2)
    groups = [
        layer_group("full.0", 1, [0, 2], 2, 128, 64, 1, 0, 0, 0, 0, 0, 0, [(mlx8, mlx8), (mlx8, mlx4)]),
        layer_group("sliding.0", 2, [1], 2, 128, 128, 1, 0, 0, 0, 512, 4, 0, [(mlx8, mlx8)]),
        layer_group("state.0", 3, [3], 0, 0, 0, 1, 0, 0, 0, 0, 0, 4096, []),
    ]
    return (u32(1) + framed("demo/hybrid") + bytes([0x11] * 32) + bytes([0x22] * 32) + bytes([0x33] * 32) +
            u8(2) + bytes([0x44] * 32) +
            f64(500000.0) + framed("llama3") + u32(4) + f64(8.0) + f64(1.0) + f64(4.0) + f64(8192.0) +
            u32(128) + u8(1) + u8(1) +
            u32(2) + u32(1) + framed("local") + framed("alice") + u32(64) +
            u32(len(groups)) + b"".join(groups))


def page_value(layer, is_value, head, token, channel):
    """A number that depends on its place alone: SplitMix64, top 8 bits, in sixteenths. Exact in float16."""
    mask = (1 << 64) - 1
    x = ((((layer * 2 + is_value) * 16 + head) * 256 + token) * 1024 + channel + 1) * 0x9E3779B97F4A7C15 & mask
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    x ^= x >> 31
    return ((x >> 56) - 128) / 16.0


def raw_page(tokens):
    """2 layers, 3 heads, K of 40 float16, V of 24 float32: [layer][K heads][V heads], units padded to 128."""
    page = b""
    for layer in range(2):
        for is_value, dim, code in ((0, 40, "<e"), (1, 24, "<f")):
            for head in range(3):
                unit = b"".join(struct.pack(code, page_value(layer, is_value, head, t, c))
                                for t in range(tokens) for c in range(dim))
                page += unit + bytes(-len(unit) % 128)
    return page


def packed_byte(layer, is_value, head, token, at):
    return int(page_value(layer, is_value, head, token, at) * 16) + 128


def tiled_codes_of_key(codes, slots, dim, bits):
    """codes[slot][channel] -> [tile of 32 slots][channel / C][slot of the tile][word]."""
    out = b""
    for first in range(0, slots, 32):
        tile = range(first, min(first + 32, slots))
        if bits == 8:
            out += b"".join(bytes(codes[t][c:c + 4]) for c in range(0, dim, 4) for t in tile)
        else:
            out += b"".join(bytes(codes[t][c + j] | codes[t][c + 4 + j] << 4 for j in range(4))
                            for c in range(0, dim, 8) for t in tile)
    return out


def tiled_codes_of_value(codes, slots, dim, bits, group):
    """codes[slot][channel] -> [group][slot / 4][run][16 lanes][word of four tokens]."""
    run = 16 if bits == 8 else 32
    out = b""
    for g in range(0, dim, group):
        for s in range(0, slots, 4):
            for r in range(g, g + group, run):
                for lane in range(16):
                    if bits == 8:
                        out += bytes(codes[s + j][r + lane] for j in range(4))
                    else:
                        out += bytes(codes[s + j][r + lane] | codes[s + j][r + lane + 16] << 4
                                     for j in range(4))
    return out


def tiled_unit(codec, is_value, dim, bits, group, scale_bytes, tokens, packed):
    """packed(token, at): bytes of a row in MLX's order (codes, scales, biases) or of ggml's blocks."""
    slots = (tokens + 15) // 16 * 16
    codes = [[0] * dim for _ in range(slots)]
    parameters = {which: [[bytes(scale_bytes)] * slots for _ in range(dim // group)] for which in "sb"}
    has_biases = codec in ("mlx", "q4_1")
    for t in range(tokens):
        if codec == "mlx":
            for c in range(dim):
                codes[t][c] = packed(t, c) if bits == 8 else packed(t, c // 2) >> c % 2 * 4 & 15
            for w, which in enumerate("sb"):
                for g in range(dim // group):
                    at = dim * bits // 8 + (w * (dim // group) + g) * scale_bytes
                    parameters[which][g][t] = bytes(packed(t, at + i) for i in range(scale_bytes))
            continue
        head = 4 if has_biases else 2
        block = head + 32 * bits // 8
        for c in range(dim):
            at = c // 32 * block + head
            codes[t][c] = (packed(t, at + c % 32) if bits == 8 else
                           packed(t, at + c % 16) >> (4 if c % 32 >= 16 else 0) & 15)
        for w, which in enumerate("sb" if has_biases else "s"):
            for g in range(dim // 32):
                parameters[which][g][t] = bytes(packed(t, g * block + w * 2 + i) for i in range(2))
    unit = (tiled_codes_of_value(codes, slots, dim, bits, group) if is_value else
            tiled_codes_of_key(codes, slots, dim, bits))
    unit += b"".join(b"".join(of_group) for of_group in parameters["s"])
    if has_biases:
        unit += b"".join(b"".join(of_group) for of_group in parameters["b"])
    return unit + bytes(-len(unit) % 128)


def tiled_page(tokens, *sides):
    """2 layers, 3 heads; sides: (codec, dim, bits, group, scale_bytes) of K and of V."""
    page = b""
    for layer in range(2):
        for is_value, (codec, dim, bits, group, scale_bytes) in enumerate(sides):
            for head in range(3):
                page += tiled_unit(codec, is_value, dim, bits, group, scale_bytes, tokens,
                                   lambda t, at: packed_byte(layer, is_value, head, t, at))
    return page


def main():
    space = bytes(range(32))
    root = root_hash(space)
    print("root            ", root.hex())
    print("no tokens       ", block_hash(root, []).hex())
    print("one token       ", block_hash(root, [7]).hex())
    full = block_hash(root, [i * i + 1 for i in range(64)])
    print("64 tokens       ", full.hex())
    print("child of 17     ", block_hash(full, [0xFFFFFFFF - i for i in range(17)]).hex())
    digest = hashlib.sha256(b"an image").digest()
    print("with content    ", block_hash(full, list(range(32)), [(4, 60, 20, digest)]).hex())
    many = [(i * 6, i, 5, hashlib.sha256(u32(i)).digest()) for i in range(21)]
    print("21 content keys ", block_hash(full, list(range(128)), many).hex())
    encoded = identity()
    print("identity bytes  ", len(encoded))
    print("identity id     ", hashlib.sha256(encoded).hexdigest())
    page = bytes(i * 7 % 256 for i in range(1024))
    name = space + full + u16(3) + u16(1) + u16(2) + u32(64)
    check = xxhash.xxh3_64_intdigest(page, xxhash.xxh3_64_intdigest(name))
    print("page check       0x%016x" % check)
    header = (b"VKP1" + u16(1) + u16(3) + u16(1) + u16(2) + u32(64) + u32(1024) + u32(0) + space[:16] + full +
              u64(check))
    print("page header     ", header.hex())
    for tokens in (1, 31, 32, 63, 64):
        page = raw_page(tokens)
        print("raw page of %2d   %d bytes, 0x%016x" % (tokens, len(page), xxhash.xxh3_64_intdigest(page)))
    for name, sides in (
            ("8/64/f16 + 4/64/f16", (("mlx", 128, 8, 64, 2), ("mlx", 64, 4, 64, 2))),
            ("4/32/f32 + 8/32/bf16", (("mlx", 96, 4, 32, 4), ("mlx", 64, 8, 32, 2))),
            ("q8_0 + q4_0", (("q8_0", 64, 8, 32, 2), ("q4_0", 96, 4, 32, 2))),
            ("q4_1 + q4_1", (("q4_1", 64, 4, 32, 2), ("q4_1", 32, 4, 32, 2)))):
        for tokens in (1, 31, 32, 63, 64):
            page = tiled_page(tokens, *sides)
            print("tiled %s, %2d tokens: {%d, %d, 0x%016x}" %
                  (name, tokens, tokens, len(page), xxhash.xxh3_64_intdigest(page)))


if __name__ == "__main__":
    main()
