"""Hostile messages: any protobuf filled with the numbers and texts that break things, valid ones with a field changed,
and bytes that are no message at all. Everything comes from one `random.Random`, so a seed repeats it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

SMALL = [0, 1, 2, 3, 5, 15, 16, 17, 31, 63, 64, 65, 127, 128, 200, 255, 256, 257, 511, 512, 513, 576, 1023, 65_536]
UINT32 = [*SMALL, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
UINT64 = [*UINT32, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
SINT32 = [*SMALL, -1, -2, -3, -16, -(2**31), 2**31 - 1]
FLOATS = [0.0, -0.0, 1.0, 0.5, 0.7, 0.9, 1e-5, 1e-45, 3.4e38, -1.0, -2.0, 2.0, 2.1, 100.0, 1e30, -1e30]
FLOATS += [float("nan"), float("inf"), float("-inf")]
TEXTS = ["", "a", " ", "\0", "\n", "the quick brown fox", "<|endoftext|>", "<|im_start|>", "{{ 7*7 }}", "{% for %}"]
TEXTS += ["\u202eabc", "e\u0301" * 20, "\U0001f642", "\ufffd", "../../etc/passwd", "%s%n", "x" * 129, "y" * 5000]
LENGTHS = [0, 0, 1, 1, 1, 2, 2, 3, 5, 8, 16, 17, 40, 64, 65, 257, 300]
LONG_LENGTHS = [1024, 1025, 5000]

_PICK: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_UINT32: UINT32,
    FieldDescriptor.TYPE_FIXED64: UINT64,
    FieldDescriptor.TYPE_UINT64: UINT64,
    FieldDescriptor.TYPE_SINT32: SINT32,
    FieldDescriptor.TYPE_FLOAT: FLOATS,
    FieldDescriptor.TYPE_DOUBLE: FLOATS,
    FieldDescriptor.TYPE_STRING: TEXTS,
    FieldDescriptor.TYPE_BOOL: [False, True],
    FieldDescriptor.TYPE_ENUM: [0, 1, 2, 3, 4, 5, 99, 2**31 - 1, -1],
}


class Hostile:
    """Makes hostile values from one source of randomness."""

    def __init__(self, source: random.Random) -> None:
        self.random = source

    def fill(self, message: Message, presence: float = 0.6) -> Message:
        """Set each field with the given probability, of every oneof at most one."""
        oneofs = {oneof.name: self.random.choice(oneof.fields) for oneof in message.DESCRIPTOR.oneofs}
        for field in message.DESCRIPTOR.fields:
            oneof = field.containing_oneof
            if oneof is not None and oneofs[oneof.name] is not field:
                continue
            if self.random.random() < presence:
                self.refill(message, field)
        return message

    def refill(self, message: Message, field: FieldDescriptor) -> None:
        """Give one field another value."""
        message.ClearField(field.name)  # type: ignore[arg-type]
        if field.is_repeated:
            self._fill_list(getattr(message, field.name), field)
        elif field.message_type is not None:
            child = getattr(message, field.name)
            child.SetInParent()
            self.fill(child)
        else:
            setattr(message, field.name, self.scalar(field))

    def change(self, message: Message) -> Message:
        """Give one field, somewhere in the message, another value."""
        fields = message.DESCRIPTOR.fields
        present = [field for field, _ in message.ListFields()]
        inside = [field for field in present if field.message_type is not None]
        if inside and self.random.random() < 0.75:
            value = getattr(message, self.random.choice(inside).name)
            if not isinstance(value, Message):
                if not len(value):
                    return message
                value = self.random.choice(value)
            self.change(value)
        elif fields:
            self.refill(message, self.random.choice(present if present and self.random.random() < 0.7 else fields))
        return message

    def scalar(self, field: FieldDescriptor) -> Any:
        """One value of a field's type."""
        return self.random.choice(_PICK[field.type])

    def bytes_of(self, message: Message) -> bytes:
        """A message's bytes, damaged."""
        data = bytearray(message.SerializeToString())
        for _ in range(self.random.choice([1, 1, 2, 5, 20])):
            self.random.choice(_DAMAGES)(self.random, data)
        return bytes(data)

    def _fill_list(self, values: Any, field: FieldDescriptor) -> None:
        lengths = LONG_LENGTHS if self.random.random() < 0.01 else LENGTHS
        length = self.random.choice(lengths)
        if field.message_type is not None:
            for _ in range(min(length, 40)):
                self.fill(values.add())
        elif self.random.random() < 0.5:  # mostly valid ids, so that the length is what is wrong
            values.extend([self.random.choice(SMALL[:17]) for _ in range(length)] if _is_number(field) else [])
        else:
            values.extend([self.scalar(field) for _ in range(length)])


def _is_number(field: FieldDescriptor) -> bool:
    return field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_FLOAT)


def _flip(source: random.Random, data: bytearray) -> None:
    if data:
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def _overwrite(source: random.Random, data: bytearray) -> None:
    if data:
        data[source.randrange(len(data))] = source.choice([0, 0x7F, 0x80, 0xFF, source.randrange(256)])


def _insert(source: random.Random, data: bytearray) -> None:
    place = source.randint(0, len(data))
    data[place:place] = source.randbytes(source.choice([1, 2, 10]))


def _cut(source: random.Random, data: bytearray) -> None:
    if data:
        start = source.randrange(len(data))
        del data[start : start + source.choice([1, 2, 10, len(data)])]


def _repeat(source: random.Random, data: bytearray) -> None:
    if data and len(data) < 100_000:
        start = source.randrange(len(data))
        data.extend(data[start:])


_DAMAGES: list[Callable[[random.Random, bytearray], None]] = [_flip, _overwrite, _insert, _cut, _repeat]
