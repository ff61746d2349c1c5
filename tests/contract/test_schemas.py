"""The public contract: generated files are current, examples mean what they say, readers and writers agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.contracts import schemas, topics
from streams.contracts.codec import Decoder, cloud_event_headers, dead_letter_headers, encode
from streams.contracts.commands import AnyCommandEvent
from streams.contracts.mailbox import AnyChange
from streams.errors import PoisonRecord

ROOT = Path(__file__).resolve().parents[2] / "schemas"
BY_NAME = {(message.topic, message.name): message for message in schemas.MESSAGES}


def examples(kind: str) -> Iterator[Any]:
    for message in schemas.MESSAGES:
        for path in sorted((ROOT / message.topic / "examples" / message.name / kind).glob("*.json")):
            yield pytest.param(message, path, id=f"{message.topic}:{message.name}:{path.stem}")


def validator(message: schemas.Message) -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / message.path).read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema)


def reader(message: schemas.Message) -> Decoder[msgspec.Struct]:
    """Decodes as consumers of the topic do: the kinds of one topic are told apart by `type`."""
    kinds = {topics.CHANGES: AnyChange, topics.COMMAND_EVENTS: AnyCommandEvent}
    return Decoder(kinds.get(message.topic, message.record))


def test_generated_files_are_current() -> None:
    assert schemas.differences(ROOT, schemas.generate()) == [], "run `make schemas`"


def test_drift_is_seen_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schemas.write(tmp_path, schemas.generate())
    assert schemas.main(["--check", "--directory", str(tmp_path)]) == 0
    (tmp_path / schemas.MESSAGES[0].path).write_text("{}\n")
    (tmp_path / schemas.MESSAGES[1].path).unlink()
    (tmp_path / "user.active" / "retired.schema.json").write_text("{}\n")
    assert schemas.main(["--check", "--directory", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"differs: {schemas.MESSAGES[0].path}" in out
    assert f"missing: {schemas.MESSAGES[1].path}" in out
    assert "no record: user.active/retired.schema.json" in out
    assert schemas.main(["--directory", str(tmp_path)]) == 0
    assert schemas.main(["--check", "--directory", str(tmp_path)]) == 0


@pytest.mark.parametrize("message", schemas.MESSAGES, ids=lambda m: f"{m.topic}:{m.name}")
def test_each_record_has_a_sound_schema_and_both_kinds_of_example(message: schemas.Message) -> None:
    jsonschema.Draft202012Validator.check_schema(schemas.record_schema(message))
    folder = ROOT / message.topic / "examples" / message.name
    assert list(folder.glob("valid/*.json")), "no valid example"
    assert list(folder.glob("invalid/*.json")), "no invalid example"


def test_no_example_is_left_without_a_record() -> None:
    folders = {(path.parts[-3], path.name) for path in ROOT.glob("*/examples/*")}
    assert folders == set(BY_NAME)


@pytest.mark.parametrize(("message", "path"), list(examples("valid")))
def test_valid_examples_are_accepted_by_schema_and_reader(message: schemas.Message, path: Path) -> None:
    value = path.read_bytes()
    check = validator(message)
    check.validate(json.loads(value))
    record = reader(message)(value)
    check.validate(json.loads(encode(record)))
    assert reader(message)(encode(record)) == record


@pytest.mark.parametrize(("message", "path"), list(examples("invalid")))
def test_w13_invalid_examples_are_refused_by_schema_and_reader(message: schemas.Message, path: Path) -> None:
    value = path.read_bytes()
    with pytest.raises(jsonschema.ValidationError):
        validator(message).validate(json.loads(value))
    with pytest.raises(PoisonRecord) as caught:
        reader(message)(value)
    assert caught.value.code == "schema"


def _values(node: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a field's type, within its bounds."""
    match node:
        case msgspec.inspect.Metadata(type=inner):
            return _values(inner)
        case msgspec.inspect.StrType(pattern=None):
            return st.text(st.characters(codec="utf-8"), min_size=node.min_length or 0, max_size=node.max_length or 20)
        case msgspec.inspect.StrType(pattern=pattern) if pattern is not None and "9a-f" in pattern:
            return st.uuids().map(str)
        case msgspec.inspect.StrType(pattern=pattern) if pattern is not None:
            return st.from_regex(pattern.replace("$", r"\Z"))
        case msgspec.inspect.IntType():
            low, high = (-(2**63) if node.ge is None else node.ge), (2**63 - 1 if node.le is None else node.le)
            return st.integers(low, high)
        case msgspec.inspect.FloatType():
            return st.floats(0.0 if node.ge is None else node.ge, 1.0 if node.le is None else node.le)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.DateTimeType():
            return st.datetimes(timezones=st.just(UTC))
        case msgspec.inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([_values(item) for item in types])
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=3).map(tuple)
        case msgspec.inspect.DictType(value_type=value):
            return st.dictionaries(st.text(max_size=8), _values(value), max_size=3)
        case msgspec.inspect.AnyType():
            return st.one_of(st.none(), st.booleans(), st.integers(-1000, 1000), st.text(max_size=8))
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _values(field.type) for field in fields})
        case _:
            raise AssertionError(f"no strategy for {node}")


@pytest.mark.parametrize("message", schemas.MESSAGES, ids=lambda m: f"{m.topic}:{m.name}")
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_property_whatever_we_write_satisfies_the_schema_and_reads_back(
    message: schemas.Message, data: st.DataObject
) -> None:
    record = data.draw(_values(msgspec.inspect.type_info(message.record)))
    value = encode(record)
    validator(message).validate(json.loads(value))
    assert Decoder[msgspec.Struct](message.record, max_bytes=len(value))(value) == record


def asyncapi() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / schemas.ASYNCAPI_FILE).read_text(encoding="utf-8"))
    return document


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_asyncapi_names_every_topic_and_all_its_references_lead_somewhere() -> None:
    document = asyncapi()
    assert document["asyncapi"] == "3.0.0"
    assert [channel["address"] for channel in document["channels"].values()] == [t.name for t in topics.TOPICS]
    for reference in references(document):
        if reference.startswith("#/"):
            node = document
            for part in reference[2:].split("/"):
                node = node[part]
        else:
            assert (ROOT / reference).is_file()


def test_asyncapi_describes_the_headers_that_are_sent() -> None:
    document = asyncapi()
    messages = document["components"]["messages"]
    moment = datetime(2026, 11, 30, 9, 15, tzinfo=UTC)
    sent = dict(cloud_event_headers(event_id="a/1", event_type="message.added", source="worker-1", at=moment))
    described = messages["mailbox_changes_message_added"]["headers"]
    headers = {name: value.decode() for name, value in sent.items()} | {"writer": "worker-1/3"}
    jsonschema.Draft202012Validator({**described, "additionalProperties": False}).validate(headers)

    dead = dead_letter_headers(topic="user.active", partition=3, offset=9, reason="schema", error="no user_id")
    described = messages["user_active_dlq_record"]["headers"]
    letter = {name: value.decode() for name, value in dead}
    jsonschema.Draft202012Validator({**described, "additionalProperties": False}).validate(letter)


def test_every_operation_is_of_the_right_side() -> None:
    operations = asyncapi()["operations"]
    received = {name for name, operation in operations.items() if operation["action"] == "receive"}
    assert received == {
        "receive_account_state_changed",
        "receive_user_active",
        "receive_sync_commands",
        "receive_sync_jobs",
    }
