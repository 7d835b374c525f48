"""The report page in a real browser, opened from disk."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flashpoint.agentx.report import write_report
from tests.agentx.made_records import made_archive, made_record

pytestmark = pytest.mark.slow

# Appended to a copy of the page; what it finds is written into the document that `--dump-dom` prints.
PROBE = """
<pre id="found"></pre>
<script>
const points = [...document.querySelectorAll(".point")];
const shown = points.filter((point) => point.getClientRects().length);
shown[0].focus();
const onFocus = document.getElementById("tip").hidden ? "" : document.getElementById("tip").textContent;
shown[0].blur();
shown[1].dispatchEvent(new Event("pointerenter"));
const box = document.getElementById("tip").getBoundingClientRect();
const out = {
  points: points.length, shown: shown.length, onFocus,
  onHover: document.getElementById("tip").textContent,
  tipInside: box.left >= 0 && box.right <= innerWidth,
  labelled: points.every((point) => point.getAttribute("aria-label")),
  wider: document.documentElement.scrollWidth - innerWidth,
  tablesFocusable: [...document.querySelectorAll(".scroll")].every((part) => part.tabIndex === 0),
  requests: performance.getEntriesByType("resource").length,
  text: getComputedStyle(document.body).color, page: getComputedStyle(document.body).backgroundColor,
};
document.getElementById("found").textContent = Object.entries(out).map(([k, v]) => `${k}: ${v}`).join(";\\n");
</script>
"""


def browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.fail("no browser found; this test needs Chromium: apt-get install -y chromium")


def look(page: Path, tmp_path: Path, size: str, *options: str) -> dict[str, str]:
    """What the probe finds when the page is opened in a window of `size`."""
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text() + PROBE)
    done = subprocess.run(
        [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         f"--window-size={size}", *options, "--dump-dom", probed.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert found and found[1], done.stderr
    return {key: value for key, _, value in (line.partition(": ") for line in found[1].split(";\n"))}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    for run in ("first", "second"):
        made_archive(
            tmp_path / run,
            {
                c: [made_record(c / 10 + i, (0.1, 0.1 + c / 50, 0.1 + c / 25)) for i in range(c)]
                for c in (1, 2, 4)
            },
        )
    write_report([tmp_path / "first", tmp_path / "second"], tmp_path / "report.html")
    return tmp_path / "report.html"


@pytest.mark.parametrize("size", ["1200,900", "390,800"])
def test_points_speak_and_the_page_fits(page: Path, tmp_path: Path, size: str) -> None:
    found = look(page, tmp_path, size)
    assert (found["points"], found["shown"]) == ("12", "6")
    assert found["onFocus"].startswith("first, concurrency 1\n")
    assert found["onHover"].startswith("first, concurrency 2\n")
    assert found["tipInside"] == found["labelled"] == found["tablesFocusable"] == "true"
    assert int(found["wider"]) <= 0
    assert found["requests"] == "0"


def test_dark_mode(page: Path, tmp_path: Path) -> None:
    light = look(page, tmp_path, "1200,900", "--blink-settings=preferredColorScheme=1")
    dark = look(page, tmp_path, "1200,900", "--blink-settings=preferredColorScheme=0")
    assert light["page"] != dark["page"] and light["text"] != dark["text"]
