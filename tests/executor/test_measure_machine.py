"""Measuring this machine: the profile is whole and usable; a wrong option or Ctrl-C leaves no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from flashpoint.cli import app
from flashpoint.errors import InvalidValue
from flashpoint.executor import measure_machine as module
from flashpoint.executor.measure_machine import FITTED, measure_machine, timed_steps
from flashpoint.hardware.machine import NUMBERS, read_machine, write_machine
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("checkpoint") / "nano"
    init_checkpoint("nano", made)
    return made


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "PRODUCT_WIDTHS", (128,))
    monkeypatch.setattr(module, "READ_BYTES", (1 << 18, 1 << 20))
    monkeypatch.setattr(module, "LONGEST_PROMPT", 1500)


def test_a_measured_machine_is_a_machine(folder, tmp_path, quick):
    threads, heard = torch.get_num_threads(), []
    found = measure_machine(folder, "mine", 1, 1.0, heard.append)
    assert torch.get_num_threads() == threads
    assert heard == sorted(heard) and heard[0] >= 0 and heard[-1] <= 1
    write_machine(found.machine, tmp_path / "mine.json")
    machine = read_machine(tmp_path / "mine.json")
    assert machine == found.machine
    assert set(machine.numbers) == set(NUMBERS)
    assert 1e8 < machine.fp32 < 1e14 and 1e8 < machine.memory_bandwidth < 1e13
    assert all(machine.numbers[name].kind == "measured" for name in FITTED)
    assert {off.what for off in found.residuals} == {"decode steps", "prefill steps"}
    deployment = Deployment(
        DeploymentConfig(model=str(folder), formats="float32", layout="TP1", drafts=0), machine
    )
    assert deployment.accelerators == 1
    with pytest.raises(InvalidValue, match=r"links for 1 only"):
        Deployment(DeploymentConfig(model=str(folder), formats="float32", layout="TP2", drafts=0), machine)


def test_steps_of_all_kinds_are_timed(folder, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_PROMPT", 400)
    monkeypatch.setattr(module, "STEPS_PER_LOAD", 5)
    steps = timed_steps(folder, 1, 1.0)
    assert all(step.seconds > 0 and step.work.kernels for step in steps)
    rows = {step.rows for step in steps}
    assert len(rows & set(range(1, 9))) > 2 and max(rows) > 64


@pytest.mark.parametrize("threads", [0, 10_000])
def test_threads_that_are_not_there(folder, threads):
    with pytest.raises(InvalidValue, match="threads"):
        measure_machine(folder, "mine", threads, 1.0)


def test_a_time_that_cannot_be(folder):
    with pytest.raises(InvalidValue, match="seconds"):
        measure_machine(folder, "mine", 1, -1.0)


def test_a_place_that_cannot_be_written_is_told_before_measuring(tmp_path):
    result = CliRunner().invoke(app, ["hardware", "measure", "--out", str(tmp_path)])
    assert isinstance(result.exception, InvalidValue)
    assert "out" in str(result.exception)


def test_ctrl_c_leaves_no_file(folder, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "flashpoint", "hardware", "measure", "--checkpoint", str(folder), "--out",
         str(tmp_path / "x.json"), "--seconds", "100"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    printed, message = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    assert "Traceback" not in message
    assert not list(tmp_path.iterdir())
