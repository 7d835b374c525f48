from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from flashpoint.engine.config import EngineConfig
from flashpoint.errors import InvalidValue


def test_every_field_has_help_for_the_command_line() -> None:
    assert all(field.metadata.get("help") for field in fields(EngineConfig))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_running", {"max_running": 0}),
        ("max_running", {"max_running": True}),
        ("max_step_tokens", {"max_step_tokens": 3, "max_running": 4}),
        ("max_step_tokens", {"max_step_tokens": 2048.0}),
        ("max_waiting", {"max_waiting": 0}),
        ("block_tokens", {"block_tokens": -64}),
        ("cache_tokens", {"cache_tokens": 63}),
        ("max_context", {"max_context": 1}),
        ("semantics", {"semantics": "half"}),
    ],
)
def test_bad_values_name_their_field(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}: got") as caught:
        EngineConfig(**values)
    assert caught.value.field == field
