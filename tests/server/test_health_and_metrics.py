"""/health means that tokens can flow; /metrics agrees with what clients were told."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from flashpoint.engine.plan import StepPlan
from flashpoint.models.chat import Conversation, PlainRenderer, RenderedChat
from flashpoint.server.config import ServerConfig
from tests.engine.fake_executor import FakeExecutor
from tests.server.harness import Harness, RunningServer, capacity, scripted

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def health(server: RunningServer) -> tuple[int, str]:
    response = httpx.get(f"{server.url}/health", timeout=5)
    return response.status_code, response.json()["status"]


def wait_for_health(server: RunningServer, expected: tuple[int, str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while health(server) != expected:
        assert time.monotonic() < deadline, health(server)
        time.sleep(0.05)


def test_a_hung_step_fails_health_in_time_and_recovery_heals_it() -> None:
    go_on = threading.Event()
    executor = FakeExecutor(capacity(), on_step=lambda plan: go_on.wait(20) and None)
    config = ServerConfig(port=0, stall_seconds=0.5, drain_seconds=0)
    with Harness(executor=executor, config=config).start() as server:
        assert health(server) == (200, "ok")
        client = threading.Thread(target=server.post, args=(COMPLETIONS, {"prompt": "x", "max_tokens": 2}))
        client.start()
        wait_for_health(server, (503, "engine_stalled"), 10)
        go_on.set()
        client.join()
        assert health(server) == (200, "ok")


def test_a_dead_engine_fails_health_and_every_request() -> None:
    def die(plan: StepPlan) -> None:
        raise SystemExit("the engine's thread is gone")

    with Harness(executor=FakeExecutor(capacity(), on_step=die)).start() as server:
        response = server.post(COMPLETIONS, {"prompt": "x"})
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        wait_for_health(server, (503, "engine_dead"), 10)
        after = server.post(COMPLETIONS, {"prompt": "x"})
        assert (after.status_code, after.json()["error"]["code"]) == (503, "engine_stopped")


@pytest.mark.parametrize("stream", [True, False])
def test_a_failed_step_is_an_error_of_its_request(stream: bool) -> None:
    failing = {"now": True}

    def fail(plan: StepPlan) -> None:
        if failing["now"]:
            raise RuntimeError("out of luck")

    with Harness(executor=FakeExecutor(capacity(), on_step=fail)).start() as server:
        response = server.post(COMPLETIONS, {"prompt": "x", "stream": stream})
        assert "out of luck" in response.text
        assert "[DONE]" not in response.text
        assert response.status_code == (200 if stream else 500)
        assert server.metric("flashpoint_requests_finished_total", reason="error") == 1
        failing["now"] = False
        assert server.post(COMPLETIONS, {"prompt": "x"}).status_code == 200


def test_a_fault_of_ours_is_a_500_in_the_usual_shape() -> None:
    class BrokenRenderer(PlainRenderer):
        def render(self, conversation: Conversation) -> RenderedChat:
            raise ZeroDivisionError("secret")

    with Harness(renderer=BrokenRenderer(None, None)).start() as server:
        response = server.post(CHAT, {"messages": [{"role": "user", "content": "x"}]})
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "secret" not in response.text
        assert server.context.lifecycle.active == 0


def test_counters_agree_with_usage() -> None:
    with Harness(executor=FakeExecutor(capacity(), seconds=0.001)).start() as server:
        usages: list[dict[str, Any]] = []
        for number in range(12):
            body = {"prompt": [number % 3 + 1] * 70, "max_tokens": 5 + number, "temperature": 0}
            if number % 2:
                body["stream_options"] = {"include_usage": True}
                usages.append(server.stream(COMPLETIONS, body)[-1]["usage"])
            else:
                usages.append(server.post(COMPLETIONS, body).json()["usage"])
        prompt = sum(usage["prompt_tokens"] for usage in usages)
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        completion = sum(usage["completion_tokens"] for usage in usages)
        for kind, total in (("prompt", prompt), ("cached", cached), ("completion", completion)):
            assert server.metric("flashpoint_usage_tokens_total", kind=kind) == total
        assert server.metric("flashpoint_engine_prompt_tokens_total") == prompt
        assert server.metric("flashpoint_engine_cached_prompt_tokens_total") == cached
        assert server.metric("flashpoint_engine_computed_prompt_tokens_total") == prompt - cached
        assert server.metric("flashpoint_engine_generated_tokens_total") == completion
        assert server.metric("flashpoint_requests_finished_total", reason="length") == 12
        assert server.metric("flashpoint_time_to_first_token_seconds_count") == 12
        assert server.metric("flashpoint_inter_token_latency_seconds_count") == completion - 12
        assert server.metric("flashpoint_request_duration_seconds_count") == 12
        steps = server.metric("flashpoint_engine_steps_total")
        assert server.metric("flashpoint_engine_step_seconds_count") == steps
        assert server.metric("flashpoint_cache_blocks_used") == 0
        assert server.metric("flashpoint_cache_blocks_capacity") == capacity().blocks


def test_requests_in_flight_by_state() -> None:
    executor = FakeExecutor(capacity(), seconds=0.01)
    with Harness(executor=executor, max_running=1).start() as server:
        body = {"prompt": "x", "max_tokens": 100, "ignore_eos": True}
        clients = [threading.Thread(target=server.post, args=(COMPLETIONS, body)) for _ in range(3)]
        for client in clients:
            client.start()
        expected = {"preparing": 0, "waiting": 2, "streaming": 1}
        deadline = time.monotonic() + 10
        while {
            state: server.metric("flashpoint_requests_in_flight", state=state) for state in expected
        } != expected:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert server.metric("flashpoint_engine_running_requests") == 1
        assert server.metric("flashpoint_engine_waiting_requests") == 2
        assert server.metric("flashpoint_cache_blocks_used") > 0
        for client in clients:
            client.join()


def test_stop_strings_count_as_stop_and_only_what_was_shown() -> None:
    letters = [Harness().tokenizer.token_id(letter) for letter in "abcdefgh"]
    with Harness(executor=scripted(letters, tokens_per_sample=1)).start() as server:
        usage = server.post(COMPLETIONS, {"prompt": "x", "stop": "c"}).json()["usage"]
        assert usage["completion_tokens"] == 3
        assert server.metric("flashpoint_usage_tokens_total", kind="completion") == 3
        assert server.metric("flashpoint_requests_finished_total", reason="stop") == 1


def test_two_servers_share_no_metrics() -> None:
    with Harness().start() as one, Harness().start() as other:
        one.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1})
        assert one.metric("flashpoint_requests_finished_total", reason="length") == 1
        assert other.metric("flashpoint_requests_finished_total", reason="length") == 0
        text = httpx.get(f"{one.url}/metrics").text
        assert 'flashpoint_requests_finished_total{reason="length"} 1.0' in text


def test_one_log_line_per_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flashpoint.server"), Harness().start() as server:
        answer = server.post(COMPLETIONS, {"prompt": [5] * 9, "max_tokens": 3, "ignore_eos": True}).json()
    lines = [record.getMessage() for record in caplog.records if answer["id"] in record.getMessage()]
    assert len(lines) == 1
    for part in ("prompt=9", "cached=0", "output=3", "ttft_ms=", "seconds=", "finish=length"):
        assert part in lines[0]
