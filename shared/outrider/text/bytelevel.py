"""The byte-level alphabet of GPT-2: each byte is written as one printable character."""

from __future__ import annotations


def _alphabet() -> dict[str, int]:
    """Character -> byte. Printable Latin-1 bytes stand for themselves, the others for U+0100 onwards, in order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(rest)}


ALPHABET = _alphabet()


def token_bytes(token: str) -> bytes:
    """The bytes a token stands for; a token with a character outside the alphabet (an added one) is its own text."""
    try:
        return bytes([ALPHABET[character] for character in token])
    except KeyError:
        return token.encode()
