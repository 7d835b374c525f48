"""Which request computes what in the next step. Pure: no clock, no device, no I/O (INV-8).

    plan = scheduler.plan()            # decide: admissions, chunks, preemptions
    events = scheduler.apply(result)   # commit: tokens, stop rules, released memory

Order is first come, first served. Admission takes the queue's head or nobody, and preemption puts the
youngest running request back at the head, so whoever runs arrived before whoever waits (INV-6): the
oldest request always makes progress, and none starves.

A step's token budget goes to decode rows first, then to running prefills (cut into chunks where needed),
then to admissions. An admitted request gets the blocks of its whole known length and one token more at
once, those the cache has of its beginning among them: a prefill therefore never runs out of blocks midway,
and free blocks are free of promises. Blocks become everybody's as soon as they are computed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from flashpoint.cache.block_cache import BlockCache, Lease
from flashpoint.cache.transfer import Content, Run
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.events import FinishReason, TokenEvent
from flashpoint.engine.executor import Capacity
from flashpoint.engine.plan import Chunk, Sampled, StepPlan, StepResult
from flashpoint.engine.replay import Replay
from flashpoint.engine.request import Request, State
from flashpoint.errors import InvalidValue, QueueFull, RequestTooLong

T = TypeVar("T")
_Share = tuple[Request, int, int]
"""Whose step it is, too: a request, how many of its known tokens are computed, and drafts beside them."""


class Scheduler:
    """Requests, blocks and slots of one engine: none is lost or held twice (INV-1, INV-2, INV-3).

    context_limit: tokens one sequence can have, prompt and answer: the model's context or, if that is
        less, all of the pool.
    preemptions: how often a request had to give its memory back so far.
    hit_tokens: prompt tokens found in the cache so far, by the tier they were found in (`Tier` order).
    stored: what the disk tier holds already.
    Raises InvalidValue for a capacity in which no request could ever run.
    """

    def __init__(self, config: EngineConfig, capacity: Capacity, stored: Iterable[Run] = ()) -> None:
        for name, value in (("capacity.blocks", capacity.blocks), ("capacity.slots", capacity.slots)):
            if value < 1:
                raise InvalidValue(name, value, "at least 1")
        verified = config.max_running * (1 + capacity.draft_tokens)
        if config.max_step_tokens < verified:
            raise InvalidValue(
                "max_step_tokens",
                config.max_step_tokens,
                f"at least {verified}: {1 + capacity.draft_tokens} rows for each of max_running = "
                f"{config.max_running}",
            )
        self._config = config
        self._capacity = capacity
        self._replay = Replay.of(config, capacity.cache_spec)
        self._cache = BlockCache(
            capacity.blocks,
            capacity.block_names or capacity.block_tokens,
            keep=config.prefix_cache,
            host_blocks=capacity.host_blocks,
            disk_blocks=capacity.disk_blocks,
            stored=stored,
        )
        self._free_slots = list(range(capacity.slots - 1, -1, -1))
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._running: list[Request] = []  # in order of admission, which is order of arrival
        self._requests: dict[str, Request] = {}  # all that are not finished
        self._in_flight: tuple[StepPlan, list[Request]] | None = None
        self._steps = 0
        self.context_limit = min(capacity.max_context, capacity.blocks * capacity.block_tokens)
        self.preemptions = 0
        self.hit_tokens = (0, 0, 0)

    @property
    def waiting_count(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Requests that hold a slot and are not finished."""
        return len(self._running)

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds: free ones, and cached ones that can be taken."""
        return self._cache.free_blocks

    @property
    def cached_blocks(self) -> int:
        """Of the free blocks, those that hold something that later requests may find."""
        return self._cache.cached_blocks

    @property
    def failed_transfers(self) -> int:
        """Moves between tiers that failed so far; what they moved was forgotten."""
        return self._cache.failed_transfers

    @property
    def free_slots(self) -> int:
        """Slots nobody holds."""
        return len(self._free_slots)

    @property
    def has_work(self) -> bool:
        """True while a request is not finished."""
        return bool(self._requests)

    def validate(self, request: Request) -> None:
        """Refuse what can never run: InvalidValue, or RequestTooLong for prompt + 1 > `context_limit`.

        Reads fixed data only, so any thread may call it.
        """
        vocab = self._capacity.vocab_size
        request.check_ids(vocab, self._capacity.image_token_id)
        for name, chosen in (
            ("stop_ids", request.sampling.stop_ids),
            ("logit_bias", request.sampling.logit_bias),
        ):
            for token in chosen:
                if not 0 <= token < vocab:
                    raise InvalidValue(name, token, f"token ids from 0 to {vocab - 1}")
        if request.length + 1 > self.context_limit:
            whole_pool = self.context_limit < self._capacity.max_context
            what = "the whole cache" if whole_pool else "the model's context"
            raise RequestTooLong(request.length + 1, self.context_limit, what)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises as `validate`; QueueFull; InvalidValue for an id that is in use."""
        self.validate(request)
        if request.request_id in self._requests:
            raise InvalidValue("request_id", request.request_id, "an id that no unfinished request has")
        if len(self._waiting) >= self._config.max_waiting:
            raise QueueFull(self._config.max_waiting)
        self._requests[request.request_id] = request
        self._waiting[request.request_id] = request
        self._cache.read_ahead(request.namespace, self._findable(request))

    def cached_tokens(self, request: Request) -> int:
        """Tokens of a request's prompt that the cache holds on the device now."""
        known = self._cache.known(request.namespace, self._findable(request))
        return known * self._capacity.block_tokens

    def abort(self, request_id: str) -> TokenEvent | None:
        """End a request in any state; None when the id is unknown or finished.

        While a step with the request is in flight its blocks and slot stay taken until `apply`, since the
        executor may still write to them (INV-4).
        """
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._finish(request, FinishReason.ABORT)
        return TokenEvent(request_id, finish=FinishReason.ABORT)

    def plan(self) -> StepPlan | None:
        """The next step, or None when there is nothing to compute. One plan at a time is in flight.

        A plan without chunks waits for blocks on their way between tiers.
        """
        if self._in_flight is not None:
            raise RuntimeError(f"step {self._in_flight[0].step} is in flight: apply its result first")
        planned: list[_Share] = []
        budget = self._config.max_step_tokens
        budget = self._plan_decodes(planned, budget)
        budget = self._plan_prefills(planned, budget)
        self._plan_admissions(planned, budget)
        if not planned and not (self._requests and self._cache.in_flight):
            return None
        chunks = tuple([self._chunk(*share) for share in planned])
        transfers = self._cache.take_transfers()
        plan = StepPlan(self._steps, chunks, transfers, self._repeat_blocks(planned))
        self._steps += 1
        self._in_flight = plan, [request for request, _, _ in planned]
        return plan

    def apply(self, result: StepResult) -> list[TokenEvent]:
        """Commit the result of the plan in flight and return what its requests shall hear.

        `result` must hold one Sampled for each chunk that samples (core.py checks it).
        """
        plan, requests = self._land()
        self._steps += result.steps - 1
        self._cache.land(result.landed)
        sampled = {item.request_id: item for item in result.sampled}
        if result.steps > 1:
            self._cover(plan, requests, result.before_last)
        events = []
        for chunk, request in zip(plan.chunks, requests, strict=True):
            if request.state is State.FINISHED:  # aborted while in flight: its result is dropped
                self._release(request)
            elif chunk.sampling is None:
                request.advance(len(chunk.history))
                self._publish(request, _held(request.lease))
            else:
                events.append(self._commit(request, chunk, sampled[chunk.request_id], result.steps))
        return events

    def fail(self, message: str) -> list[TokenEvent]:
        """The plan in flight failed as a whole: each of its requests ends with ERROR and `message`."""
        _, requests = self._land()
        events = []
        for request in requests:
            if request.state is State.FINISHED:
                self._release(request)
            else:
                events.append(self._fail_one(request, message))
        return events

    # Planning

    def _plan_decodes(self, planned: list[_Share], budget: int) -> int:
        """Give each decoding request its rows, oldest first, preempting the youngest for blocks."""
        drafted = self._capacity.draft_tokens
        for request in list(self._running):
            # The state is read here, not before the loop: an older request may have preempted this one.
            if request.state is not State.DECODING:
                continue
            rows = pending = request.length - request.computed
            if rows > budget:
                rows = budget
            # No drafts while known tokens are left over, and none beyond what it may still get.
            drafts = 0
            if drafted and rows == pending:
                drafts = max(0, min(drafted, self.context_limit - request.length - 1))
            if rows and self._grow(request, request.computed + rows + drafts):
                planned.append((request, rows, drafts))
                budget -= rows + drafts
        return budget

    def _plan_prefills(self, planned: list[_Share], budget: int) -> int:
        for request in self._running:
            if request.state is not State.PREFILLING:
                continue
            rows = self._replay.prefill_rows(request.pending, budget)
            if rows:
                planned.append((request, rows, 0))
                budget -= rows
        return budget

    def _plan_admissions(self, planned: list[_Share], budget: int) -> None:
        """Admit from the queue's head while budget, slots and blocks last; never past the head."""
        while budget and self._waiting and self._free_slots and len(self._running) < self._config.max_running:
            request = next(iter(self._waiting.values()))
            lease = self._cache.acquire(
                request.namespace,
                self._findable(request),
                self._blocks_for(request.length + 1),
                self._blocks_for(self._replay.least_hit),
            )
            if lease is None:
                return
            del self._waiting[request.request_id]
            hit = lease.hit_blocks * self._capacity.block_tokens
            if request.cached_tokens is None:
                self._count_hit(lease)
            start = self._replay.start(hit)
            if request.received:
                start, request.received = request.length - 1, False  # after a preemption it is computed
            request.admit(self._free_slots.pop(), lease, hit, start)
            self._running.append(request)
            rows = self._replay.prefill_rows(request.pending, budget)
            if rows:
                planned.append((request, rows, 0))
                budget -= rows

    def _chunk(self, request: Request, rows: int, drafts: int) -> Chunk:
        start, length, lease = request.computed, request.length, _held(request.lease)
        end = start + rows
        last = end == length
        decoder_rows = None
        if request.state is State.PREFILLING:
            decoder_rows = self._replay.decoder_rows(rows, last)
            request.decoder_start = self._replay.decoder_start(request.window_start, end)
        sampling, prompt_tokens = request.sampling, request.prompt_tokens
        return Chunk(
            request.request_id,
            _held(request.slot),
            start,
            request.history(end),
            lease.table.view(self._blocks_for(end)),
            prompt_tokens,
            sampling if last else None,
            request.write_from,
            request.window_start,
            decoder_rows,
            request.decoder_start,
            drafts,
            # To its max_tokens, or to the context's end.
            min(sampling.max_tokens - length + prompt_tokens, self.context_limit - length),
        )

    def _count_hit(self, lease: Lease) -> None:
        device, host, disk = (blocks * self._capacity.block_tokens for blocks in lease.hits_by_tier)
        self.hit_tokens = self.hit_tokens[0] + device, self.hit_tokens[1] + host, self.hit_tokens[2] + disk

    def _findable(self, request: Request) -> Content:
        """What of a request the cache may supply: whole blocks, and at least one token is left to compute."""
        return self._content(request, request.length - 1)

    def _content(self, request: Request, tokens: int) -> Content:
        block_tokens = self._capacity.block_tokens
        return request.content(tokens // block_tokens, block_tokens)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._capacity.block_tokens)

    def _repeat_blocks(self, planned: list[_Share]) -> int | None:
        """See `StepPlan.repeat_blocks`. Only ends and landings bring blocks: who waits goes on waiting."""
        if not planned or len(planned) != len(self._running):
            return None
        # From the last on, as prefills come behind decodes.
        for request, rows, _ in reversed(planned):
            if request.state is not State.DECODING or request.pending != rows:
                return None
        return self._cache.ready_blocks

    def _grow(self, request: Request, end: int) -> bool:
        """Make the request's table cover `end` positions; False when it has to wait for blocks on their way
        out, or had to be preempted itself.

        The oldest running request is never preempted: alone it may hold the whole pool, and
        `end` <= context_limit.
        """
        lease, blocks = _held(request.lease), self._blocks_for(end)
        while blocks > len(lease.table) and not self._cache.grow(lease, blocks):
            self._cache.unpin()  # who waits for admission must not keep blocks from who runs
            if self._cache.could_grow(lease, blocks):
                if self._cache.in_flight:
                    return False
                continue
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        request.preempt()
        self._running.remove(request)
        self._release(request)
        self._waiting[request.request_id] = request
        self._waiting.move_to_end(request.request_id, last=False)
        self.preemptions += 1

    # Committing

    def _land(self) -> tuple[StepPlan, list[Request]]:
        if self._in_flight is None:
            raise RuntimeError("no step is in flight")
        landed, self._in_flight = self._in_flight, None
        return landed

    def _cover(self, plan: StepPlan, requests: Sequence[Request], before_last: Sequence[int]) -> None:
        """Several steps were run as one: give each sequence the blocks that the last of them would have had,
        drafts included, before any sequence ends. So the same cached blocks make room as one by one."""
        for chunk, request, tokens in zip(plan.chunks, requests, before_last, strict=True):
            known = len(chunk.history) + tokens
            drafts = max(0, min(self._capacity.draft_tokens, self.context_limit - known - 1))
            if not self._cache.grow(_held(request.lease), self._blocks_for(known + drafts)):
                raise RuntimeError(f"{request.request_id} was given more steps than there are blocks for")

    def _commit(self, request: Request, chunk: Chunk, sampled: Sampled, steps: int) -> TokenEvent:
        """Take the tokens that count, up to the first stop, and end the request when a stop rule says so."""
        end = len(chunk.history)
        if sampled.error is not None:
            return self._fail_one(request, sampled.error)
        tokens, logprobs = sampled.tokens, sampled.logprobs
        count, finish = _accepted(request, chunk.room, tokens)
        stop_id = tokens[count] if finish is FinishReason.STOP else None
        if count < len(tokens):
            tokens, logprobs = tokens[:count], logprobs[:count]
        lease = _held(request.lease)
        if count > 1 and (chunk.draft_tokens or steps > 1):
            end += count - 1  # all but the last token are in the caches already
        request.sample(end, tokens)
        self._publish(request, lease)
        if finish is not None:
            self._finish(request, finish)
        cached = request.cached_tokens or 0
        return TokenEvent(request.request_id, tokens, logprobs, finish, None, cached, stop_id)

    def _publish(self, request: Request, lease: Lease) -> None:
        """Share the blocks that are full now."""
        if request.computed // self._capacity.block_tokens > lease.shared:
            self._cache.publish(lease, self._content(request, request.computed))

    def _fail_one(self, request: Request, message: str) -> TokenEvent:
        self._finish(request, FinishReason.ERROR)
        return TokenEvent(request.request_id, finish=FinishReason.ERROR, error=message)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a request and free what it holds: now or, if a step is in flight with it, in `apply`."""
        request.end(reason)
        del self._requests[request.request_id]
        if self._waiting.pop(request.request_id, None) is not None:
            self._cache.unpin()  # it may have been the one that blocks are kept for
            return
        self._running.remove(request)
        if self._in_flight is None or request not in self._in_flight[1]:
            self._release(request)

    def _release(self, request: Request) -> None:
        self._free_slots.append(_held(request.slot))
        # What a failed request computed may be what broke it: nobody else shall find it.
        self._cache.release(_held(request.lease), sound=request.finish is not FinishReason.ERROR)
        request.slot = request.lease = None


def _accepted(request: Request, room: int, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
    """How many of `tokens` join the answer, which may get `room`, and why it ends there, if it does.

    It ends before a stop id (once it has min_tokens), with max_tokens, or at the context's end.
    """
    sampling = request.sampling
    if not sampling.stop_ids:
        return (room, FinishReason.LENGTH) if len(tokens) >= room else (len(tokens), None)
    for count, token in enumerate(tokens):
        if token in sampling.stop_ids and request.generated + count >= sampling.min_tokens:
            return count, FinishReason.STOP
        if count + 1 == room:
            return room, FinishReason.LENGTH
    return len(tokens), None


def _held(value: T | None) -> T:
    if value is None:
        raise RuntimeError("the request holds neither slot nor blocks")
    return value
