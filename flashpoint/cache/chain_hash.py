"""Chained hashes: a name for a block that depends on its content and on everything before it.

The index itself compares contents (`prefix_tree.py`), which is quicker than hashing them and cannot collide.
The hash names what must be named without the tokens at hand: runs on disk.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from flashpoint.cache.transfer import Content

KEY_BYTES = 16


def root_key(namespace: bytes) -> bytes:
    """The key in front of a namespace's first blocks."""
    return blake2b(namespace, digest_size=KEY_BYTES, person=b"chain root").digest()


def chain_keys(parent: bytes, content: Content, block_tokens: int) -> list[bytes]:
    """A key per whole block of `content` int32 [tokens]: key[i] = H(key[i-1], block i), key[-1] = parent."""
    data = np.ascontiguousarray(content, dtype="<i4").tobytes()
    size = 4 * block_tokens
    keys = []
    for start in range(0, len(data) - size + 1, size):
        parent = blake2b(data[start : start + size], digest_size=KEY_BYTES, key=parent).digest()
        keys.append(parent)
    return keys
