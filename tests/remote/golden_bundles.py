#!/usr/bin/env python3
"""Golden vectors of names and bundles, computed without any code of the room remote.

Prints the constants that stand in names_test.cc and bundle_test.cc. Needs Debian's python3-cryptography
and libxxhash0. The tests do not run this; it is how their constants were made, and how another
implementation checks itself.
"""
import base64
import ctypes
import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC, VERSION, CHECKS, SEALED = b"VKB1", 1, 0, 1
STRIPE_PAYLOAD = 262080 - 16


def u8(v): return struct.pack("<B", v)
def u32(v): return struct.pack("<I", v)
def u64(v): return struct.pack("<Q", v)
def framed(text): return u32(len(text)) + text
def u32s(values): return u32(len(values)) + b"".join(u32(v) for v in values)
def hmac256(key, message): return hmac.new(key, message, hashlib.sha256).digest()


def xxh3(data):
    function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    function.restype = ctypes.c_uint64
    return function(data, ctypes.c_size_t(len(data)))


# --- names ---

def hkdf(secret, salt, info):
    return hmac256(hmac256(salt, secret), info + b"\x01")


def tenant_keys(secret, tenant):
    salt = hashlib.sha256(tenant).digest()
    return hkdf(secret, salt, b"prefixd remote 1 naming"), hkdf(secret, salt, b"prefixd remote 1 sealing")


def content_bytes(content):
    return u32(len(content)) + b"".join(u32(s) + u32(o) + u32(l) + d for s, o, l, d in content)


def chain_name(naming, generation, space, parent, tokens, content=()):
    message = u64(generation) + space + parent + u32s(tokens) + content_bytes(content)
    return hmac256(naming, message)[:16]


def key_of(name, formats):
    return "pd1:{" + base64.urlsafe_b64encode(name).decode().rstrip("=") + "}:" + formats


# --- bundles ---

class Cipher:
    def __init__(self, sealing, salt, name, formats):
        self.aead = AESGCM(hmac256(sealing, salt))
        self.bound = MAGIC + u8(VERSION) + u8(SEALED) + salt + name + framed(formats)

    def seal(self, nonce, stripes, data):
        return self.aead.encrypt(u32(nonce) + bytes(8), data, self.bound + u32(nonce) + u32(stripes))


def body(generation, space, name, parent, first_token, formats, tokens, content, ends, pages, stripes, sums=()):
    return (u64(generation) + space + name + parent + u32(first_token) + framed(formats) + u32s(tokens) +
            content_bytes(content) + u32s(ends) +
            u32(len(pages)) + b"".join(u32(g) + u32(r) + u64(b) for g, r, b in pages) +
            u32(stripes) + b"".join(u64(s) for s in sums))


def header(seal, body_bytes, salt):
    return MAGIC + u8(VERSION) + u8(seal) + u32(body_bytes) + salt


def page(group, size):
    return bytes((group * 91 + i * 7) % 256 for i in range(size))


def main():
    secret, tenant = b"the bytes of a key file", b"team a"
    naming, sealing = tenant_keys(secret, tenant)
    print("naming key      ", naming.hex())
    print("sealing key     ", sealing.hex())
    space = bytes(range(32))
    generation = 0x0000000500000007
    first = chain_name(naming, generation, space, bytes(16), [i * i + 1 for i in range(64)])
    print("first           ", first.hex(), key_of(first, "0"))
    digest = hashlib.sha256(b"an image").digest()
    tokens, content = list(range(1000, 1016)), [(4, 60, 9, digest)]
    second = chain_name(naming, generation, space, first, tokens, content)
    print("second          ", second.hex(), key_of(second, "s"))
    many = [(i * 6, i, 5, hashlib.sha256(u32(i)).digest()) for i in range(21)]
    print("21 content keys ", chain_name(naming, generation, space, second, list(range(128)), many).hex())
    print("nothing         ", chain_name(naming, 0, bytes(32), bytes(16), []).hex())

    salt = bytes(range(200, 216))
    cipher = Cipher(sealing, salt, second, b"s")
    pages = [(0, 16, 5), (2, 7, 19)]
    fields = (generation, space, second, first, 64, b"s", tokens, content, [3, 16], pages)
    data = b"".join(page(group, size) for group, _, size in pages)
    plain = body(*fields, 1)
    print("sealed record   ", (header(SEALED, len(plain), salt) + cipher.seal(0, 0, plain)).hex())
    print("sealed stripe   ", cipher.seal(1, 1, data).hex())
    plain = body(*fields, 1, [xxh3(data)])
    record = header(CHECKS, len(plain), bytes(16)) + plain
    print("checked record  ", (record + u64(xxh3(record))).hex())

    data = page(0, 300001) + page(2, 300001)  # three stripes
    stripes = [data[at:at + STRIPE_PAYLOAD] for at in range(0, len(data), STRIPE_PAYLOAD)]
    sealed = [cipher.seal(i + 1, len(stripes), stripe) for i, stripe in enumerate(stripes)]
    print("three stripes   ", hashlib.sha256(b"".join(sealed)).hexdigest(), [len(s) for s in sealed])
    print("their sums      ", ["%016x" % xxh3(stripe) for stripe in stripes])


if __name__ == "__main__":
    main()
