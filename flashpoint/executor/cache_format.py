"""What tells cached bytes that can be used from those that cannot."""

from __future__ import annotations

import json
from hashlib import blake2b

from flashpoint.models.load import LoadedModel

CONTENT_FILES = ("config.json", "tokenizer.json")
SAMPLES, SAMPLE_BYTES = 64, 4096


def format_key(loaded: LoadedModel, semantics: str) -> bytes:
    """A digest that differs when cached bytes of one run are useless to another: other weights, another
    cache format, numerics or semantics.

    Weights are told apart by the sizes and samples of every safetensors file: reading all of a large
    checkpoint to name it would take minutes.
    """
    digest = blake2b(digest_size=16)
    numerics = loaded.model.numerics
    parts = (numerics.mode, numerics.compute, semantics, *(repr(group) for group in loaded.cache_spec.groups))
    digest.update(json.dumps(parts).encode())
    for name in CONTENT_FILES:
        digest.update((loaded.folder / name).read_bytes())
    for path in sorted(loaded.folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for part in range(SAMPLES):
                file.seek(size * part // SAMPLES)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
