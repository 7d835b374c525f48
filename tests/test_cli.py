"""The command itself: help, exit codes, and errors of one line. What commands do is tested where it lives."""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from flashpoint import __version__
from flashpoint.agentx.curves.compare_config import CompareConfig
from flashpoint.agentx.record.config import RecordConfig
from flashpoint.agentx.replay_config import LoadConfig, ReplayConfig
from flashpoint.agentx.traces.recipe import Recipe
from flashpoint.cli import app, main
from flashpoint.engine.config import EngineConfig
from flashpoint.executor.config import ExecutorConfig
from flashpoint.server.config import ServerConfig
from flashpoint.simulate.config import DeploymentConfig, PlanConfig, ValidateConfig

CONFIGS = {
    ("serve",): (ServerConfig, EngineConfig, ExecutorConfig),
    ("replay",): (ReplayConfig,),
    ("sessions", "generate"): (Recipe,),
    ("sessions", "record"): (RecordConfig,),
    ("compare",): (CompareConfig,),
    ("simulate",): (LoadConfig, DeploymentConfig),
    ("plan",): (PlanConfig, DeploymentConfig),
    ("validate",): (ValidateConfig,),
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def commands(group=None, path=()):
    """Paths of all commands and groups, the root's () first."""
    group = group or typer.main.get_command(app)
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def test_the_commands_are_those_of_the_readme():
    assert {" ".join(path) for path in commands()} == {
        "", "serve", "memory", "replay", "report", "import", "query", "compare", "claim", "verify", "version",
        "checkpoint", "replay-engine",
        "checkpoint inspect", "checkpoint init", "sessions", "sessions generate", "sessions stats",
        "sessions validate", "sessions convert", "sessions record", "simulate", "plan", "validate",
        "hardware", "hardware list", "hardware show", "hardware measure", "hardware calibrate",
    }  # fmt: skip


@pytest.mark.parametrize("path", list(commands()), ids=lambda path: " ".join(path) or "flashpoint")
def test_every_command_explains_itself(path):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    shown = re.sub(r"[│\s]+", " ", result.output)
    assert "Usage:" in shown
    for config in CONFIGS.get(path, ()):
        for field in dataclasses.fields(config):
            assert f"--{field.name.replace('_', '-')} " in shown
            assert field.metadata["help"] in shown


def call(monkeypatch, capsys, *arguments):
    """The entry point in this process: (exit code, stdout, stderr)."""
    monkeypatch.setattr(sys, "argv", ["flashpoint", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, *capsys.readouterr()


def test_version(monkeypatch, capsys):
    assert call(monkeypatch, capsys, "version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("arguments", [["fly"], ["serve"], ["serve", "x", "--fly"], ["checkpoint", "fly"]])
def test_wrong_usage_exits_2(monkeypatch, capsys, arguments):
    code, printed, message = call(monkeypatch, capsys, *arguments)
    assert (code, printed) == (2, "")
    assert "Usage:" in message


REPLAY = ["replay", "--url", "http://127.0.0.1:9"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "nowhere"], "checkpoint nowhere: 1 problem(s)\n  config.json: missing"),
        (["checkpoint", "inspect", "nowhere"], "checkpoint nowhere: 1 problem(s)\n  config.json: missing"),
        (["verify", "nowhere"], "checkpoint nowhere: 1 problem(s)\n  no such folder"),
        (["report", "nowhere", "-o", "x.html"], "nowhere: not a folder; a run archive is the folder that "),
        ([*REPLAY, "--corpus", "nowhere", "--out", "run"], "corpus: got 'nowhere'; expected "),
        ([*REPLAY, "--corpus", "s", "--out", "run", "--concurrency", "1,x"], "concurrency: got '1,x'; "),
        (["compare", "a", "b"], "at, at_throughput: got (None, None); expected one of the two"),
        (["compare", "nowhere", "b", "--at", "9"], "nowhere: not a folder; a run archive is "),
        (["claim", "nowhere"], "claim: got 'nowhere'; expected a claim file, or one of: vera-rubin-58x"),
        (["serve", "x", "--port", "-1"], "port: got -1; expected 0 to 65535"),
        (["serve", "x", "--max-running", "0"], "max_running: got 0; expected an integer of at least 1"),
        (["memory", "x", "--memory-limit", "lots"], "memory_limit: got 'lots'; expected a size such as 8GiB"),
        (["checkpoint", "init", "out", "--preset", "huge"], "preset: got 'huge'; expected one of nano"),
        (["sessions", "generate", "--out", "s", "--sessions", "0"], "sessions: got 0; expected "),
        (["sessions", "generate", "--out", "s", "--scale", "1/x"], "scale: got '1/x'; expected a fraction"),
        (["sessions", "stats", "nowhere"], "corpus: got 'nowhere'; expected "),
        (["sessions", "validate", "nowhere"], "corpus: got 'nowhere'; expected "),
        (["sessions", "convert", "nowhere", "--out", "o"], "corpus: got 'nowhere'; expected "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_users_mistake_is_said_in_a_line_or_two(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, printed, shown = call(monkeypatch, capsys, *arguments)
    assert (code, printed) == (2, "")
    assert shown.startswith(f"flashpoint: {message}")
    assert len(shown.splitlines()) <= 2
    assert not list(tmp_path.iterdir()), "nothing is written where nothing can be done"


def interrupt(process):
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=30)
    return process.returncode, log


def start(*arguments):
    command = [sys.executable, "-m", "flashpoint", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def test_ctrl_c_while_a_checkpoint_loads(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    # Opening this end of the pipe waits until the command reads the other.
    with start("serve", tmp_path) as process, (tmp_path / "config.json").open("w"):
        code, log = interrupt(process)
    assert code == 130
    assert "Traceback" not in log


def test_ctrl_c_while_a_server_does_not_answer(tmp_path):
    made = CliRunner().invoke(app, ["sessions", "generate", "--out", str(tmp_path / "s"), "--sessions", "1"])
    assert made.exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with start("replay", "--url", url, "--corpus", tmp_path / "s", "--out", tmp_path / "run") as process:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1)
                code, log = interrupt(process)
    assert code == 130
    assert "Traceback" not in log
