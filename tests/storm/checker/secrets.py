"""Secrets that must be nowhere: canaries, looked for in every form in which they could leak."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Iterable, Iterator

from tests.storm.checker.findings import Finding


def forms(secret: str) -> set[bytes]:
    """The secret as it stands, quoted for IMAP, escaped for JSON and URLs, in hex, in base64 at each alignment."""
    raw = secret.encode()
    found = {
        raw,
        secret.replace("\\", "\\\\").replace('"', '\\"').encode(),
        json.dumps(secret)[1:-1].encode(),
        urllib.parse.quote(secret).encode(),
        raw.hex().encode(),
    }
    for shift in range(3):
        encoded = base64.b64encode(b"\x00" * shift + raw)
        # Characters at either edge also hold bits of the neighbours; what is between is the secret's alone.
        inner = encoded[(0, 2, 3)[shift] :].rstrip(b"=")[:-1]
        found.add(inner)
        found.add(inner.translate(bytes.maketrans(b"+/", b"-_")))
    return {form for form in found if len(form) >= 8}


def leaks(secrets: Iterable[str], places: Iterable[tuple[str, bytes]]) -> Iterator[Finding]:
    """One finding per place in which a form of a secret is found. The finding does not repeat the secret."""
    needles = [(number, form) for number, secret in enumerate(secrets) for form in forms(secret)]
    for name, content in places:
        for number, form in needles:
            if form in content:
                yield Finding("secret_leaked", expected="nowhere", got=f"secret {number} in {name}")
                break
