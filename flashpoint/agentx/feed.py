"""Sessions in the order in which lanes take them, taken apart before they are needed."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from flashpoint.agentx.traces.corpus import Corpus
from flashpoint.agentx.traces.streams import Session, build_session

AHEAD = 4


class SessionFeed:
    """Calling it gives the next session of the corpus, over and over; close it at the end."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sessions")
        self._next = 0
        self._waiting: deque[Future[Session]] = deque()
        for _ in range(AHEAD):
            self._submit()

    def __call__(self) -> Session:
        """The next session; waits only where sessions are taken faster than they are read."""
        self._submit()
        return self._waiting.popleft().result()

    def close(self) -> None:
        """Read no further."""
        self._thread.shutdown(cancel_futures=True)

    def _submit(self) -> None:
        number = self._next % len(self._corpus)
        self._next += 1
        self._waiting.append(self._thread.submit(lambda: build_session(self._corpus.trace(number))))
