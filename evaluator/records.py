"""Frozen records in large numbers, those too large to be compared, and how long what is found of them is kept.

``functools.lru_cache`` keeps its arguments for as long as the process lives. Of functions of requests, or of whole
designs, that would be gigabytes in a Python session of many sweeps: these are kept with their record, or as long as
somebody uses them.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakValueDictionary

Record = TypeVar("Record")
Found = TypeVar("Found")
Others = ParamSpec("Others")
_NOTHING: Any = object()


def kept_with_record(
    most: int,
) -> Callable[[Callable[Concatenate[Record, Others], Found]], Callable[Concatenate[Record, Others], Found]]:
    """A function or method of (record, hashable arguments by position), its results kept in the record itself.

    They go when the record goes. There are at most ``most`` for each record: one more, and all of its are forgotten,
    which takes no lock and, other than the order of use, no time at each call.
    """

    def decorated(find: Callable[Concatenate[Record, Others], Found]) -> Callable[Concatenate[Record, Others], Found]:
        # The whole name: methods of two classes may be called the same, and both keep what they find in one
        # record.
        key_of_function = f"{find.__module__}.{find.__qualname__}"

        @wraps(find)
        def kept(record: Record, *others: Others.args, **named: Others.kwargs) -> Found:
            # Into ``__dict__``, which a frozen dataclass does not guard, and which is neither compared nor
            # copied with its fields.
            cache = vars(record).setdefault(key_of_function, {})
            key = (*others, *named.items())
            value = cache.get(key, _NOTHING)  # asked once: another thread may clear it between two looks
            if value is _NOTHING:
                value = find(record, *others, **named)
                if len(cache) >= most:
                    cache.clear()
                cache[key] = value
            return value

        return kept

    return decorated


def shared_while_used(latest: int) -> Callable[[Callable[..., Found]], Callable[..., Found]]:
    """Decorate a function of hashable arguments to give the same object for equal arguments while that object lives.

    References are weak, so that objects go with their last user; but the ``latest`` that were made are held here, so
    that a caller who asks for one again a moment later finds it.
    """

    def decorated(make: Callable[..., Found]) -> Callable[..., Found]:
        alive: WeakValueDictionary[Hashable, Found] = WeakValueDictionary()
        held: deque[Found] = deque(maxlen=latest)

        @wraps(make)
        def shared(*asked: Hashable) -> Found:
            # Into a local first: a weak reference that was there when it was looked for may be gone on the next line.
            # Two threads may make the same at a time; one object of the two is then forgotten.
            made = alive.get(asked)
            if made is None:
                made = alive[asked] = make(*asked)
                held.append(made)
            return made

        return shared

    return decorated


def with_fields(record: Record, **values: Any) -> Record:
    """A frozen dataclass with other values of some fields, as ``dataclasses.replace`` makes it, in a fifth of the time.

    It is for records that check nothing when they are made, of which a sweep has one for each of its designs. What a
    record has found of itself (``functools.cached_property``) is not taken over, since it may depend on the fields.
    """
    # Neither ``__init__`` nor ``__post_init__`` runs. The whole dictionary is copied, which is quicker than its entries
    # one by one; there are more of these than fields where the record has found something.
    state, names = vars(record).copy(), record.__dataclass_fields__  # type: ignore[attr-defined]
    if len(state) > len(names):
        state = {name: state[name] for name in names}
    state.update(values)
    copy = object.__new__(type(record))
    object.__setattr__(copy, "__dict__", state)  # which a frozen record guards as it does its fields
    return copy


@contextmanager
def without_collecting() -> Iterator[None]:
    """Python's collector of cycles rests: it goes through all objects time and again while they become more.

    Of a hundred thousand designs, all of which stay, that takes as long as half of what makes them.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Same(Generic[Record]):
    """A record that equals itself alone: what is cached by it is not compared, number by number, at each use."""

    def __init__(self, of: Record) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.of is other.of

    def __hash__(self) -> int:
        # The wrapper holds its record, so that the id stays that of no other for as long as it is a key.
        return id(self.of)
