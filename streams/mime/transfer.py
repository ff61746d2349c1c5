"""Content-Transfer-Encodings (RFC 2045 6), decoded as far as the bytes go: they are often cut off or damaged.

Invariant: never raises, linear, and the result is never longer than the input.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

from streams.mime.text import decode_base64

_CUT_ESCAPE: Final = re.compile(rb"=[0-9A-Fa-f]?\Z")
_UU_BEGIN: Final = re.compile(rb"^begin [0-7]{3,4} [^\r\n]*\r?\n", re.MULTILINE)
_UU_NAMES: Final = frozenset({"x-uuencode", "uuencode", "x-uue", "uue"})


def decode_transfer(data: bytes, encoding: str) -> bytes:
    """``data`` without its transfer encoding; unknown encodings count as none. ``data`` may end anywhere."""
    encoding = encoding.strip().lower()
    if encoding == "base64":
        return decode_base64(data)[0]
    if encoding == "quoted-printable":
        return binascii.a2b_qp(_CUT_ESCAPE.sub(b"", data))
    if encoding in _UU_NAMES:
        return _decode_uu(data)
    return data


def _decode_uu(data: bytes) -> bytes:
    begin = _UU_BEGIN.search(data)
    if begin is None:
        return data
    out: list[bytes] = []
    for line in data[begin.end() :].split(b"\n"):
        line = line.rstrip(b"\r")
        if line in (b"end", b"`", b""):
            break
        try:
            out.append(binascii.a2b_uu(line))
        except binascii.Error:
            # Many encoders miscount the padding of a line; its first byte says how many bytes it holds.
            wanted = (((line[0] - 32) & 63) * 4 + 5) // 3
            try:
                out.append(binascii.a2b_uu(line[:wanted]))
            except binascii.Error:
                break
    return b"".join(out)
