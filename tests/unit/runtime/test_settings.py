"""Settings: everything wrong at once, nothing secret shown, and a page that is true (rows W1, W2, S19)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams.errors import ConfigurationError
from streams.runtime.settings_reference import page
from streams.settings import Settings, load_settings

DOCUMENT = Path(__file__).parents[3] / "docs" / "settings.md"

S19 = (
    "MAX_ACCOUNTS_PER_WORKER",
    "HOT_BUDGET_PER_WORKER",
    "POLL_WARM",
    "POLL_COLD",
    "TIER_SESSION_GRACE_MIN",
    "TIER_HOT_ACTIVITY_H",
    "TIER_COLD_AFTER_D",
    "WORKER_CONSUMER_TIMEOUT_S",
    "WORKER_BROKER_RECONNECT_INTERVAL_S",
    "WORKER_SHUTDOWN_GRACE_S",
    "WORKER_SHUTDOWN_HOOKS_TIMEOUT_S",
    "WORKER_JOB_MAX_TASKS",
    "WORKER_JOB_IDLE_TIMEOUT_S",
    "WORKER_JOB_CONNECT_TIMEOUT_S",
    "WORKER_TASK_OVERRUN_GRACE_S",
    "WORKER_PROBE_TIMEOUT_S",
    "WORKER_MODE",
)


def test_the_page_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == page(), "run `python -m streams.runtime.settings_reference`"


def test_s19_every_setting_has_a_row_with_a_meaning() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", page(), re.MULTILINE))
    assert set(rows) == set(Settings.model_fields)
    assert all(len(meaning) > 10 for meaning in rows.values())
    assert set(S19) <= set(rows)


def test_w1_every_problem_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(PARTITIONS=0, POLL_WARM=-1, LOG_FORMAT="xml")
    message = str(caught.value)
    assert all(name in message for name in ("PARTITIONS", "POLL_WARM", "LOG_FORMAT"))


@pytest.mark.parametrize(
    "address", ["a:b", "a:1,b:x", "a:0", "a:70000", "::1:9092", "[::1", "kafka://a:1", "a b:1", "u:p@a:1", " , "]
)
def test_w1_what_is_no_address_of_a_broker_is_a_wrong_setting(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"KAFKA_BOOTSTRAP_SERVERS: (broker [12] is no|no broker)"):
        load_settings(KAFKA_BOOTSTRAP_SERVERS=address)


def test_addresses_of_brokers_may_have_spaces_between_and_leave_the_port_out() -> None:
    settings = load_settings(KAFKA_BOOTSTRAP_SERVERS="a:1, b_c.example ,[::1]:9092,127.0.0.1:2,")
    assert settings.kafka_client()["bootstrap_servers"] == ["a:1", "b_c.example", "[::1]:9092", "127.0.0.1:2"]


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_w1_a_duration_without_an_end_is_a_wrong_setting(text: str) -> None:
    with pytest.raises(ConfigurationError, match="WORKER_SHUTDOWN_GRACE_S"):
        load_settings(WORKER_SHUTDOWN_GRACE_S=text)


@pytest.mark.parametrize("name", ["", "a\nb", "\udcff", "x" * 256])
def test_w1_a_name_that_no_client_can_have_is_a_wrong_setting(name: str) -> None:
    with pytest.raises(ConfigurationError, match="WORKER_NAME"):
        load_settings(WORKER_NAME=name)


def test_w1_an_env_file_that_cannot_be_read_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings"
    file.write_bytes(b"POSTGRES_DSN=secret-\xff\n")
    monkeypatch.setenv("MAILSTREAMS_ENV_FILE", str(file))
    with pytest.raises(ConfigurationError, match="settings cannot be read: it is not UTF-8") as caught:
        load_settings()
    assert "secret-" not in str(caught.value)


def test_w1_an_env_file_that_is_named_and_not_there_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAILSTREAMS_ENV_FILE", "/nonexistent")
    with pytest.raises(ConfigurationError, match="there is no /nonexistent"):
        load_settings()


def test_w1_a_database_address_that_is_none_is_said_before_anything_connects() -> None:
    with pytest.raises(ConfigurationError, match="POSTGRES_DSN: it does not begin with postgresql://") as caught:
        load_settings(POSTGRES_DSN="canary@localhost/mail")
    assert "canary" not in str(caught.value)


def test_w1_rules_across_settings_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(POLL_WARM=100, POLL_COLD=50, BACKOFF_MIN_S=10, BACKOFF_MAX_S=5)
    assert "POLL_COLD 50 must not be under POLL_WARM 100" in str(caught.value)
    assert "BACKOFF_MAX_S" in str(caught.value)


def test_w2_the_sum_is_spelled_out() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(WORKER_TASK_TIMEOUT_S=900, WORKER_RETRY_BACKOFF_MAX_S=60, WORKER_CONSUMER_TIMEOUT_S=1000)
    assert str(caught.value) == (
        "WORKER_TASK_TIMEOUT_S 900 + WORKER_RETRY_BACKOFF_MAX_S 60 + 60 safety = 1020 must be under "
        "WORKER_CONSUMER_TIMEOUT_S 1000"
    )


def test_w2_the_limit_itself_is_too_much() -> None:
    with pytest.raises(ConfigurationError):
        load_settings(WORKER_TASK_TIMEOUT_S=880, WORKER_RETRY_BACKOFF_MAX_S=60, WORKER_CONSUMER_TIMEOUT_S=1000)
    load_settings(WORKER_TASK_TIMEOUT_S=879, WORKER_RETRY_BACKOFF_MAX_S=60, WORKER_CONSUMER_TIMEOUT_S=1000)


def test_no_secret_in_repr_or_error() -> None:
    secrets = {"POSTGRES_DSN": "postgresql://u:canary-1@h/d", "KAFKA_SASL_PASSWORD": "canary-2"}
    settings = load_settings(**secrets, ENCRYPTION_KEYS="canary-3")
    assert "canary" not in repr(settings)
    assert "canary" not in str(settings)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**secrets, PARTITIONS=0, KAFKA_TOPIC_PREFIX="not/allowed")
    assert "canary" not in str(caught.value)


def test_an_empty_variable_is_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files and charts write `NAME=` for what has no value: the default counts, whatever its type."""
    monkeypatch.setenv("MAILSTREAMS_ENV_FILE", "/dev/null")
    for name in ("PARTITIONS", "POLL_WARM", "KAFKA_SASL_USERNAME", "IMAP_CA_FILE", "WORKER_MODE", "ENCRYPTION_KEYS"):
        monkeypatch.setenv(name, "")
    settings = load_settings()
    for name in ("PARTITIONS", "POLL_WARM", "KAFKA_SASL_USERNAME", "IMAP_CA_FILE", "WORKER_MODE", "ENCRYPTION_KEYS"):
        assert getattr(settings, name) == Settings.model_fields[name].get_default(call_default_factory=True), name
