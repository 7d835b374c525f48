"""`flashpoint verify`: every case of a golden folder against this build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flashpoint.errors import CheckpointError, InvalidValue
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import LoadedModel, load_model
from flashpoint.verify.cases import covered, not_covered, run_case
from flashpoint.verify.compare import Finding
from flashpoint.verify.golden import Case, case_names, load_case


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was compared, and what could not be: `not_covered` maps a case to the reason."""

    folder: str
    findings: tuple[Finding, ...]
    not_covered: dict[str, str]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Judged comparisons beyond their tolerance."""
        return tuple(f for f in self.findings if f.judged and not f.ok)

    @property
    def ok(self) -> bool:
        """True when nothing judged is beyond tolerance."""
        return not self.failures

    def as_json(self) -> dict[str, object]:
        """The same facts for machines."""
        return {
            "folder": self.folder,
            "ok": self.ok,
            "compared": len(self.findings),
            "findings": [{**asdict(f), "kind": f.kind} for f in self.findings],
            "not_covered": self.not_covered,
        }


def verify_folder(
    folder: Path,
    mode: str | None = None,
    case: str | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> VerifyReport:
    """Compare the cases of `folder`, or only those of numeric `mode` (exact, quantized) or called `case`.

    `progress` is told each case before it runs. Raises CheckpointError for an unusable folder, InvalidValue
    for an unknown mode or case, or a mode that none of the cases was recorded in.
    """
    if mode not in (None, "exact", "quantized"):
        raise InvalidValue("mode", mode, "exact or quantized")
    if not folder.is_dir():
        raise CheckpointError(folder, ["no such folder"])
    names = case_names(folder)
    if case is not None and case not in names:
        raise InvalidValue("case", case, f"one of {', '.join(names)}")
    names = names if case is None else [case]
    chosen = [name for name in names if mode is None or Case(name, {}).numerics.mode == mode]
    if not chosen:
        # Comparing nothing must not look like a pass.
        raise InvalidValue("mode", mode, f"the mode of one of {', '.join(names)}")
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    models: dict[Numerics, LoadedModel] = {}
    for name in chosen:
        loaded_case = load_case(folder, name)
        progress(name)
        if not covered(loaded_case):
            skipped[name] = "this build does not know this kind of case"
            continue
        if loaded_case.numerics not in models:
            models[loaded_case.numerics] = load_model(folder, loaded_case.numerics)
        findings += run_case(models[loaded_case.numerics], loaded_case)
        skipped.update(_missing_parts(loaded_case))
    return VerifyReport(str(folder), tuple(findings), skipped)


def _missing_parts(case: Case) -> dict[str, str]:
    parts = not_covered(case)
    return {f"{case.name}: {', '.join(parts)}": "not built yet"} if parts else {}


def render(report: VerifyReport, console: Console) -> None:
    """A row per case and kind of tensor with its largest error; then what is not covered, and the verdict."""
    table = Table("case", "tensor", "compared", "largest |Δ|", "largest relative", "tolerance", "")
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault((finding.case, finding.kind, finding.tolerance), []).append(finding)
    for (case, kind, tolerance), group in groups.items():
        bad = sum(f.judged and not f.ok for f in group)
        verdict = f"[red]{bad} beyond" if bad else "ok" if group[0].judged else "no target"
        table.add_row(
            case,
            kind,
            str(len(group)),
            f"{max(f.absolute for f in group):.2e}",
            f"{max(f.relative for f in group):.2e}",
            tolerance,
            verdict,
        )
    console.print(table)
    for name, reason in report.not_covered.items():
        console.print(f"not covered: {name} ({reason})")
    for failure in report.failures[:20]:
        console.print(
            f"[red]beyond tolerance[/red]: {failure.case} {failure.tensor} |Δ| {failure.absolute:.3e}, "
            f"relative {failure.relative:.3e}; allowed {failure.tolerance}"
        )
    judged = sum(f.judged for f in report.findings)
    if not report.findings:
        console.print("[yellow]nothing compared: every case is of a part not built yet")
    elif not judged:
        console.print("[yellow]nothing judged: the golden README sets no target for these cases")
    elif report.ok:
        console.print(f"[green]{judged} comparisons within tolerance")
    else:
        console.print(f"[red]{len(report.failures)} of {judged} comparisons beyond tolerance")
