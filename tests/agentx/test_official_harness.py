"""The official harness beside `flashpoint replay`: the short form of `benchmarks/vs_agentx_harness.py`."""

from pathlib import Path

import pytest

from benchmarks import vs_agentx_harness

SHARED = Path(__file__).parents[2].parent / "shared"
TOKENIZER = SHARED / "official-run" / "tokenizer"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not TOKENIZER.exists(), reason="needs the tokenizer beside the recorded official runs")
def test_the_same_requests_and_the_same_figures(capsys):
    found = vs_agentx_harness.main(["--short", "--tokenizer", str(TOKENIZER)])
    capsys.readouterr()
    assert found["sessions"]["turns"] == 90 and not found["sessions"]["different_streams"]
    run = found["constant_rate"]
    theirs, ours, common = run["measured"]
    # A request at the edge of the window may fall on either side of it.
    assert abs(theirs - ours) <= 3 and common >= min(theirs, ours) - 3 and common > 30
    assert run["common_with_equal_lengths"] == run["requests"][2]
    assert run["server_log"]["same_messages"] == run["server_log"]["common"] == run["requests"][2]
    assert not run["official_figures_differing"] and run["official_figures_recomputed"] > 300
    assert run["theoretical_hit"]["ours"] == run["theoretical_hit"]["official"]
    assert run["figures"]["cache_hit_share"][0] == pytest.approx(
        run["figures"]["cache_hit_share"][1], abs=0.02
    )
