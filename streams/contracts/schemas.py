"""`schemas/`: a JSON Schema per record and the AsyncAPI document, generated from the records of this package.

The files are committed so that others can read them without Python; nothing in them is written by hand. Invariant:
`python -m streams.contracts.schemas --check` is silent exactly when the files say what the records say.

    python -m streams.contracts.schemas            writes what differs and removes what no record stands for
    python -m streams.contracts.schemas --check    names what differs and exits with 1
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from streams.contracts import account, commands, mailbox, topics

Json = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
ASYNCAPI_FILE: Final = "asyncapi.json"
API_VERSION: Final = "1.0.0"
_ROOT: Final = Path(__file__).resolve().parents[2] / "schemas"
_SUFFIX: Final = ".schema.json"
_ZONED: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$"
"""Validators may ignore `format`; the pattern makes all of them refuse a time without a zone."""


@dataclass(frozen=True, slots=True)
class Message:
    """One kind of record on one topic. `direction` is as we see it: `in` is what other services produce."""

    topic: str
    name: str
    record: type[msgspec.Struct]
    direction: Literal["in", "out"]

    @property
    def path(self) -> str:
        """File of the schema, below `schemas/`."""
        return f"{self.topic}/{self.name}{_SUFFIX}"


def _tagged(topic: str, records: Sequence[type[msgspec.Struct]]) -> tuple[Message, ...]:
    return tuple(Message(topic, str(record.__struct_config__.tag), record, "out") for record in records)


MESSAGES: Final[tuple[Message, ...]] = (
    Message(topics.STATE_CHANGED, topics.STATE_CHANGED, account.AccountStateChanged, "in"),
    Message(topics.USER_ACTIVE, topics.USER_ACTIVE, account.UserActive, "in"),
    Message(topics.COMMANDS, "command", commands.Command, "in"),
    Message(topics.JOBS, "command", commands.Command, "in"),
    *_tagged(topics.CHANGES, mailbox.AnyChange.__args__),
    Message(topics.TIER_CHANGED, topics.TIER_CHANGED, account.AccountTierChanged, "out"),
    Message(topics.SYNC_STATUS, topics.SYNC_STATUS, account.AccountSyncStatus, "out"),
    *_tagged(topics.COMMAND_EVENTS, commands.AnyCommandEvent.__args__),
    *_tagged(topics.JOB_STATE, commands.AnyJobState.__args__),
    Message(topics.HEAT, topics.HEAT, account.AccountHeat, "out"),
    Message(topics.USER_ACCOUNTS, topics.USER_ACCOUNTS, account.UserAccount, "out"),
)
"""Every JSON record and the topic it travels on."""


def record_schema(message: Message) -> Json:
    """JSON Schema (2020-12) of one record, complete in itself."""
    generated = msgspec.json.schema(message.record)
    definitions: Json = generated["$defs"]
    root = definitions.pop(message.record.__name__)
    schema: Json = {
        "$schema": DIALECT,
        "$id": f"urn:mailstreams:{message.topic}:{message.name}",
        **root,
        "title": message.name,
    }
    if definitions:
        schema["$defs"] = definitions
    _mark_times(schema)
    return schema


def _mark_times(node: Any) -> None:
    if isinstance(node, dict):
        if node.get("format") == "date-time":
            node["pattern"] = _ZONED
        for value in node.values():
            _mark_times(value)
    elif isinstance(node, list):
        for value in node:
            _mark_times(value)


_CLOUD_EVENT: Final[Json] = {
    "ce_specversion": {"const": "1.0"},
    "ce_id": {"type": "string", "description": "identity of the event; of a change it is account_id/sequence"},
    "ce_type": {"type": "string", "description": "the record's name"},
    "ce_source": {"type": "string", "description": "who produced it"},
    "ce_time": {"type": "string", "format": "date-time"},
    "content-type": {"const": "application/json"},
}
_WRITER: Final[Json] = {
    "writer": {"type": "string", "description": "who wrote it, as worker/fence: a higher fence is a later owner"}
}
_DEAD_LETTER: Final[Json] = {
    "dlq_topic": {"type": "string", "description": "topic it came from"},
    "dlq_partition": {"type": "string", "pattern": "^[0-9]+$"},
    "dlq_offset": {"type": "string", "pattern": "^[0-9]+$"},
    "dlq_reason": {"type": "string", "description": "why, as a stable word"},
    "dlq_error": {"type": "string", "description": "why, as a sentence that quotes no content"},
}
_KEYS: Final[Mapping[str, Json]] = {
    "account_id": {"type": "string", "format": "uuid", "description": "UUID, lower case with hyphens, bare UTF-8 text"},
    "user_id": {"type": "string", "minLength": 1, "maxLength": 200, "description": "bare UTF-8 text"},
}


def _headers(message: Message) -> Json:
    if message.direction == "in":
        return {"type": "object", "properties": _CLOUD_EVENT, "description": "all optional"}
    return {
        "type": "object",
        "properties": _CLOUD_EVENT | _WRITER,
        "required": [name for name in _CLOUD_EVENT if not name.startswith("content")],
    }


def _key(spec: topics.TopicSpec) -> Json:
    return _KEYS.get(spec.key, {"type": "string", "description": spec.key})


def _opaque(name: str, spec: topics.TopicSpec, about: str, headers: Json | None) -> Json:
    """A message whose value has no JSON schema: our binary records, and dead letters."""
    return {
        "name": name,
        "summary": about,
        "contentType": "application/octet-stream",
        **({"headers": headers} if headers else {}),
        "bindings": {"kafka": {"key": _key(spec), "bindingVersion": "0.5.0"}},
    }


def _identifier(*parts: str) -> str:
    return "_".join(parts).replace(".", "_")


def _topic_configuration(spec: topics.TopicSpec) -> Json:
    config = spec.config()
    described: Json = {
        "cleanup.policy": [config["cleanup.policy"]],
        "max.message.bytes": int(config["max.message.bytes"]),
    }
    if "retention.ms" in config:
        described["retention.ms"] = int(config["retention.ms"])
    return described


def asyncapi() -> Json:
    """The AsyncAPI 3.0 document: every topic with its key, headers, messages and who sends what."""
    channels: Json = {}
    messages: Json = {}
    operations: Json = {}
    for spec in topics.TOPICS:
        channel = _identifier(spec.name)
        of_topic = [message for message in MESSAGES if message.topic == spec.name]
        described: Json = {}
        for message in of_topic:
            described[_identifier(message.topic, message.name)] = {
                "name": message.name,
                "summary": (message.record.__doc__ or "").strip().splitlines()[0],
                "contentType": "application/json",
                "headers": _headers(message),
                "payload": {"$ref": f"./{message.path}"},
                "bindings": {"kafka": {"key": _key(spec), "bindingVersion": "0.5.0"}},
            }
        if not of_topic:
            dead = spec.name.endswith(topics.dead_letter_name(""))
            headers: Json | None = (
                {"type": "object", "properties": _DEAD_LETTER, "required": sorted(_DEAD_LETTER)} if dead else None
            )
            described[_identifier(spec.name, "record")] = _opaque(f"{spec.name} record", spec, spec.about, headers)
        messages |= described
        direction = of_topic[0].direction if of_topic else "out"
        channels[channel] = {
            "address": spec.name,
            "title": spec.name,
            "description": spec.about if spec.public else f"Internal, may change: {spec.about}",
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in described},
            "bindings": {
                "kafka": {
                    "topic": spec.name,
                    "topicConfiguration": _topic_configuration(spec),
                    "bindingVersion": "0.5.0",
                }
            },
        }
        verb = "receive" if direction == "in" else "send"
        operations[f"{verb}_{channel}"] = {
            "action": verb,
            "channel": {"$ref": f"#/channels/{channel}"},
            "summary": f"{'Handles' if direction == 'in' else 'Publishes'} {spec.about}",
            "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in described],
        }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "mailstreams",
            "version": API_VERSION,
            "description": (
                "IMAP mailboxes as an ordered event log. Keys are bare UTF-8 text, partitioned by murmur2 as the Java "
                "client does (librdkafka: partitioner=murmur2_random). Every topic has the same number of partitions. "
                "A deployment may put a prefix before every address. Readers must ignore fields they do not know."
            ),
            "license": {"name": "GPL-3.0-or-later"},
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def generate() -> dict[str, str]:
    """Every generated file: path below `schemas/` → text."""
    documents: dict[str, Json] = {message.path: record_schema(message) for message in MESSAGES}
    documents[ASYNCAPI_FILE] = asyncapi()
    return {path: json.dumps(document, indent=2, ensure_ascii=False) + "\n" for path, document in documents.items()}


def differences(root: Path, files: Mapping[str, str]) -> list[str]:
    """One line per file below `root` that is missing, differs, or stands for no record."""
    found: list[str] = []
    for path, text in sorted(files.items()):
        present = root / path
        if not present.is_file():
            found.append(f"missing: {path}")
        elif present.read_text(encoding="utf-8") != text:
            found.append(f"differs: {path}")
    found.extend(f"no record: {path}" for path in _stale(root, files))
    return found


def _stale(root: Path, files: Mapping[str, str]) -> list[str]:
    present = (path.relative_to(root).as_posix() for path in root.glob(f"*/*{_SUFFIX}"))
    return sorted(path for path in present if path not in files)


def write(root: Path, files: Mapping[str, str]) -> list[str]:
    """Make the files below `root` say what the records say; returns what was different."""
    found = differences(root, files)
    for path in _stale(root, files):
        (root / path).unlink()
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m streams.contracts.schemas", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when a file differs")
    parser.add_argument("--directory", type=Path, default=_ROOT, help="where the schemas lie")
    options = parser.parse_args(arguments)
    files = generate()
    found = differences(options.directory, files) if options.check else write(options.directory, files)
    for line in found:
        sys.stdout.write(f"{line}\n")
    if found and options.check:
        sys.stdout.write("schemas differ from the records: run `make schemas` and commit the result\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
