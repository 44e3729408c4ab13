"""How one direction of a link is written and read: items, entries, and batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from paceline.errors import InvalidArgumentError, ResourceExhaustedError
from paceline.types import SessionError

ItemT = TypeVar("ItemT")
EventT = TypeVar("EventT")
ReplyT = TypeVar("ReplyT")

# Tag and length that a batch puts before each entry: one byte, and at most five.
_ENTRY_OVERHEAD = 6


class Entry(NamedTuple):
    """One event or reply in its wire form, and its payload bytes."""

    message: Message
    size: int


@dataclass(frozen=True, slots=True)
class Direction(Generic[ItemT]):
    """The codec of one direction. A batch is a message with one repeated field of entries."""

    encode: Callable[[ItemT], Message]
    decode: Callable[[Any], ItemT]
    """Raises `InvalidArgumentError` naming the field of a malformed entry."""
    batch_type: Callable[[], Message]
    field: str
    """Name of the batch's repeated field."""
    malformed_code: str
    """Whose fault a malformed entry is: the client's (INVALID_ARGUMENT) or ours (INTERNAL)."""

    def entry(self, item: ItemT, *, max_bytes: int) -> Entry:
        """The wire form of one item.

        Raises `ResourceExhaustedError` when no batch of `max_bytes` can carry it.
        """
        message = self.encode(item)
        size = message.ByteSize()
        if size + _ENTRY_OVERHEAD > max_bytes:
            raise ResourceExhaustedError(
                f"a {type(item).__name__} of {size} bytes does not fit"
                f" grpc.max_message_bytes ({max_bytes})"
            )
        return Entry(message, size)

    def pack(self, entries: Iterable[Entry], *, max_bytes: int) -> Iterator[Message]:
        """Batches of the entries in their order, each of at most `max_bytes`, as few as that
        order allows.
        """
        group: list[Message] = []
        group_bytes = 0
        for message, size in entries:
            if group and group_bytes + size + _ENTRY_OVERHEAD > max_bytes:
                yield self._batch(group)
                group, group_bytes = [], 0
            group.append(message)
            group_bytes += size + _ENTRY_OVERHEAD
        if group:
            yield self._batch(group)

    def unpack(self, batch: Message) -> list[tuple[ItemT | SessionError, int]]:
        """Items of a batch with their payload bytes.

        A malformed entry becomes a `SessionError` of its own session: it hurts no other.
        """
        items: list[tuple[ItemT | SessionError, int]] = []
        for message in getattr(batch, self.field):
            item: ItemT | SessionError
            try:
                item = self.decode(message)
            except InvalidArgumentError as error:
                item = SessionError(message.session_id, self.malformed_code, str(error))
            items.append((item, message.ByteSize()))
        return items

    def _batch(self, messages: list[Message]) -> Message:
        batch = self.batch_type()
        getattr(batch, self.field).extend(messages)
        return batch


@dataclass(frozen=True, slots=True)
class LinkWire(Generic[EventT, ReplyT]):
    """Both directions of a link: events to the worker, replies from it."""

    events: Direction[EventT]
    replies: Direction[ReplyT]
