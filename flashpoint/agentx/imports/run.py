"""`flashpoint import`: another tool's results become a run archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flashpoint.agentx.archive import ArchiveWriter, check_new_folder, read_archive
from flashpoint.agentx.imports.crosscheck import Finding, crosscheck
from flashpoint.agentx.imports.imported import POINT, Imported, ImportFailed, read_json
from flashpoint.agentx.imports.inferencex import (
    find_points,
    point_accelerators,
    point_description,
    point_figures,
    read_points,
)
from flashpoint.agentx.imports.official import AGGREGATE_FILE, RECORDS_FILE, is_official, read_official
from flashpoint.agentx.summary import RunSummary, summarize
from flashpoint.errors import InvalidValue


@dataclass(frozen=True)
class ImportResult:
    """The archive that was written, in figures, and every reported figure beside our own."""

    summary: RunSummary
    findings: list[Finding]

    @property
    def equal(self) -> bool:
        """Whether no recomputed figure differs from the reported one."""
        return not any(finding.equal is False for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data, for `--json`."""
        findings = [
            {
                "figure": finding.figure,
                "unit": finding.unit,
                "reported": finding.official,
                "recomputed": finding.recomputed,
                "relative_difference": finding.difference,
                "equal": finding.equal,
                "reason": finding.reason,
            }
            for finding in self.findings
        ]
        return {**self.summary.as_dict(), "equal": self.equal, "crosscheck": findings}


def import_run(
    source: str | Path,
    out: str | Path,
    accelerators: int | None = None,
    description: Mapping[str, str] | None = None,
) -> ImportResult:
    """Read `source`, whichever kind it is, and write it as the archive `out`.

    `source` is the output folder of the official harness, an InferenceX point file, a folder of such points
    (one level each), or a folder that holds a point and, in it or below it, the harness's output.
    `description` tells what the files do not: hardware, framework and the like.
    """
    source, out = Path(source), Path(out)
    if accelerators is not None and accelerators < 1:
        raise InvalidValue("accelerators", accelerators, "a number of at least 1")
    check_new_folder(out)
    imported = _read(source, accelerators, description or {})
    findings = crosscheck(imported)
    writer = ArchiveWriter(out, imported.run)
    for level in imported.levels:
        records = [record for record in imported.records if record.level == level.level]
        writer.add_level(level, records, series=imported.series)
    run = imported.run
    writer.finish(run.status, run.status_detail, run.finished)
    return ImportResult(summarize(read_archive(out)), findings)


def _read(source: Path, accelerators: int | None, description: Mapping[str, str]) -> Imported:
    if source.is_file():
        return read_points([source], accelerators, description)
    if not source.is_dir():
        raise InvalidValue("source", str(source), "a file or folder that exists")
    points = find_points(source)
    folders = _harness_folders(source)
    if len(folders) > 1:
        listed = ", ".join(str(folder) for folder in folders)
        raise InvalidValue("source", str(source), f"one harness output, not several; import each: {listed}")
    if not folders and not points:
        raise ImportFailed(
            f"{source}: holds neither {RECORDS_FILE} and {AGGREGATE_FILE} (official harness) "
            "nor a JSON file with `conc` and `request_metrics` (InferenceX point)"
        )
    if not folders:
        return read_points(points, accelerators, description)
    if not points:
        return read_official(folders[0], accelerators or 1, description)
    return _bundle(folders[0], points, accelerators, description)


def _harness_folders(source: Path) -> list[Path]:
    """The harness outputs in a folder or at most two below it (InferenceX: `aiperf_artifacts/`)."""
    if is_official(source):
        return [source]
    below = sorted({*source.glob("*/"), *source.glob("*/*/")})
    return [folder for folder in below if is_official(folder)]


def _bundle(
    folder: Path, points: Sequence[Path], accelerators: int | None, description: Mapping[str, str]
) -> Imported:
    """Requests from the harness's output, the system and a second set of figures from the point beside it."""
    if len(points) > 1:
        raise InvalidValue("source", [str(path) for path in points], "one point beside one harness output")
    point = read_json(points[0])
    count = point_accelerators(point, accelerators, points[0])
    imported = read_official(folder, count, point_description(point) | dict(description))
    level = imported.levels[0]
    if point["conc"] != level.concurrency:
        raise InvalidValue(
            f"{points[0]}: conc", point["conc"], f"{level.concurrency}, as the harness output beside it has"
        )
    figures = {POINT + name: value for name, value in point_figures(point).items()}
    return replace(imported, levels=[level.model_copy(update={"reported": level.reported | figures})])


def key_values(field: str, words: Sequence[str]) -> dict[str, str]:
    """The words `key=value` of an option as a mapping."""
    pairs = [word.partition("=") for word in words]
    for word, (key, equals, _) in zip(words, pairs, strict=True):
        if not key or not equals:
            raise InvalidValue(field, word, "key=value")
    return {key: value for key, _, value in pairs}
