from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import StepRecord
from flashpoint.engine.events import FinishReason, TokenEvent
from flashpoint.engine.plan import StepPlan
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.service import EngineClient, EngineService, EventStream
from flashpoint.errors import EngineStopped, InvalidValue, QueueFull, RequestTooLong
from tests.engine.fake_executor import FakeExecutor, make_capacity, reference_tokens

CAPACITY = make_capacity(blocks=64, block_tokens=4, slots=4, max_context=128)


def serve(
    body: Callable[[EngineService], Coroutine[Any, Any, None]],
    executor: FakeExecutor | None = None,
    **config: int,
) -> None:
    """Run `body` with a started service, then stop it; no test lasts longer than a few seconds."""

    async def main() -> None:
        settings = EngineConfig(**{"max_step_tokens": 32, "max_running": 4, **config})
        service = EngineService(executor or FakeExecutor(CAPACITY, max_step_tokens=32), settings)
        service.start()
        try:
            async with asyncio.timeout(20):
                await body(service)
        finally:
            await service.stop(grace_seconds=2.0)
        assert not service.alive

    asyncio.run(main())


def prompt(tokens: int, start: int = 1) -> np.ndarray:
    return np.arange(start, start + tokens, dtype=np.int32)


def sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


async def collect(stream: EventStream) -> list[TokenEvent]:
    return [event async for events in stream for event in events]


def text(events: list[TokenEvent]) -> tuple[tuple[int, ...], str | None]:
    return tuple(token for event in events for token in event.tokens), events[-1].finish


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def assert_nothing_leaked(service: EngineService) -> None:
    stats = service.stats()
    assert (stats.free_blocks, stats.free_slots) == (stats.total_blocks, stats.total_slots)
    assert (stats.waiting, stats.running) == (0, 0)


def test_streams_give_the_tokens_of_running_alone() -> None:
    executor = FakeExecutor(make_capacity(blocks=20), max_step_tokens=32)

    async def body(service: EngineService) -> None:
        client: EngineClient = service
        streams = [client.submit(f"r{i}", prompt(3 + i, i), sampling(5 + i)) for i in range(16)]
        for i, events in enumerate(await asyncio.gather(*map(collect, streams))):
            want = reference_tokens(prompt(3 + i, i), sampling(5 + i), executor.capacity)
            assert text(events) == want
        assert_nothing_leaked(service)
        assert service.stats().finished == {"length": 16}

    serve(body, executor)


def test_one_callback_per_step_however_many_requests() -> None:
    async def body(service: EngineService) -> None:
        loop = asyncio.get_running_loop()
        calls = []
        original = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
            calls.append(args)
            return original(*args, **kwargs)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        streams = [service.submit(f"r{i}", prompt(3), sampling(20)) for i in range(4)]
        await asyncio.gather(*map(collect, streams))
        assert len(calls) <= service.stats().steps < 4 * 20

    serve(body)


def test_a_slow_reader_finds_everything_in_one_item() -> None:
    async def body(service: EngineService) -> None:
        slow = service.submit("slow", prompt(3), sampling(30))
        await until(lambda: service.stats().finished == {"length": 1})
        assert_nothing_leaked(service)  # a reader that never reads holds no engine memory
        items = [events async for events in slow]
        assert len(items) == 1 and len(items[0]) == 30
        assert text(items[0]) == reference_tokens(prompt(3), sampling(30), CAPACITY)

    serve(body)


@pytest.mark.parametrize("how", ["close", "cancel", "abort"])
def test_a_hundred_requests_stopped_midway_leak_nothing(how: str) -> None:
    async def reader(service: EngineService, stream: EventStream) -> None:
        async for _ in stream:
            pass

    async def one(service: EngineService, i: int) -> None:
        stream = service.submit(f"r{i}", prompt(1 + i % 9), sampling(110))
        if i % 3:
            await anext(aiter(stream))  # two thirds are running, one third anywhere
        if how == "close":
            await stream.aclose()
            assert [events async for events in stream] == []
        elif how == "cancel":
            task = asyncio.create_task(reader(service, stream))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            service.abort(f"r{i}")
            assert (await collect(stream))[-1].finish is FinishReason.ABORT

    async def body(service: EngineService) -> None:
        await asyncio.gather(*(one(service, i) for i in range(100)))
        await until(lambda: service.stats().waiting == service.stats().running == 0)
        assert_nothing_leaked(service)
        assert service.stats().finished == {"abort": 100}

    # Steps of a millisecond: nobody finishes by itself while the test's loop is slow.
    serve(body, FakeExecutor(CAPACITY, max_step_tokens=32, seconds=0.001))


def test_abort_of_unknown_and_finished_requests_is_ignored() -> None:
    async def body(service: EngineService) -> None:
        service.abort("nobody")
        stream = service.submit("a", prompt(3), sampling(2))
        events = await collect(stream)
        service.abort("a")
        await stream.aclose()
        assert events[-1].finish is FinishReason.LENGTH
        assert service.stats().finished == {"length": 1}

    serve(body)


def test_an_id_is_taken_until_its_last_event_and_free_afterwards() -> None:
    async def body(service: EngineService) -> None:
        stream = service.submit("a", prompt(3), sampling(100))
        with pytest.raises(InvalidValue, match="request_id"):
            service.submit("a", prompt(3), sampling(2))
        await stream.aclose()
        await until(lambda: service.stats().waiting == service.stats().running == 0)
        assert text(await collect(service.submit("a", prompt(3), sampling(2))))[1] == "length"

    serve(body)


def test_bad_requests_are_refused_at_once() -> None:
    async def body(service: EngineService) -> None:
        assert (service.max_context, service.vocab_size) == (128, 1000)
        with pytest.raises(InvalidValue, match="prompt"):
            service.submit("a", prompt(0), sampling(2))
        with pytest.raises(InvalidValue, match="prompt"):
            service.submit("a", prompt(2, start=999), sampling(2))
        with pytest.raises(RequestTooLong, match=r"129 tokens.*128 tokens"):
            service.submit("a", prompt(128), sampling(2))
        assert_nothing_leaked(service)

    serve(body)


def test_a_full_queue_is_refused_and_opens_again() -> None:
    gate = threading.Event()
    executor = FakeExecutor(CAPACITY, on_step=lambda plan: gate.wait(10) and None)

    async def body(service: EngineService) -> None:
        streams = [service.submit(f"r{i}", prompt(3), sampling(3)) for i in range(2)]
        with pytest.raises(QueueFull, match="2 requests"):
            service.submit("r2", prompt(3), sampling(3))
        assert service.stats().waiting == 2
        gate.set()
        await asyncio.gather(*map(collect, streams))
        await collect(service.submit("r2", prompt(3), sampling(3)))

    serve(body, executor, max_waiting=2, max_running=1)


def test_two_clients_of_an_engine_that_runs_one() -> None:
    async def body(service: EngineService) -> None:
        streams = [service.submit(name, prompt(3), sampling(5)) for name in "ab"]
        for events in await asyncio.gather(*map(collect, streams)):
            assert text(events) == reference_tokens(prompt(3), sampling(5), CAPACITY)

    serve(body, max_running=1)


def test_a_failing_step_spares_later_requests() -> None:
    def explode(plan: StepPlan) -> None:
        if any(chunk.request_id == "bad" for chunk in plan.chunks):
            raise ValueError("no such kernel")

    async def body(service: EngineService) -> None:
        (event,) = await collect(service.submit("bad", prompt(3), sampling(5)))
        assert (event.finish, event.error) == (FinishReason.ERROR, "ValueError: no such kernel")
        events = await collect(service.submit("good", prompt(3), sampling(5)))
        assert text(events) == reference_tokens(prompt(3), sampling(5), CAPACITY)
        assert service.alive

    serve(body, FakeExecutor(CAPACITY, on_step=explode))


def test_death_of_the_thread_ends_every_stream_and_is_seen() -> None:
    """INV-10."""

    class Death(BaseException):
        """What no `except Exception` holds back."""

    gate = threading.Event()

    def die(plan: StepPlan) -> None:
        gate.wait(10)
        raise Death("out of memory")

    async def body(service: EngineService) -> None:
        streams = [service.submit(f"r{i}", prompt(3), sampling(5)) for i in range(6)]
        assert service.alive
        gate.set()
        for (event,) in await asyncio.gather(*map(collect, streams)):
            assert event.finish is FinishReason.ERROR
            assert event.error == "its thread died of Death: out of memory"
        assert not service.alive
        with pytest.raises(EngineStopped, match="thread died"):
            service.submit("late", prompt(3), sampling(5))

    serve(body, FakeExecutor(CAPACITY, on_step=die))


def test_drain_lets_running_requests_finish_and_refuses_new_ones() -> None:
    async def body(service: EngineService) -> None:
        streams = [service.submit(f"r{i}", prompt(3), sampling(20)) for i in range(6)]
        stopping = asyncio.create_task(service.stop(drain_seconds=10))
        await asyncio.sleep(0)
        with pytest.raises(EngineStopped, match="shutting down"):
            service.submit("late", prompt(3), sampling(5))
        for events in await asyncio.gather(*map(collect, streams)):
            assert events[-1].finish is FinishReason.LENGTH
        await stopping
        assert_nothing_leaked(service)

    serve(body, FakeExecutor(CAPACITY, seconds=0.001))


def test_what_does_not_finish_while_draining_is_aborted() -> None:
    async def body(service: EngineService) -> None:
        short = service.submit("short", prompt(3), sampling(2))
        long = service.submit("long", prompt(3), sampling(120))
        await service.stop(drain_seconds=0.1)
        assert (await collect(short))[-1].finish is FinishReason.LENGTH
        events = await collect(long)
        assert events[-1].finish is FinishReason.ABORT and len(events) > 1
        assert_nothing_leaked(service)
        assert service.stats().finished == {"length": 1, "abort": 1}

    serve(body, FakeExecutor(CAPACITY, seconds=0.005))


def test_a_hung_step_shows_in_the_stats_and_does_not_hang_stop() -> None:
    gate = threading.Event()

    def hang(plan: StepPlan) -> None:
        if plan.step == 2:
            gate.wait(10)

    async def body(service: EngineService) -> None:
        assert service.stats().seconds_since_progress == 0
        stream = service.submit("a", prompt(3), sampling(50))
        await until(lambda: service.stats().steps == 2 and service.stats().seconds_since_progress > 0.05)
        started = time.monotonic()
        await service.stop(grace_seconds=0.05)
        assert time.monotonic() - started < 5
        assert (await collect(stream))[-1].finish is FinishReason.ABORT
        gate.set()
        await until(lambda: not service.alive)

    serve(body, FakeExecutor(CAPACITY, on_step=hang))


def test_an_idle_engine_sleeps() -> None:
    async def body(service: EngineService) -> None:
        await collect(service.submit("a", prompt(3), sampling(5)))
        rounds = 0
        original = service._obey

        def counted(loop: asyncio.AbstractEventLoop) -> bool:
            nonlocal rounds
            rounds += 1
            return original(loop)

        service._obey = counted  # type: ignore[method-assign]
        await asyncio.sleep(0.1)
        assert rounds <= 1  # it may have been on its way to sleep
        assert service.stats().seconds_since_progress == 0

    serve(body)


def test_observers_see_every_step() -> None:
    async def main() -> None:
        service = EngineService(FakeExecutor(CAPACITY), EngineConfig())
        records: list[StepRecord] = []
        service.add_observer(records.append)
        with pytest.raises(EngineStopped, match="not been started"):
            service.submit("early", prompt(3), sampling(5))
        service.start()
        with pytest.raises(RuntimeError, match="started before"):
            service.start()
        await collect(service.submit("a", prompt(3), sampling(5)))
        await service.stop()
        assert [record.step for record in records] == list(range(service.stats().steps))

    asyncio.run(main())
