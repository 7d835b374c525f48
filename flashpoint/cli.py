"""The `flashpoint` command: parses, calls, prints. What a command does lives in the package it imports.

Packages are imported by the command that needs them: torch alone takes seconds, and `replay` needs none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from flashpoint import __version__
from flashpoint.agentx.curves.compare_config import CompareConfig
from flashpoint.agentx.record.config import RecordConfig
from flashpoint.agentx.replay_config import LoadConfig, ReplayConfig
from flashpoint.agentx.traces.recipe import Recipe
from flashpoint.cache.config import TierConfig
from flashpoint.engine.config import EngineConfig
from flashpoint.errors import FlashpointError
from flashpoint.executor.config import ExecutorConfig
from flashpoint.options import takes
from flashpoint.server.config import ServerConfig
from flashpoint.simulate.config import DeploymentConfig, PlanConfig, ValidateConfig

if TYPE_CHECKING:
    from flashpoint.agentx.traces.corpus import Corpus

app = typer.Typer(
    help="Serve DeepSeek-V4.1-Flash class models to coding agents, and measure how fast that is.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
checkpoint_app = typer.Typer(help="Look into checkpoints and make small ones.", no_args_is_help=True)
sessions_app = typer.Typer(help="Agent sessions: make, read, check and convert them.", no_args_is_help=True)
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(sessions_app, name="sessions")
hardware_app = typer.Typer(help="Machines that can be simulated.", no_args_is_help=True)
app.add_typer(hardware_app, name="hardware")

Folder = Annotated[Path, typer.Argument(help="checkpoint folder")]
AsJson = Annotated[bool, typer.Option("--json", help="print the same facts as JSON")]


@app.command()
@takes(ServerConfig, EngineConfig, ExecutorConfig, TierConfig)
def serve(
    server: ServerConfig,
    engine: EngineConfig,
    executor: ExecutorConfig,
    tiers: TierConfig,
    checkpoint: Folder,
) -> int:
    """Serve a checkpoint behind the OpenAI API until SIGTERM (drains) or Ctrl-C."""
    from flashpoint.executor.build import build_engine
    from flashpoint.server.run import serve as serve_engine

    return serve_engine(build_engine(checkpoint, engine, executor, tiers), checkpoint, server)


@app.command()
@takes(EngineConfig, ExecutorConfig, TierConfig)
def memory(
    engine: EngineConfig,
    executor: ExecutorConfig,
    tiers: TierConfig,
    checkpoint: Folder,
    as_json: AsJson = False,
) -> int:
    """Show how a server with these settings would divide its memory, without loading anything."""
    from flashpoint.executor.build import memory_plan

    plan = memory_plan(checkpoint, engine, executor, tiers)
    if as_json:
        print(json.dumps(plan.as_json()))
        return 0
    table = Table("use", "memory", "", box=None, pad_edge=False)
    for row in plan.rows():
        table.add_row(*row)
    Console().print(table)
    return 0


@app.command()
@takes(ReplayConfig)
def replay(config: ReplayConfig, as_json: AsJson = False) -> int:
    """Replay agent sessions against a server, level by level, and archive every request."""
    from flashpoint.agentx.replay import run_replay
    from flashpoint.agentx.table import render_table

    summary = run_replay(config, Console(stderr=True))
    if as_json:
        print(json.dumps(summary.as_dict()))
    else:
        _print_wide(render_table(summary))
    return summary.exit_code


@app.command("replay-engine")
@takes(LoadConfig, EngineConfig, ExecutorConfig, TierConfig)
def replay_engine(
    load: LoadConfig,
    engine: EngineConfig,
    executor: ExecutorConfig,
    tiers: TierConfig,
    checkpoint: Folder,
    hardware: Annotated[
        str | None,
        typer.Option(help="the machine this is, by name or profile file: archives shares of its limits"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Replay agent sessions into an engine of this process, without HTTP; archives its steps, too."""
    from flashpoint.agentx.prompts.tokenizer import load_tokenizer
    from flashpoint.agentx.replay_engine import run_replay_engine
    from flashpoint.agentx.run_parts import plain
    from flashpoint.agentx.table import render_table
    from flashpoint.engine.clock import WallClock
    from flashpoint.executor.build import build_core, load_for_engine
    from flashpoint.hardware.cost import Limits
    from flashpoint.hardware.machine import load_machine

    machine = None if hardware is None else load_machine(hardware)
    floors = None if machine is None else Limits(machine)
    loaded, sized = load_for_engine(checkpoint, engine, executor, tiers)
    clock = WallClock()
    first = build_core(loaded, sized, tiers, clock)
    context = first.max_context
    first.close()
    summary = run_replay_engine(
        lambda: build_core(loaded, sized, tiers, clock),
        clock,
        load_tokenizer(checkpoint),
        load,
        max_context=context,
        model=checkpoint.resolve().name,
        settings=plain(sized, executor, tiers) | ({} if machine is None else {"machine": machine.as_json()}),
        floors=floors,
    )
    if as_json:
        print(json.dumps(summary.as_dict()))
    else:
        _print_wide(render_table(summary))
    return summary.exit_code


@app.command()
@takes(LoadConfig, DeploymentConfig)
def simulate(load: LoadConfig, deployment: DeploymentConfig, as_json: AsJson = False) -> int:
    """Replay agent sessions into a deployment in virtual time: hardware that is not here."""
    from flashpoint.agentx.table import render_table
    from flashpoint.simulate.run import run_simulation

    summary = run_simulation(load, deployment, on_event=_json_line if as_json else _ignore)
    if as_json:
        _json_line({"event": "result", **summary.as_dict()})
    else:
        _print_wide(render_table(summary))
    return summary.exit_code


@app.command()
@takes(PlanConfig, DeploymentConfig)
def plan(search: PlanConfig, deployment: DeploymentConfig, as_json: AsJson = False) -> int:
    """Search layouts of a number of accelerators: the Pareto set, and what limits each point of it."""
    from flashpoint.simulate.run_plan import run_plan
    from flashpoint.simulate.table import plan_table

    result = run_plan(search, deployment, Console(stderr=True), _json_line if as_json else _ignore)
    if as_json:
        _json_line({"event": "result", **result.as_json()})
    else:
        _print_wide(plan_table(result.pareto, result.best))
        Console().print(result.verdict)
    return 0 if result.best is not None else 1


@app.command()
@takes(ValidateConfig)
def validate(config: ValidateConfig, as_json: AsJson = False) -> int:
    """Predict every published point whose configuration is known, and compare."""
    from flashpoint.simulate.run_validate import run_validate
    from flashpoint.simulate.table import medians_table, validation_table

    compared = run_validate(config, Console(stderr=True))
    if as_json:
        print(json.dumps([c.as_json() for c in compared]))
    else:
        _print_wide(validation_table(compared))
        _print_wide(medians_table(compared))
    return 0


@hardware_app.command("list")
def hardware_list(as_json: AsJson = False) -> None:
    """The machines that come with flashpoint."""
    from flashpoint.hardware.machine import load_machine, machine_names
    from flashpoint.simulate.table import machines_table

    machines = [(name, load_machine(name)) for name in machine_names()]
    if as_json:
        print(json.dumps({name: machine.as_json() for name, machine in machines}))
    else:
        _print_wide(machines_table(machines))


@hardware_app.command("show")
def hardware_show(
    name: Annotated[str, typer.Argument(help="name of a machine, or a profile file")], as_json: AsJson = False
) -> None:
    """Every number of a machine: its value, range, kind and source."""
    from flashpoint.hardware.machine import load_machine
    from flashpoint.simulate.table import machine_table

    machine = load_machine(name)
    if as_json:
        print(json.dumps(machine.as_json()))
    else:
        _print_wide(machine_table(machine))


@hardware_app.command("measure")
def hardware_measure(
    out: Annotated[Path, typer.Option("--out", help="profile file to write")],
    checkpoint: Annotated[
        Path | None, typer.Option(help="checkpoint whose steps are timed; default: a micro one, made for it")
    ] = None,
    name: Annotated[str, typer.Option(help="the machine's name")] = "this CPU",
    threads: Annotated[int, typer.Option(help="threads of a step")] = 1,
    seconds: Annotated[float, typer.Option(help="how long steps are timed")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Measure this machine's CPU and what steps reach of it, and write its profile."""
    from rich.progress import Progress

    from flashpoint.executor.measure_machine import measure_machine, micro_checkpoint
    from flashpoint.hardware.machine import check_out, write_machine
    from flashpoint.simulate.table import machine_table, residuals_table

    check_out(out)
    messages = Console(stderr=True)
    with (
        micro_checkpoint() if checkpoint is None else contextlib.nullcontext(checkpoint) as folder,
        Progress(console=messages, transient=True, disable=not messages.is_terminal) as shown,
    ):
        task = shown.add_task("timing steps", total=1.0)
        found = measure_machine(folder, name, threads, seconds, lambda s: shown.update(task, completed=s))
    write_machine(found.machine, out)
    if as_json:
        print(json.dumps(found.machine.as_json()))
    else:
        _print_wide(machine_table(found.machine))
        _print_wide(residuals_table(found.residuals))


@hardware_app.command("calibrate")
def hardware_calibrate(
    name: Annotated[str, typer.Argument(help="name of a machine, or a profile file")],
    tables: Annotated[
        Path | None, typer.Option(help="aisimulate_core/systems/data; default: of the installed package")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="profile file to write, with the fitted numbers")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a machine's efficiencies to the kernel timings in the package aisimulate."""
    from flashpoint.hardware.calibrate import calibrate, tables_folder
    from flashpoint.hardware.machine import check_out, load_machine, write_machine
    from flashpoint.simulate.table import calibration_table, residuals_table

    if out is not None:
        check_out(out)
    found = calibrate(load_machine(name), tables or tables_folder())
    if out is not None:
        write_machine(found.calibrated(), out)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        _print_wide(calibration_table(found))
        _print_wide(residuals_table(found.residuals))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="run archives")],
    out: Annotated[Path, typer.Option("-o", "--out", help="page to write")],
) -> None:
    """Draw the throughput-interactivity curve of runs as one self-contained page."""
    from flashpoint.agentx.report import write_report

    write_report(runs, out)
    Console().print(f"report: {out.resolve()}", soft_wrap=True)


@app.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help="output of the official harness, or InferenceX points")],
    out: Annotated[Path, typer.Option("--out", help="archive folder to write; must be new or empty")],
    accelerators: Annotated[int | None, typer.Option(help="accelerators that served; default: 1")] = None,
    description: Annotated[
        list[str] | None, typer.Option(help="what is known of the server, as key=value; repeatable")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import a run that another tool measured, and check its figures; exit 1 where one differs."""
    from flashpoint.agentx.imports.render import render_import
    from flashpoint.agentx.imports.run import import_run, key_values

    result = import_run(source, out, accelerators, key_values("description", description or []))
    if as_json:
        print(json.dumps(result.as_dict()))
    else:
        Console().print(render_import(result))
    raise typer.Exit(0 if result.equal else 1)


@app.command()
def query(
    runs_and_sql: Annotated[list[str], typer.Argument(metavar="RUN… SQL", help="run archives, then a query")],
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print the rows as CSV")] = False,
) -> None:
    """Ask run archives in SQL; tables: requests, runs (a row per level), steps, server_metrics."""
    from flashpoint.agentx.query import print_csv, print_json, print_table, query

    *runs, sql = runs_and_sql
    rows = query(runs, sql)
    (print_json if as_json else print_csv if as_csv else print_table)(rows)


@app.command()
@takes(CompareConfig)
def compare(
    config: CompareConfig,
    a: Annotated[str, typer.Argument(help="run archives (comma-separated) or a curve file")],
    b: Annotated[str, typer.Argument(help="the same, of what A is compared with")],
    as_json: AsJson = False,
) -> int:
    """Compare two curves at one speed: the ratio and what it rests on. Exit 1 where there is no ratio."""
    from flashpoint.agentx.curves.compare import compare as compare_curves
    from flashpoint.agentx.curves.curve import load_curve
    from flashpoint.agentx.curves.table import render_comparison

    found = compare_curves(load_curve(a), load_curve(b), config)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        _print_wide(render_comparison(found))
    return 0 if found.ratio is not None else 1


@app.command()
def claim(
    name: Annotated[str, typer.Argument(help="claim file, or the name of a shipped one: vera-rubin-58x")],
    as_json: AsJson = False,
) -> None:
    """What follows from a vendor's sentence, what contradicts it, and what is missing to check it."""
    from flashpoint.agentx.curves.claim import check_claim, claim_json, load_claim
    from flashpoint.agentx.curves.table import render_claim

    loaded = load_claim(name)
    statements = check_claim(loaded)
    if as_json:
        print(json.dumps(claim_json(loaded, statements)))
    else:
        _print_wide(render_claim(loaded, statements))


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="golden folder: a checkpoint with cases/")],
    mode: Annotated[str | None, typer.Option(help="only cases of this mode: exact or quantized")] = None,
    case: Annotated[str | None, typer.Option(help="only the case of this name")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare this build with what the authors' reference code computed; exit 1 beyond tolerance."""
    from flashpoint.verify.run import render, verify_folder

    messages = Console(stderr=True)
    with messages.status("") as status:
        result = verify_folder(folder, mode, case, lambda name: status.update(f"running {name}"))
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        output = Console()
        # Piped output has no width to obey; a wrapped table is of no use to grep.
        render(result, output if output.is_terminal else Console(width=180))
    # Nothing compared is no pass: a gate on the exit code must not take it for one.
    raise typer.Exit(2 if not result.findings else 0 if result.ok else 1)


@checkpoint_app.command("inspect")
def checkpoint_inspect(
    path: Annotated[Path, typer.Argument(help="checkpoint folder; config and index alone are enough")],
    as_json: AsJson = False,
) -> None:
    """Parameters, bytes, layer kinds and cache bytes per token of a checkpoint."""
    from flashpoint.models.deepseek_v41.inspect import inspect_checkpoint, render

    result = inspect_checkpoint(path)
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        Console().print(render(result))


@checkpoint_app.command("init")
def checkpoint_init(
    out: Annotated[Path, typer.Argument(help="folder to create")],
    preset: Annotated[str, typer.Option(help="nano (2M parameters), micro (40M) or mini (1-2 GB as stored)")],
    outliers: Annotated[bool, typer.Option("--outliers", help="statistics of real weights")] = False,
    form: Annotated[
        Literal["bf16", "quantized"] | None, typer.Option(help="bf16 or quantized; default: the preset's own")
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the random weights")] = 0,
) -> None:
    """Write a random checkpoint in the official format."""
    from flashpoint.checkpoint.progress import byte_progress
    from flashpoint.models.deepseek_v41.init import init_checkpoint

    with byte_progress(f"writing {preset}") as progress:
        init_checkpoint(out=out, preset=preset, form=form, outliers=outliers, seed=seed, progress=progress)
    Console().print(f"checkpoint: {out.resolve()}", soft_wrap=True)


CorpusPath = Annotated[Path, typer.Argument(help="a corpus file, a trace file or a folder of traces")]
ContextWindow = Annotated[
    int | None, typer.Option(help="leave out whole sessions that need more tokens than this")
]
MaxSessions = Annotated[int | None, typer.Option(help="use the first sessions only")]


@sessions_app.command("generate")
@takes(Recipe)
def sessions_generate(
    recipe: Recipe, out: Annotated[Path, typer.Option("--out", help="corpus file to write")]
) -> int:
    """Write a corpus of synthetic sessions: parameters and a seed, from which sessions are made."""
    from flashpoint.agentx.traces.corpus import write_recipe

    write_recipe(recipe, out)
    Console().print(f"corpus of {recipe.sessions} sessions: {out.resolve()}", soft_wrap=True)
    return 0


@sessions_app.command("stats")
def sessions_stats(
    corpus: CorpusPath,
    context_window: ContextWindow = None,
    max_sessions: MaxSessions = None,
    as_json: AsJson = False,
) -> None:
    """Lengths, waits, sub-agents and the theoretical prefix hit of a corpus."""
    from rich.progress import track

    from flashpoint.agentx.traces.statistics import corpus_statistics
    from flashpoint.agentx.traces.table import render_statistics

    chosen = _sessions(corpus, context_window, max_sessions)
    messages = Console(stderr=True)
    traces = track(chosen, "reading", len(chosen), console=messages, disable=not messages.is_terminal)
    found = corpus_statistics(traces)
    if as_json:
        print(json.dumps(found.as_json()))
        return
    _print_wide(render_statistics(found))


@sessions_app.command("validate")
def sessions_validate(corpus: CorpusPath) -> None:
    """Read every session of a corpus strictly and say what is odd about it; exit 1 where one is unusable."""
    from flashpoint.agentx.traces.check import check_corpus

    output = Console(soft_wrap=True, highlight=False)
    played = unusable = 0
    for name, found, error in check_corpus(corpus):
        for text in found:
            output.print(f"{name}: {text}", markup=False)
        if error:
            output.print(f"{name}: error: {error}", markup=False)
        unusable += error is not None
        played += error is None
    output.print(f"{played} sessions can be played" + (f", {unusable} cannot" if unusable else ""))
    raise typer.Exit(1 if unusable else 0)


@sessions_app.command("record")
@takes(RecordConfig)
def sessions_record(
    config: RecordConfig,
    paths: Annotated[
        list[Path] | None, typer.Argument(help="logs or folders; default: the usual places")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Make traces of the logs of Claude Code, Codex or opencode on this disk: block hashes, no text."""
    from flashpoint.agentx.record.recorder import record
    from flashpoint.agentx.record.table import render_recorded

    messages = Console(stderr=True)
    recorded = []
    with messages.status("") as status:
        for found in record(paths or [], config):
            recorded.append(found)
            status.update(f"{len(recorded)} logs read")
    if as_json:
        print(json.dumps([found.as_json() for found in recorded]))
    else:
        _print_wide(render_recorded(recorded, config.out))
    return 0 if any(found.trace for found in recorded) else 1


@sessions_app.command("convert")
def sessions_convert(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Option("--out", help="folder for the traces; new or empty")],
    context_window: ContextWindow = None,
    max_sessions: MaxSessions = None,
) -> None:
    """Write the sessions of a corpus as trace files, which any tool that knows the format can read."""
    from rich.progress import track

    from flashpoint.agentx.archive import check_new_folder
    from flashpoint.agentx.traces.format import write_trace

    check_new_folder(out)
    chosen = _sessions(corpus, context_window, max_sessions)
    messages = Console(stderr=True)
    for trace in track(chosen, "writing", len(chosen), console=messages, disable=not messages.is_terminal):
        write_trace(trace, out)
    Console().print(f"{len(chosen)} traces: {out.resolve()}", soft_wrap=True)


def _json_line(event: dict[str, Any]) -> None:
    """One line of a stream that a program reads as it comes."""
    print(json.dumps(event), flush=True)


def _ignore(event: dict[str, Any]) -> None:
    """Nobody reads events."""


def _print_wide(what: RenderableType) -> None:
    """Piped output has no width to obey; a wrapped table is of no use to grep."""
    output = Console()
    (output if output.is_terminal else Console(width=160)).print(what)


def _sessions(path: Path, context_window: int | None, max_sessions: int | None) -> Corpus:
    from flashpoint.agentx.traces.corpus import open_corpus, within_context

    corpus = open_corpus(path)
    if context_window is not None:
        corpus, warning = within_context(corpus, context_window)
        if warning:
            print(f"flashpoint: {warning}", file=sys.stderr)
    return corpus.first(max_sessions)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Entry point: a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except (FlashpointError, NotImplementedError) as error:
        print(f"flashpoint: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        logging.shutdown()
        sys.exit(130)
