"""What a reader of another tool's results hands over, and how such files are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import orjson
import pyarrow as pa

from flashpoint.agentx.archive import LevelInfo, RunInfo
from flashpoint.agentx.records import RequestRecord
from flashpoint.errors import FlashpointError

PHASE_SECONDS = "measured_phase_duration"
"""Name of the one reported figure that the harness does not print: its end time - its start time. Unit: s."""
POINT = "inferencex."
"""Before the names of a point's figures where the harness's own figures are there too."""


class ImportFailed(FlashpointError):
    """Another tool's results cannot be read; the message names the file, the place and the reason."""


@dataclass(frozen=True)
class Imported:
    """A run as read from another tool's files, before it is an archive; only level 0 can have records."""

    run: RunInfo
    levels: list[LevelInfo]
    records: list[RequestRecord] = field(default_factory=list)
    series: pa.Table | None = None
    last_response: Mapping[str, float] = field(default_factory=dict)
    """By request id, seconds from the request's start to its last response chunk, content or not.

    Some figures of the harness end there. The archive has no such field, so only the import can check them.
    """
    without_reasoning: Mapping[str, int] = field(default_factory=dict)
    """By request id, tokens of the answer that are not reasoning; the archive counts both together."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ImportFailed(f"{path}: cannot be read ({error.strerror})") from error
    except orjson.JSONDecodeError as error:
        raise ImportFailed(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ImportFailed(f"{path}: holds {type(value).__name__}; expected an object")
    return value


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def scalars(values: Mapping[str, Any]) -> dict[str, str | int | float | bool | None]:
    """The entries of a JSON object that are text, numbers, truth values or null."""
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | None)}
