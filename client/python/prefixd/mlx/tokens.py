"""Prompts as prefixd wants them: uint32 tokens, and beside them images, which are no tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

_PLACEHOLDER = 0


@dataclass(frozen=True)
class Image:
    """Tokens [start, start + length) stand for an image."""

    start: int
    length: int
    digest: bytes  # 32 bytes


@dataclass(frozen=True)
class Prompt:
    tokens: list[int]
    images: tuple[Image, ...] = ()

    def cut(self, count: int) -> Prompt:
        """Returns the first `count` tokens. Requires: `count` is not inside an image."""
        return Prompt(self.tokens[:count], tuple(i for i in self.images if i.start < count))

    def begins_with(self, prefix: Prompt) -> bool:
        return self.cut(len(prefix.tokens)) == prefix

    def outside_images(self, count: int) -> int:
        """Returns `count`, or fewer if it ends inside an image: mlx-lm computes an image whole."""
        for image in self.images:
            if image.start < count < image.start + image.length:
                return image.start
        return count


def from_server(keys: Sequence[int]) -> Prompt:
    """Returns the prompt of mlx_lm.server's cache keys: tokens, and a negative number of its own
    for each token of an image."""
    tokens, images, at = [], [], 0
    while at < len(keys):
        if keys[at] >= 0:
            tokens.append(int(keys[at]))
            at += 1
            continue
        end = at
        while end < len(keys) and keys[end] == keys[at]:
            end += 1
        digest = hashlib.sha256(f"mlx-lm image {keys[at]}".encode()).digest()
        images.append(Image(at, end - at, digest))
        tokens += [_PLACEHOLDER] * (end - at)
        at = end
    return Prompt(tokens, tuple(images))
