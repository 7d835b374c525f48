"""What users get wrong, against the real model. What does not depend on the model is in tests/server."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from flashpoint.agentx.archive import read_archive
from tests.end_to_end.conftest import ENVIRONMENT, command_line, flashpoint, serving

INDEX = "model.safetensors.index.json"


def edit_json(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def truncate(folder):
    shard = sorted(folder.glob("*.safetensors"))[0]
    os.truncate(shard, shard.stat().st_size // 2)


def name_missing_shard(folder):
    sorted(folder.glob("*.safetensors"))[1].unlink()


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
        (name_missing_shard, ["model-00002-of-00002.safetensors", "missing"]),
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
    # A progress bar may stand before it; the message is one, and short however many tensors suffer.
    assert len(re.findall(r"^flashpoint: ", result.stderr, re.MULTILINE)) == 1, result.stderr
    message = result.stderr[result.stderr.index("flashpoint: ") :]
    assert str(folder) in message and len(message.splitlines()) <= 3, message
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
        assert {"100", "144"} <= set(re.findall(r"\d+", error["message"])), error


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


LONG = {"max_tokens": 2000, "ignore_eos": True}


def finished(server, reason):
    return server.metric(f'flashpoint_requests_finished_total{{reason="{reason}"}}')


def test_100_requests_cancelled_mid_stream_leave_no_block(server):
    aborted = finished(server, "abort")
    for batch in range(10):
        with contextlib.ExitStack() as streams:
            for number in range(10):
                body = {**LONG, "prompt": "x" * (20 * number + batch + 1)}
                streams.enter_context(server.stream(body))
            assert server.metric("flashpoint_cache_blocks_used") >= 10
    wait_for(lambda: everything_free(server))
    assert finished(server, "abort") == aborted + 100
    assert server.post("/v1/completions", {"prompt": "y", "max_tokens": 2}).status_code == 200


def test_a_client_that_hardly_reads_holds_nobody_up(server):
    """It takes one byte per request of the others, and those end long before it does."""
    before = finished(server, "length")
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({**LONG, "prompt": "slow", "logprobs": 5, "stream": True}).encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
            + str(len(body)).encode() + b"\r\n\r\n" + body
        )  # fmt: skip
        for _ in range(5):
            assert slow.recv(1)
            answer = server.post("/v1/completions", {"prompt": "quick", "max_tokens": 3, "ignore_eos": True})
            assert answer.json()["usage"]["completion_tokens"] == 3
        assert finished(server, "length") == before + 5, "the slow client's own request has ended"
    wait_for(lambda: everything_free(server))


def test_sigterm_lets_the_stream_finish(nano, tmp_path):
    with serving(nano, tmp_path, "--cache-tokens", "4096") as server:
        body = {"prompt": "go on", "max_tokens": 120, "ignore_eos": True}
        with server.stream({**body, "stream_options": {"include_usage": True}}) as lines:
            events = (line.removeprefix("data: ") for line in lines)
            first = json.loads(next(events))
            assert first["choices"][0]["finish_reason"] is None
            server.process.send_signal(signal.SIGTERM)
            rest = list(events)
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["usage"]["completion_tokens"] == 120
        assert server.process.wait(timeout=30) == 0
    assert "Traceback" not in server.log.read_text()


def test_kill_9_during_a_replay_leaves_a_complete_archive(nano, tmp_path):
    corpus, out = tmp_path / "corpus.json", tmp_path / "run"
    made = flashpoint("sessions", "generate", "--out", corpus, "--sessions", 4, "--scale", "1/128")
    assert made.returncode == 0
    with serving(nano, tmp_path, "--cache-tokens", "16384") as server:
        command = command_line(
            "replay", "--url", server.url, "--corpus", corpus, "--concurrency", 2, "--out", out,
            "--warmup-requests", 1, "--system-idle-cap", 0.1, "--session-idle-cap", 0.1
        )  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as replay:
            drain = threading.Thread(target=replay.stderr.read)
            drain.start()
            wait_for(lambda: server.metric("flashpoint_engine_generated_tokens_total") > 150, 90)
            server.process.send_signal(signal.SIGKILL)
            assert replay.wait(timeout=60) == 1
            drain.join()
    archive = read_archive(out)
    assert archive.run.status == "server_lost"
    answered = [r for r in archive.level(0) if r.status == "ok"]
    assert answered and all(r.output_tokens == r.max_tokens for r in answered)
    failed = [r for r in archive.level(0) if r.status != "ok"]
    assert failed and all(r.status == "error" and r.error for r in failed)
