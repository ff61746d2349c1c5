"""The product, broken on purpose in one way: `SABOTAGE=name faust -A tests.storm.sabotage worker`.

Nothing of this is in what is shipped: the functions here patch the product in memory, before the worker starts. Each
says which rules of the checker must be broken by it; `tests.storm.selftest` shows that they are.
"""

from __future__ import annotations

import os
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "app":
        import streams
        from tests.storm.sabotage.ways import WAYS

        if chosen := os.environ.get("SABOTAGE"):
            WAYS[chosen].apply()
        return streams.app
    raise AttributeError(name)
