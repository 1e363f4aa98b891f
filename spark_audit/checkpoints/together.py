"""One model over several processes: the first leads, the others compute with it.

Under torchrun every process runs the same command until it opens a checkpoint. There
the first goes on alone, and tells the others what to do with the model whenever all
must; they serve until it has ended. So the first alone plans, decides, writes and
prints, and all compute the same on their shares of the weights.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from spark_audit.errors import IncompleteError, InputError

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Loaded
    from spark_audit.checkpoints.specs import Loading, Spec

R = TypeVar("R")
Open = Callable[..., Iterator["Loaded"]]

IDLE = timedelta(days=30)
"""How long the others wait for the first, which may draw reports in between."""
GRACE = 10.0
"""Seconds that the first has to say what went wrong, where it met the same."""
_STARTED: list[_Group] = []
_LOST = ("gloo", "connection closed", "connection reset", "nccl")


class _Group:
    """The processes of this launch, with a channel of their own for what is told."""

    def __init__(self, size: int, device: str) -> None:
        import torch
        import torch.distributed as dist

        given = os.environ.get("WORLD_SIZE", "1")
        if given != str(size) or not dist.is_available():
            raise InputError(
                f"{size} processes must share a model, {given} were launched",
                where="--tp",
                fix=f"torchrun --nproc-per-node {size} -m spark_audit ... --tp {size}",
            )
        self.size, self.first = size, os.environ.get("RANK", "0") == "0"
        cuda = torch.cuda.is_available()
        if cuda and device == "cpu":
            raise InputError(
                "a model is shared on the GPUs where there are any",
                where="--tp, --device cpu",
                fix="hide them: CUDA_VISIBLE_DEVICES= torchrun ...",
            )
        if cuda:
            place = int(os.environ.get("LOCAL_RANK", "0"))
            there = torch.cuda.device_count()
            if place >= there:
                raise InputError(
                    f"process {place + 1} of this machine has no CUDA device of its "
                    f"own: {there} here",
                    where="--tp",
                    fix="launch no more than that, or hide them: CUDA_VISIBLE_DEVICES=",
                )
            torch.cuda.set_device(place)
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
        self._channel = dist.new_group(backend="gloo", timeout=IDLE)
        self._dist: Any = dist
        self.broken = False

    def tell(self, what: str, *more: Any) -> None:
        """Have the others do something with their part."""
        self._dist.broadcast_object_list([(what, more)], src=0, group=self._channel)

    def told(self) -> tuple[str, tuple[Any, ...]]:
        """What the first has them do."""
        box: list[Any] = [None]
        self._dist.broadcast_object_list(box, src=0, group=self._channel)
        what, more = box[0]
        return what, more

    def leave(self) -> None:
        """Let go of the others; never waits long for one that is gone."""
        if self.broken:
            return  # the launcher ends them

        def end() -> None:
            with suppress(Exception):
                if self.first:
                    self.tell("end")
                self._dist.destroy_process_group()

        last = threading.Thread(target=end, daemon=True)
        last.start()
        last.join(GRACE)


def joined() -> bool:
    """Whether this process shares its model with others."""
    return bool(_STARTED)


def opened_together(
    open_: Open, specs: Sequence[Spec], loading: Loading
) -> Iterator[Loaded]:
    """What ``open_(specs, loading)`` gives, in all processes; the others stay here.

    Raises
    ------
    InputError
        If other than ``loading.tp`` processes were launched.
    """
    if not _STARTED:
        _STARTED.append(_Group(loading.tp, loading.device))
        if _STARTED[0].first:
            atexit.register(_STARTED[0].leave)
    (group,) = _STARTED
    if not group.first:
        _serve(group, open_)
    group.tell("open", specs, loading)
    stream = open_(specs, loading)
    while True:
        group.tell("next")
        with _all_there():
            loaded = next(stream, None)
        if loaded is None:
            return
        yield loaded


def together(
    *, here: Collection[str] = ()
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Have all processes that share a model call a function of a module.

    Its first parameter is a :class:`Loaded`; the others find theirs by its name.

    Parameters
    ----------
    here
        Keywords of callbacks, which the first process alone is called back by: their
        defaults do nothing.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def call(loaded: Loaded, *args: Any, **kwargs: Any) -> R:
            if not _STARTED or not loaded.shared:
                return function(loaded, *args, **kwargs)
            sent = {key: value for key, value in kwargs.items() if key not in here}
            _STARTED[0].tell("call", call, loaded.name, args, sent)
            with _all_there():
                return function(loaded, *args, **kwargs)

        return call

    return decorate


def _serve(group: _Group, open_: Open) -> None:
    """Do what the first process tells, until it has ended; then end too."""
    stream: Iterator[Loaded] = iter(())
    opened: dict[str, Loaded] = {}
    while True:
        try:
            what, more = group.told()
            if what == "end":
                break
            if what == "open":
                stream, opened = open_(*more), {}
            elif what == "next":
                loaded = next(stream, None)
                if loaded is not None:
                    opened[loaded.name] = loaded
                del loaded
            else:
                function, name, args, kwargs = more
                function.__wrapped__(opened[name], *args, **kwargs)
        except Exception:
            # The first meets the same and says it, and the launcher ends us all. If it
            # does not, it waits for us in vain until we end.
            time.sleep(GRACE)
            raise
    group.leave()
    raise SystemExit(0)


@contextmanager
def _all_there() -> Iterator[None]:
    """Say in words that another process has gone."""
    try:
        yield
    except BaseException as error:
        _STARTED[0].broken = True
        first = error.__cause__ or error  # a model that cannot be run says why
        lost = isinstance(first, RuntimeError)
        if not lost or not any(word in str(first).lower() for word in _LOST):
            raise
        raise IncompleteError(
            "another process that shares the model has ended",
            where="--tp",
            fix="see what it said; the same command resumes",
        ) from error
