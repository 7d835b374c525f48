"""`flashpoint import` as a user meets it."""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.imports.imported import ImportFailed
from flashpoint.agentx.imports.official import read_official
from flashpoint.agentx.imports.run import import_run, key_values
from flashpoint.agentx.report import render_report
from flashpoint.cli import app
from flashpoint.errors import InvalidValue
from tests.agentx.imports.fixtures import OFFICIAL, RUNS, changed_copy


@pytest.mark.parametrize("run", RUNS)
def test_the_archive_holds_what_was_read(tmp_path, run):
    imported = read_official(OFFICIAL / run, 2, {"hw": "mock"})
    result = import_run(OFFICIAL / run, tmp_path / "out", 2, {"hw": "mock"})
    archive = read_archive(tmp_path / "out")
    assert archive.run.accelerators == 2 and archive.run.server.description == {"hw": "mock"}
    assert archive.run.levels == imported.levels
    assert archive.run.status == ("stopped" if run == "server-errors" else "complete")
    expected = {record.request_id: record for record in imported.records}
    assert len(archive.records) == len(expected)
    for record in archive.records:
        assert record.scalars() == expected[record.request_id].scalars()
        assert np.array_equal(record.token_offsets, expected[record.request_id].token_offsets)
    assert archive.series().equals(imported.series)
    assert archive.steps() is None
    assert result.equal and result.summary.levels[0].ok > 0
    assert "8177" in render_report([archive])


def test_printed_verdict(tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["import", str(OFFICIAL / "8-lanes"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "all 384 recomputed figures equal the reported ones" in " ".join(done.output.split())
    assert "needs the traces" in done.output


def test_a_difference_is_printed_and_fails(tmp_path):
    def wrong(content):
        content["time_to_first_token"]["p75"] *= 1.01

    folder = changed_copy("stops-short", tmp_path / "in", figures=wrong)
    done = CliRunner().invoke(app, ["import", str(folder), "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "1 of 384 recomputed figures DIFFER" in " ".join(done.output.split())
    assert "time_to_first_token_p75" in done.output
    assert len(read_archive(tmp_path / "out").records) == 34


def test_json(tmp_path):
    done = CliRunner().invoke(
        app,
        ["import", str(OFFICIAL / "stops-short"), "--out", str(tmp_path / "out"), "--accelerators", "4",
         "--description", "hw=b200", "--description", "note=a=b", "--json"],
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["equal"] is True and result["accelerators"] == 4
    by_name = {row["figure"]: row for row in result["crosscheck"]}
    assert by_name["osl_mismatch_count"]["recomputed"] == 30
    assert by_name["theoretical_prefix_cache_hit_avg"]["reason"]
    assert read_archive(tmp_path / "out").run.server.description == {"hw": "b200", "note": "a=b"}


def test_sources_that_cannot_be_imported(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(InvalidValue, match=r"^source: got"):
        import_run(tmp_path / "nowhere", out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImportFailed, match=r"holds neither profile_export.jsonl"):
        import_run(tmp_path / "empty", out)
    for name in ("a", "b"):
        shutil.copytree(OFFICIAL / "stops-short", tmp_path / "two" / name)
    with pytest.raises(InvalidValue, match="one harness output, not several"):
        import_run(tmp_path / "two", out)
    with pytest.raises(InvalidValue, match=r"^accelerators: got 0"):
        import_run(OFFICIAL / "stops-short", out, 0)
    assert not out.exists()
    import_run(OFFICIAL / "stops-short", out)
    with pytest.raises(InvalidValue, match=r"^out: got"):
        import_run(OFFICIAL / "8-lanes", out)
    assert len(read_archive(out).records) == 34


def test_key_values():
    assert key_values("description", ["a=1", "b="]) == {"a": "1", "b": ""}
    for wrong in ("a", "=1"):
        with pytest.raises(InvalidValue, match=r"^description: got .*; expected key=value"):
            key_values("description", [wrong])
