"""The printable stand-ins that byte-level BPE vocabularies write for bytes (GPT-2's table)."""

from __future__ import annotations


def _alphabet() -> tuple[str, ...]:
    """Printable Latin-1 bytes stand for themselves, the others for U+0100 onwards in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(stand_ins)) for byte in range(256))


BYTE_TO_CHAR = _alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}
