"""The options of a recording; light to import, so that a command line can list them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flashpoint.errors import InvalidValue

Source = Literal["claude-code", "codex", "opencode"]


@dataclass(frozen=True)
class RecordConfig:
    """What to record and where to."""

    out: Path = field(metadata={"help": "folder for the traces; new or empty"})
    source: Source | None = field(
        default=None, metadata={"help": "claude-code, codex or opencode; default: by looking at the files"}
    )
    tokenizer: Path | None = field(
        default=None,
        metadata={"help": "tokenizer.json or its folder, to count with; default: DeepSeek's"},
    )
    min_calls: int = field(default=2, metadata={"help": "leave out sessions with fewer calls"})

    def __post_init__(self) -> None:
        if self.min_calls < 1:
            raise InvalidValue("min_calls", self.min_calls, "a whole number of at least 1")
