"""Runs `serve` with a fake executor in a process of its own: `serve_process.py CHECKPOINT [field=value…]`.

`step_seconds=…` and `vocab_size=…` are the executor's; every other field is ServerConfig's.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

from flashpoint.engine.config import EngineConfig
from flashpoint.engine.service import EngineService
from flashpoint.errors import FlashpointError
from flashpoint.server.config import ServerConfig
from flashpoint.server.run import serve
from tests.engine.fake_executor import FakeExecutor
from tests.server.harness import capacity


def main() -> int:
    options = dict(argument.split("=", 1) for argument in sys.argv[2:])
    step_seconds = float(options.pop("step_seconds", "0"))
    vocab_size = int(options.pop("vocab_size", "512"))
    types = {"int": int, "float": float}
    field_types = {field.name: types.get(str(field.type), str) for field in fields(ServerConfig)}
    config = ServerConfig(**{name: field_types[name](value) for name, value in options.items()})
    engine = EngineService(
        FakeExecutor(capacity(vocab_size), seconds=step_seconds),
        EngineConfig(block_tokens=16, cache_tokens=65_536),
    )
    try:
        return serve(engine, Path(sys.argv[1]), config)
    except FlashpointError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
