"""`docs/invariants.md` names tests that exist, and code cites only ids that it lists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (INV-\d+) \| .+ \| `(.+)::(.+)` \|$", (ROOT / "docs/invariants.md").read_text(), re.M)


def test_the_list_is_short_and_each_test_exists() -> None:
    assert [name for name, *_ in ROWS] == [f"INV-{i + 1}" for i in range(len(ROWS))]
    assert 0 < len(ROWS) <= 15
    for _, file, test in ROWS:
        source = (ROOT / file).read_text()
        for name in test.split("."):
            assert re.search(rf"^\s*(def|class) {name}\b", source, re.M), f"{file} has no {name}"


def test_every_listed_id_is_cited_in_the_code_and_no_other() -> None:
    cited = {
        name
        for file in (ROOT / "flashpoint").rglob("*.py")
        for name in re.findall(r"INV-\d+", file.read_text(encoding="utf-8"))
    }
    assert cited == {name for name, *_ in ROWS}
