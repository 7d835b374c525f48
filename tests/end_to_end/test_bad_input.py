"""What users get wrong, against the real model. What does not depend on the model is in tests/server."""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import httpx
import pytest

from flashpoint.agentx.archive import read_archive
from tests.end_to_end.conftest import ENVIRONMENT, flashpoint, serving

INDEX = "model.safetensors.index.json"


def edit_json(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def truncate(folder):
    shard = sorted(folder.glob("*.safetensors"))[0]
    os.truncate(shard, shard.stat().st_size // 2)


def name_missing_shard(folder):
    edit_json(
        folder / INDEX, lambda d: d["weight_map"].update({"norm.weight": "model-00009-of-00009.safetensors"})
    )


def write_nan(folder):
    shard = folder / json.loads((folder / INDEX).read_text())["weight_map"]["layers.2.attn.wkv.weight"]
    with shard.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        start, _ = json.loads(file.read(length))["layers.2.attn.wkv.weight"]["data_offsets"]
        file.seek(8 + length + start + 10)
        file.write(b"\xc0\x7f")  # bf16 NaN


def unknown_layer_kind(folder):
    edit_json(folder / "config.json", lambda d: d["text_config"]["compress_ratios"].__setitem__(2, 4))


def no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, ["safetensors", "trunc"]),
        (name_missing_shard, ["model-00009-of-00009.safetensors", "missing"]),
        (write_nan, ["layers.2.attn.wkv.weight", "NaN"]),
        (unknown_layer_kind, ["compress_ratios", "4"]),
        (no_tokenizer, ["tokenizer.json"]),
    ],
)
def test_a_damaged_checkpoint_is_one_clear_message(nano, tmp_path, damage, words):
    folder = tmp_path / "broken"
    shutil.copytree(nano, folder)
    damage(folder)
    result = flashpoint("serve", folder, "--port", 0)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/v1/completions", {"prompt": []}, "prompt", ["0 tokens", "at least one", "empty"]),
        ("/v1/completions", {"prompt": [5, 768]}, "prompt", ["767"]),
        ("/v1/completions", {"prompt": [5] * 70_000, "max_tokens": 1}, "prompt", ["70001"]),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
                ]
            },
            "messages",
            ["image"],
        ),
    ],
)
def test_requests_the_model_cannot_take(server, path, body, param, words):
    answer = server.post(path, body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"].startswith(param)
    assert any(word in error["message"] for word in words), error


def test_a_request_longer_than_the_context_names_both_numbers(nano, tmp_path):
    with serving(nano, tmp_path, "--max-context", "100", "--cache-tokens", "4096") as server:
        answer = server.post("/v1/completions", {"prompt": [5] * 140, "max_tokens": 4})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "100" in error["message"] and "14" in error["message"]


def everything_free(server):
    return (
        server.metric("flashpoint_cache_blocks_used") == 0
        and server.metric("flashpoint_engine_slots_used") == 0
    )


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


def test_100_requests_cancelled_mid_stream_leave_no_block(server):
    body = {"prompt": "x" * 200, "max_tokens": 400, "ignore_eos": True, "stream": True}
    for _ in range(10):
        with contextlib.ExitStack() as stack:
            for _ in range(10):
                response = stack.enter_context(
                    httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60)
                )
                next(response.iter_bytes())
    wait_for(lambda: everything_free(server))
    assert server.post("/v1/completions", {"prompt": "y", "max_tokens": 2}).status_code == 200


def test_one_byte_a_second_hurts_nobody(server):
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "slow", "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
            + str(len(body)).encode() + b"\r\n\r\n" + body
        )  # fmt: skip
        slow.recv(1)
        began = time.monotonic()
        answer = server.post("/v1/completions", {"prompt": "quick", "max_tokens": 3})
        assert answer.status_code == 200
        assert time.monotonic() - began < 30
        slow.recv(1)
    wait_for(lambda: everything_free(server))


def test_sigterm_lets_the_stream_finish(nano, tmp_path):
    with serving(nano, tmp_path, "--cache-tokens", "4096") as server:
        body = {"prompt": "go on", "max_tokens": 60, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            chunks = response.iter_text()
            text = next(chunks)
            server.process.send_signal(signal.SIGTERM)
            text += "".join(chunks)
        assert text.rstrip().endswith("data: [DONE]")
        assert server.process.wait(timeout=30) == 0


def test_kill_9_during_a_replay_leaves_a_complete_archive(nano, tmp_path):
    sessions, out = tmp_path / "s.jsonl", tmp_path / "run"
    made = flashpoint(
        "sessions", "generate", "--out", sessions, "--sessions", 4, "--turns", 3, "--system-chars", 100,
        "--turn-chars", 100, "--max-tokens", 60,
    )  # fmt: skip
    assert made.returncode == 0
    with serving(nano, tmp_path, "--cache-tokens", "16384") as server:
        command = [
            sys.executable, "-m", "flashpoint", "replay", "--url", server.url, "--sessions", str(sessions),
            "--concurrency", "2", "--out", str(out),
        ]  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as replay:
            drain = threading.Thread(target=replay.stderr.read)
            drain.start()
            wait_for(lambda: server.metric("flashpoint_engine_generated_tokens_total") > 150, 90)
            server.process.send_signal(signal.SIGKILL)
            assert replay.wait(timeout=60) == 1
            drain.join()
    archive = read_archive(out)
    assert archive.run.status == "server_lost"
    records = archive.level(0)
    failed = [r for r in records if r.status != "ok"]
    assert [r for r in records if r.status == "ok"]
    assert 1 <= len(failed) <= 2
    assert all(r.error for r in failed)
