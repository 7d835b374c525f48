"""Settings of the cache's slower tiers; the command line is generated from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from flashpoint.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Where cached blocks go when the device has no room for them. Raises InvalidValue naming the field.

    Sizes are bytes. Blocks reach the disk by way of host memory, so a disk tier needs some of that.
    """

    host_memory: int = field(
        default=0, metadata={"help": "memory for cached blocks that left the device; 0: none", "size": True}
    )
    disk_folder: Path | None = field(
        default=None, metadata={"help": "folder for cached blocks that left host memory; default: none"}
    )
    disk_space: int = field(
        default=16 * 2**30, metadata={"help": "what the disk folder may hold of this model", "size": True}
    )

    def __post_init__(self) -> None:
        if self.host_memory < 0:
            raise InvalidValue("host_memory", self.host_memory, "0 or more bytes")
        if self.disk_space < 0:
            raise InvalidValue("disk_space", self.disk_space, "0 or more bytes")
        if self.disk_folder is not None and not self.host_memory:
            raise InvalidValue("host_memory", 0, "more than 0 with a disk_folder: disk is reached through it")
