"""How the app is put together: settings that matter, credentials, and nothing that connects or needs an event loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from streams.assembly import changelog_topics, consumer_groups, create_app, faust_credentials, faust_settings
from streams.contracts.topics import HEAT, JOBS, STATE_CHANGED, USER_ACCOUNTS, USER_ACTIVE
from streams.errors import ConfigurationError
from streams.settings import Settings, load_settings

ROOT = Path(__file__).parents[3]


def settings(tmp_path: Path, **changes: object) -> Settings:
    return load_settings(DATA_DIR=tmp_path, KAFKA_TOPIC_PREFIX="p.", **changes)


def test_faust_settings_that_matter(tmp_path: Path) -> None:
    conf = create_app(settings(tmp_path, KAFKA_SESSION_TIMEOUT_S=10, PARTITIONS=16)).conf
    assert conf.id == "p.mailstreams"
    assert conf.broker_session_timeout == 10.0
    assert conf.topic_partitions == 16
    assert conf.table_standby_replicas == 1
    assert str(conf.store).startswith("rocksdb:")
    assert conf.stream_wait_empty is False
    assert conf.topic_disable_leader is True
    assert "AT_LEAST_ONCE" in repr(conf.processing_guarantee), "exactly_once is broken"
    assert conf.consumer_group_instance_id is None, "static membership is broken"
    assert conf.version == 1, "another version is another group: two groups would own everything"
    assert conf.consumer_auto_offset_reset == "earliest"


def test_the_web_server_is_off_unless_asked_for_and_never_shows_tables(tmp_path: Path) -> None:
    assert create_app(settings(tmp_path)).conf.web_enabled is False
    conf = create_app(settings(tmp_path, WEB_PORT=6066)).conf
    assert (conf.web_enabled, conf.web_port, conf.web_bind) == (True, 6066, "127.0.0.1")
    assert conf.web_tables_enabled is False


def test_groups_and_changelogs_have_full_names(tmp_path: Path) -> None:
    app = create_app(settings(tmp_path))
    assert changelog_topics(app) == ["p.mailstreams-accounts-changelog", "p.mailstreams-users-changelog"]
    groups = consumer_groups(app)
    assert groups["p.mailstreams"] == sorted(f"p.{name}" for name in (STATE_CHANGED, USER_ACTIVE, HEAT, USER_ACCOUNTS))
    assert ["p." + JOBS] in groups.values()


def test_workers_run_the_projector_unless_told_otherwise(tmp_path: Path) -> None:
    def names(app: object) -> set[str]:
        return {service.name for service in app.parts.beside}  # type: ignore[attr-defined]

    assert "projector" in names(create_app(settings(tmp_path)))
    assert "projector" not in names(create_app(settings(tmp_path, PROJECTION="off")))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_sasl_credentials(tmp_path: Path, protocol: str, mechanism: str) -> None:
    found = faust_credentials(
        settings(
            tmp_path,
            KAFKA_SECURITY_PROTOCOL=protocol,
            KAFKA_SASL_MECHANISM=mechanism,
            KAFKA_SASL_USERNAME="u",
            KAFKA_SASL_PASSWORD="canary-password",
        )
    )
    assert (found.protocol.value, found.mechanism.value) == (protocol, mechanism)
    assert (found.username, found.password) == ("u", "canary-password")
    assert (found.ssl_context is not None) == (protocol == "SASL_SSL")
    assert "canary" not in repr(found)


def test_tls_without_sasl(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    found = faust_credentials(settings(tmp_path, KAFKA_SECURITY_PROTOCOL="SSL", KAFKA_SSL_CA_FILE=ca_file))
    assert found.protocol.value == "SSL"
    assert found.context.get_ca_certs()


def test_plain_connections_have_no_credentials(tmp_path: Path) -> None:
    assert faust_credentials(settings(tmp_path)) is None
    assert "broker_credentials" not in faust_settings(settings(tmp_path))


def test_w1_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="KAFKA_SSL"):
        faust_credentials(settings(tmp_path, KAFKA_SECURITY_PROTOCOL="SSL", KAFKA_SSL_CA_FILE=tmp_path / "none.pem"))


def test_pure_modules_do_not_import_faust() -> None:
    pure = "streams, streams.contracts.mailbox, streams.domain, streams.settings, streams.errors, streams.imap.session"
    code = f"import sys, {pure}; print([name for name in ('faust', 'mode') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_no_module_shadows_the_app() -> None:
    assert not (ROOT / "streams" / "app.py").exists()
    assert not (ROOT / "streams" / "app").exists()


def test_streams_app_is_the_app_outside_of_the_faust_program() -> None:
    code = "import streams; print(type(streams.app).__name__, streams.app is streams.app)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "StreamsApp True\n"
