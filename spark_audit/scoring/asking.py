"""Ask an endpoint all that is not stored yet, by several threads.

The threads take requests in order, and write each answer before they take the next one.
After an interrupt no further request is sent, and answers that are on their way are
waited for, because they are paid: a second interrupt ends at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from spark_audit.checkpoints.text_server import (
    TEXT_ANSWER_SECONDS,
    AskingStopped,
    TextRequest,
    TextServer,
)
from spark_audit.errors import EndpointError, shown
from spark_audit.messages import say
from spark_audit.scoring.answer_store import AnswerStore

POLL_SECONDS = 0.05
"""Seconds between two looks for an interrupt and at the progress."""

Progress = Callable[[int, int], None]
"""A callback with the answers that are there and the total of requests."""


def ask_all(
    server: TextServer,
    requests: Mapping[str, TextRequest],
    store: AnswerStore,
    *,
    parallel: int = 1,
    progress: Progress | None = None,
) -> None:
    """Ask for the answers that a store lacks, and add them to it.

    A server that begins to answer by another model's name is not asked further: its
    answer is stored, and the same command goes on with it.

    Parameters
    ----------
    requests
        Key of each answer in the store -> its request.
    parallel
        Number of threads.

    Raises
    ------
    EndpointError
        If the server refuses, or answers by another name than before.
    IncompleteError
        If it gives no answer, or all requests are sent that may be.
    """
    with store.alone():
        asking = _Asking(server, requests, store)
        if asking.n_left:
            asking.run(parallel, progress)


class _Asking:
    """The requests that are left, and the threads that send them.

    Attributes
    ----------
    n_left
        How many there were at the start.
    """

    def __init__(
        self,
        server: TextServer,
        requests: Mapping[str, TextRequest],
        store: AnswerStore,
    ) -> None:
        self._server = server
        self._requests = requests
        self._store = store
        self._keys = deque(key for key in requests if key not in store)
        self.n_left = len(self._keys)
        self._names = set(store.model_names(list(requests)))
        self._n_done = 0
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def run(self, parallel: int, progress: Progress | None) -> None:
        """Send the requests, and return once all threads have ended."""
        n_total = len(self._requests)
        n_stored = n_total - self.n_left
        ends: list[threading.Event] = []
        try:
            for _ in range(min(parallel, self.n_left)):
                end = threading.Event()
                # A thread that waits for an answer must not keep the process alive.
                thread = threading.Thread(
                    target=self._ask_in_turn, args=(end,), daemon=True
                )
                thread.start()
                ends.append(end)
            while not all(end.is_set() for end in ends):
                self._wait(ends)
                if progress is not None:
                    progress(n_stored + self._n_done, n_total)
        except BaseException:
            # Answers on their way are paid, so they are waited for.
            self._server.stop()
            n_waiting = sum(not end.is_set() for end in ends)
            say(f"waiting for {n_waiting} answers on their way; once more to leave")
            for end in ends:
                end.wait(TEXT_ANSWER_SECONDS)
            raise
        if self._failure is not None:
            raise self._failure

    def _wait(self, ends: Sequence[threading.Event]) -> None:
        """Wait a moment for the ends of the threads.

        Python 3.11 takes a thread for ended if an interrupt comes while it is joined.
        """
        stops_at = time.monotonic() + POLL_SECONDS
        for end in ends:
            end.wait(max(0.0, stops_at - time.monotonic()))

    def _ask_in_turn(self, end: threading.Event) -> None:
        """Ask one request after the other, until none is left or one failed.

        Parameters
        ----------
        end
            It is set at the end of the thread.
        """
        try:
            while True:
                with self._lock:
                    if not self._keys or self._failure is not None:
                        return
                    key = self._keys.popleft()
                answer = self._server.ask(self._requests[key])
                self._store.add(key, answer)
                with self._lock:
                    self._n_done += 1
                self._check_name(answer.model)
        except AskingStopped:
            return
        # Any error of a thread is raised where the threads are waited for.
        except BaseException as error:
            with self._lock:
                # The first failure counts; it stops the pauses of other threads.
                self._failure = self._failure or error
            self._server.stop()
        finally:
            end.set()

    def _check_name(self, name: str) -> None:
        """Refuse an answer by another name than those before.

        A name that the store holds already was told of by an earlier command.
        """
        with self._lock:
            is_new = bool(name) and name not in self._names
            names_before = sorted(self._names - {""})
            self._names.add(name)
        if is_new and names_before:
            before = ", ".join(repr(shown(name)) for name in names_before)
            raise EndpointError(
                f"answers as {shown(name)!r} now, and answered as {before} before",
                where=self._server.url,
                fix="its answers are kept; the same command goes on with the model "
                "that answers now, and the report says so",
            )
