"""`python -m streams.runtime.settings_reference` writes `docs/settings.md` from the settings themselves."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from streams.settings import SAFETY_MARGIN_S, Settings

PAGE: Final = Path("docs/settings.md")

_HEAD: Final = f"""\
# Settings

Every setting is an environment variable of the same name (upper or lower case), or a line `NAME=value` in an env file:
`.env` in the working directory, or the file that `MAILSTREAMS_ENV_FILE` names. The environment wins.

All settings are read once and checked together before anything connects. What is wrong is listed in one line on stderr,
without any value of a secret, and the process exits with 2. Some rules span several settings:

* `WORKER_TASK_TIMEOUT_S` + `WORKER_RETRY_BACKOFF_MAX_S` + {SAFETY_MARGIN_S:g} s safety must be under
  `WORKER_CONSUMER_TIMEOUT_S`;
* `POLL_COLD` must not be under `POLL_WARM`, `TIER_COLD_AFTER_D` not shorter than `TIER_HOT_ACTIVITY_H`,
  `BACKOFF_MAX_S` not under `BACKOFF_MIN_S`, `FETCH_WINDOW` not under `FETCH_CHUNK`;
* a SASL protocol needs `KAFKA_SASL_USERNAME` and `KAFKA_SASL_PASSWORD`.

`PARTITIONS`, `KAFKA_TOPIC_PREFIX` and `KAFKA_GROUP` must be the same in every process of a deployment, and `PARTITIONS`
is final once there is data. Names end in their unit: `_S` seconds, `_MS` milliseconds, `_MIN` minutes, `_H` hours,
`_D` days.

A mail host, here, is a name with its port.
`HOST_LOGINS_PER_S` and `HOST_BACKFILL_…` are meant for the whole fleet: each worker takes the part of them that it has
of the partitions. Logins are spaced evenly, 1 / rate apart, without a burst after a quiet time, and ten at most are
under way at once; who came first goes first. History is read in windows of `FETCH_WINDOW` messages at most, one account
after the other; a window is read at once when all before it are paid for, so that the rate holds over any time but for
the windows under way. New mail, flags and removals wait for none of these rates.

This page is written by `python -m streams.runtime.settings_reference`; a test holds it against the code.
"""

_SECTION: Final = re.compile(r"^    # --- (?P<title>.+?) -+$")
_FIELD: Final = re.compile(r"^    (?P<name>[A-Z][A-Z0-9_]+): ")


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    fields = Settings.model_fields
    for line in inspect.getsource(Settings).splitlines():
        if (section := _SECTION.match(line)) and section["title"] != "what is derived":
            yield f"\n## {section['title']}\n\n| setting | type | default | meaning |\n|---|---|---|---|\n"
        elif (found := _FIELD.match(line)) and found["name"] in fields:
            yield _row(found["name"], fields[found["name"]])


def _row(name: str, field: FieldInfo) -> str:
    return (
        f"| `{name}` | {_type(field)} | {_default(field)} | {(field.description or '').replace('|', chr(92) + '|')} |\n"
    )


def _type(field: FieldInfo) -> str:
    kind, bounds = field.annotation, _bounds(field.metadata)
    options = [each for each in get_args(kind) if each is not type(None)] if get_origin(kind) is not Literal else []
    if type(None) in get_args(kind) and len(options) == 1:
        kind = options[0]
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is list:
        return "list, separated by commas"
    names: dict[Any, str] = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "`true`, `false`",
        Path: "path",
        SecretStr: "secret",
    }
    return names.get(kind, str(kind)) + (f", {bounds}" if bounds else "")


def _bounds(metadata: list[Any]) -> str:
    parts: list[str] = []
    for item in metadata:
        match item:
            case Interval(gt=gt, ge=ge, lt=lt, le=le):
                limits = ((">", gt), ("≥", ge), ("<", lt), ("≤", le))
                parts += [f"{sign} {limit:g}" for sign, limit in limits if limit is not None]
            case Gt(gt=limit):
                parts.append(f"> {limit:g}")
            case Ge(ge=limit):
                parts.append(f"≥ {limit:g}")
            case Lt(lt=limit):
                parts.append(f"< {limit:g}")
            case Le(le=limit):
                parts.append(f"≤ {limit:g}")
            case _:
                continue
    return ", ".join(parts)


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "the host's name" if "gethostname" in repr(field.default_factory) else "none"
    value = field.default
    if value is None:
        return "unset"
    if isinstance(value, SecretStr):
        return "a local one"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if str(value) else "empty"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
