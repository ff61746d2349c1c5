"""One settings object, read once at start, handed down. Names are environment variables (or lines of an env file).

The whole is validated before anything connects; every problem is listed at once and no value of a secret is shown.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from streams.errors import ConfigurationError

SAFETY_MARGIN_S = 60.0
"""Added to the longest an execution may take before the consumer would be given up (row W2)."""


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


CommaList = Annotated[list[str], NoDecode, BeforeValidator(_split)]
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@,\[\]]+)(?::([0-9]{1,5}))?")
"""A broker: a name, an IPv4 or a bracketed IPv6 address, with a port or without."""

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """Every setting of the product. Durations are seconds unless the name says otherwise."""

    model_config = SettingsConfigDict(
        case_sensitive=False,
        extra="ignore",
        env_file_encoding="utf-8",
        # Compose files and charts write NAME= for what is not set.
        env_ignore_empty=True,
        hide_input_in_errors=True,
        # No clock and no timer can be told to wait for `inf`.
        allow_inf_nan=False,
        frozen=True,
    )

    # --- Kafka -----------------------------------------------------------------------------------------------------
    KAFKA_BOOTSTRAP_SERVERS: str = Field("127.0.0.1:9092", description="Brokers as host:port, separated by commas.")
    KAFKA_SECURITY_PROTOCOL: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How brokers are spoken to."
    )
    KAFKA_SASL_MECHANISM: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "PLAIN", description="SASL mechanism, with a SASL protocol."
    )
    KAFKA_SASL_USERNAME: str | None = Field(None, description="SASL user name.")
    KAFKA_SASL_PASSWORD: SecretStr | None = Field(None, description="SASL password.")
    KAFKA_SSL_CA_FILE: Path | None = Field(None, description="CA bundle for brokers; the system's when unset.")
    KAFKA_SSL_CERT_FILE: Path | None = Field(None, description="Client certificate for brokers.")
    KAFKA_SSL_KEY_FILE: Path | None = Field(None, description="Key of the client certificate.")
    KAFKA_TOPIC_PREFIX: str = Field("", pattern=r"^[a-zA-Z0-9._-]*$", description="Put before every topic's name.")
    KAFKA_REPLICATION_FACTOR: Count = Field(1, description="Replication of topics we create; 3 in production.")
    PARTITIONS: Annotated[int, Field(ge=1, le=1024)] = Field(
        64, description="Partitions of every topic. Final once there is data."
    )
    CHANGES_RETENTION_MS: int = Field(-1, ge=-1, description="How long mailbox.changes is kept; -1 for good.")
    KAFKA_GROUP: str = Field(
        "mailstreams", pattern=r"^[a-zA-Z0-9._-]+$", description="Name of the fleet (consumer group, ids)."
    )
    KAFKA_SESSION_TIMEOUT_S: Annotated[float, Field(ge=1, le=300)] = Field(
        10.0, description="A worker silent for this long is taken for dead."
    )
    KAFKA_TRANSACTION_TIMEOUT_S: Annotated[float, Field(ge=1, le=900)] = Field(
        20.0, description="An open transaction is aborted by the broker after this long."
    )

    # --- PostgreSQL ------------------------------------------------------------------------------------------------
    POSTGRES_DSN: SecretStr = Field(
        SecretStr("postgresql://postgres@127.0.0.1:5432/mailstreams"),
        description="Database of accounts and of the projection.",
    )
    POSTGRES_POOL_SIZE: Count = Field(5, description="Connections a process keeps at most.")
    PROJECTION: Literal["worker", "off"] = Field("worker", description="Whether workers run the projector.")
    PROJECTION_BATCH: Count = Field(2000, description="Events per projection transaction, at most.")

    # --- Secrets ---------------------------------------------------------------------------------------------------
    ENCRYPTION_KEYS: SecretStr | None = Field(
        None,
        description="Fernet keys, separated by commas; the first encrypts, all decrypt. "
        "`faust -A streams keys generate` makes one.",
    )
    ENCRYPTION_KEYS_FILE: Path | None = Field(None, description="File with the same, a key per line.")
    CREDENTIALS_DIR: Path | None = Field(None, description="Directory of mounted secrets that accounts may refer to.")

    # --- Accounts, ownership, tiers --------------------------------------------------------------------------------
    MAX_ACCOUNTS_PER_WORKER: Count = Field(5000, description="Runners a worker runs at most; what is over is unserved.")
    HOT_BUDGET_PER_WORKER: Annotated[int, Field(ge=0)] = Field(
        1000, description="Hot accounts without a session, at most."
    )
    POLL_WARM: Positive = Field(300.0, description="Seconds between polls of warm accounts.")
    POLL_COLD: Positive = Field(3600.0, description="Seconds between polls of cold accounts.")
    TIER_SESSION_GRACE_MIN: Positive = Field(
        15.0, description="Minutes an account stays hot after its user was active."
    )
    TIER_HOT_ACTIVITY_H: Positive = Field(24.0, description="Hours: mail younger than this makes an account hot.")
    TIER_COLD_AFTER_D: Positive = Field(14.0, description="Days: mail older than this makes an account cold.")
    TIER_EVALUATION_S: Positive = Field(120.0, description="Seconds between evaluations of tiers.")
    RECONCILE_S: Positive = Field(300.0, description="Seconds between comparisons with PostgreSQL.")
    RECONCILE_PAGE: Count = Field(1000, description="Rows read per page of a comparison.")

    # --- Mail ------------------------------------------------------------------------------------------------------
    CONNECTIONS_PER_ACCOUNT: Annotated[int, Field(ge=1, le=10)] = Field(
        3, description="IMAP connections of an account, at most."
    )
    HOST_LOGINS_PER_S: Positive = Field(
        10.0, description="Logins per second at one mail host, of all workers together."
    )
    HOST_BACKFILL_MESSAGES_PER_S: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="History read from one mail host, of all workers together, in turns by account; 0 is unlimited.",
    )
    HOST_BACKFILL_BYTES_PER_S: Annotated[float, Field(ge=0)] = Field(
        0.0, description="The same in bytes received; 0 is unlimited."
    )
    HOST_CONNECTIONS: Count = Field(10_000, description="Connections of one worker to one mail host, at most.")
    IMAP_COMMAND_TIMEOUT_S: Positive = Field(
        60.0, description="A command without an answer for this long ends the connection."
    )
    IMAP_CONNECT_TIMEOUT_S: Positive = Field(
        20.0, description="Time for address, TCP, TLS, greeting and capabilities, all together."
    )
    IMAP_IDLE_RENEW_S: Annotated[float, Field(gt=0, le=1740)] = Field(
        240.0, description="IDLE is renewed this often (RFC 2177: under 29 min)."
    )
    IMAP_NOTIFY: bool = Field(True, description="Watch all folders of hot accounts where the server offers NOTIFY.")
    IMAP_COMPRESS: bool = Field(False, description="COMPRESS=DEFLATE where offered; pays on slow links.")
    IMAP_CA_FILE: Path | None = Field(None, description="CA bundle for mail servers; the system's when unset.")
    IMAP_ALLOW_PRIVATE: bool = Field(False, description="Allow mail hosts at private and loopback addresses.")
    IMAP_ALLOW_PLAINTEXT: bool = Field(False, description="Allow accounts without TLS.")
    IMAP_MAX_LITERAL_BYTES: Count = Field(67_108_864, description="Largest literal a server may send.")
    IMAP_MAX_LINE_BYTES: Count = Field(16_777_216, description="Longest line a server may send.")
    SYNC_SINCE: str = Field(
        "all", pattern=r"^(all|[1-9][0-9]{0,4}d?)$", description="History to fetch: `all` or days, e.g. `90d`."
    )
    FETCH_CHUNK: Annotated[int, Field(ge=1, le=500)] = Field(500, description="Messages per transaction.")
    FETCH_WINDOW: Annotated[int, Field(ge=1, le=20_000)] = Field(2000, description="Messages per FETCH command.")
    FETCH_STRUCTURE: bool = Field(True, description="Ask for BODYSTRUCTURE, so that attachments are known.")
    PREVIEW_BYTES: Annotated[int, Field(ge=0, le=16_384)] = Field(
        0, description="Bytes of text preview per message; 0 is off."
    )
    BACKFILL_MESSAGES_PER_S: Annotated[float, Field(ge=0)] = Field(0.0, description="Per account; 0 is unlimited.")
    BACKFILL_BYTES_PER_S: Annotated[float, Field(ge=0)] = Field(0.0, description="Per account; 0 is unlimited.")
    FULL_RECONCILE_S: Positive = Field(3600.0, description="Each mailbox is compared in full this often.")
    FLAG_WINDOW: Count = Field(500, description="Without CONDSTORE: newest messages whose flags are read each poll.")
    FLAG_SCAN_S: Positive = Field(3600.0, description="Without CONDSTORE: every flag is read once in this time.")
    CREDENTIALS_RETRIES: Count = Field(3, description="Refusals in a row before an account is put to `error`.")
    BACKOFF_MIN_S: Positive = Field(2.0, description="First wait after a failure; doubles, with full jitter.")
    BACKOFF_MAX_S: Positive = Field(900.0, description="Longest wait after failures.")
    OAUTH_PROVIDERS_FILE: Path | None = Field(None, description="JSON file of OAuth2 providers.")

    # --- Process ---------------------------------------------------------------------------------------------------
    WORKER_MODE: Literal["worker", "job"] = Field("worker", description="`job` is the one-shot mode for jobs.")
    WORKER_NAME: str = Field(
        default_factory=socket.gethostname,
        max_length=255,
        pattern=r"^[^\x00-\x1f\x7f]+$",  # it is part of Kafka's client ids, too
        description="Name in logs, status and headers.",
    )
    DATA_DIR: Path = Field(Path(".mailstreams"), description="Local state; each worker on a machine needs its own.")
    WORKER_CONCURRENCY: Count = Field(16, description="Commands executed at once.")
    COMMANDS_AHEAD: Count = Field(1024, description="Commands taken beyond the lowest unfinished one.")
    COMMANDS_REMEMBERED: Count = Field(
        20_000, description="Concluded commands remembered per partition, so that one sent twice is run once."
    )
    WORKER_HANDLERS: CommaList = Field(
        default_factory=list, description="Modules with handlers of one's own for jobs, as `package.module:attribute`."
    )
    WORKER_EXTENSIONS: CommaList = Field(
        default_factory=list,
        description="Functions of one's own, as `package.module:function`, that add hooks, probes and services.",
    )
    WORKER_TASK_TIMEOUT_S: Positive = Field(900.0, description="Longest a command may take per attempt.")
    WORKER_TASK_OVERRUN_GRACE_S: Positive = Field(
        30.0, description="Overrun after which a task is reported by the probes."
    )
    WORKER_RETRY_LIMIT: Annotated[int, Field(ge=0, le=100)] = Field(5, description="Retries after the first attempt.")
    WORKER_RETRY_BACKOFF_S: Positive = Field(1.0, description="First backoff between attempts; doubles.")
    WORKER_RETRY_BACKOFF_MAX_S: Positive = Field(60.0, description="Longest backoff between attempts.")
    WORKER_CONSUMER_TIMEOUT_S: Positive = Field(1800.0, description="A delivery may stay unacknowledged this long.")
    WORKER_BROKER_RECONNECT_INTERVAL_S: Positive = Field(
        3.0, description="Between attempts to reach a broker at start."
    )
    WORKER_SHUTDOWN_GRACE_S: Annotated[float, Field(ge=0)] = Field(
        20.0, description="Time to finish after the first signal."
    )
    WORKER_SHUTDOWN_HOOKS_TIMEOUT_S: Positive = Field(5.0, description="Budget of all shutdown hooks together.")
    WORKER_JOB_MAX_TASKS: Count = Field(1, description="Job mode: deliveries taken, at most.")
    WORKER_JOB_IDLE_TIMEOUT_S: Positive = Field(60.0, description="Job mode: ends when nothing arrives for this long.")
    WORKER_JOB_CONNECT_TIMEOUT_S: Positive = Field(60.0, description="Job mode: ends with 1 when no broker answers.")
    PROBE_HOST: str = Field("127.0.0.1", description="Address of the probes.")
    PROBE_PORT: Annotated[int, Field(ge=0, le=65535)] = Field(
        8080, description="Port of the probes; 0 picks a free one."
    )
    WORKER_PROBE_TIMEOUT_S: Positive = Field(2.0, description="Time limit of each custom probe.")
    WEB_HOST: str = Field("127.0.0.1", description="Address of Faust's web server.")
    WEB_PORT: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Port of Faust's web server; 0 switches it off."
    )
    LOG_FORMAT: Literal["auto", "json", "console"] = Field(
        "auto", description="`auto`: console at a terminal, else JSON lines."
    )
    LOG_LEVEL: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level written.")
    EXPORT_DIR: str | None = Field(None, description="Directory or fsspec URL below which exports may write.")

    @field_validator("POSTGRES_DSN")
    @classmethod
    def _database(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("it does not begin with postgresql://")
        return value

    @field_validator("KAFKA_BOOTSTRAP_SERVERS")
    @classmethod
    def _brokers(cls, value: str) -> str:
        addresses = [part.strip() for part in value.split(",") if part.strip()]
        for number, address in enumerate(addresses, 1):
            found = _ADDRESS.fullmatch(address)
            if found is None or int(found[2] or 9092) not in range(1, 65536):
                raise ValueError(f"broker {number} is no host:port")
        if not addresses:
            raise ValueError("no broker is named")
        return ",".join(addresses)

    @field_validator("SYNC_SINCE")
    @classmethod
    def _since(cls, value: str) -> str:
        return value.removesuffix("d")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        problems: list[str] = []
        total = self.WORKER_TASK_TIMEOUT_S + self.WORKER_RETRY_BACKOFF_MAX_S + SAFETY_MARGIN_S
        if total >= self.WORKER_CONSUMER_TIMEOUT_S:
            problems.append(
                f"WORKER_TASK_TIMEOUT_S {self.WORKER_TASK_TIMEOUT_S:g} + WORKER_RETRY_BACKOFF_MAX_S "
                f"{self.WORKER_RETRY_BACKOFF_MAX_S:g} + {SAFETY_MARGIN_S:g} safety = {total:g} must be under "
                f"WORKER_CONSUMER_TIMEOUT_S {self.WORKER_CONSUMER_TIMEOUT_S:g}"
            )
        if self.POLL_COLD < self.POLL_WARM:
            problems.append(f"POLL_COLD {self.POLL_COLD:g} must not be under POLL_WARM {self.POLL_WARM:g}")
        if self.TIER_COLD_AFTER_D * 24 < self.TIER_HOT_ACTIVITY_H:
            problems.append("TIER_COLD_AFTER_D must not be shorter than TIER_HOT_ACTIVITY_H")
        if self.BACKOFF_MAX_S < self.BACKOFF_MIN_S:
            problems.append("BACKOFF_MAX_S must not be under BACKOFF_MIN_S")
        if self.FETCH_WINDOW < self.FETCH_CHUNK:
            problems.append("FETCH_WINDOW must not be under FETCH_CHUNK")
        if self.KAFKA_SECURITY_PROTOCOL.startswith("SASL") and not (
            self.KAFKA_SASL_USERNAME and self.KAFKA_SASL_PASSWORD
        ):
            problems.append(
                f"KAFKA_SECURITY_PROTOCOL {self.KAFKA_SECURITY_PROTOCOL} needs KAFKA_SASL_USERNAME and "
                "KAFKA_SASL_PASSWORD"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    # --- what is derived -------------------------------------------------------------------------------------------
    def topic(self, name: str) -> str:
        """Full name of a topic: prefix and name."""
        return f"{self.KAFKA_TOPIC_PREFIX}{name}"

    @property
    def sync_since_days(self) -> int | None:
        """Days of history to fetch; None is all of it."""
        return None if self.SYNC_SINCE == "all" else int(self.SYNC_SINCE)

    def transactional_id(self, lane: str, partition: int) -> str:
        """Id by which Kafka fences the older holder of a partition (`changes-p`, `jobs-p`)."""
        return f"{self.KAFKA_TOPIC_PREFIX}{self.KAFKA_GROUP}.{lane}-{partition}"

    def kafka_client(self) -> dict[str, Any]:
        """Keyword arguments that every aiokafka client of ours takes."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.KAFKA_BOOTSTRAP_SERVERS.split(","),
            "security_protocol": self.KAFKA_SECURITY_PROTOCOL,
            "ssl_context": self.kafka_ssl_context(),
        }
        if self.KAFKA_SECURITY_PROTOCOL.startswith("SASL"):
            options["sasl_mechanism"] = self.KAFKA_SASL_MECHANISM
            options["sasl_plain_username"] = self.KAFKA_SASL_USERNAME
            options["sasl_plain_password"] = (
                self.KAFKA_SASL_PASSWORD.get_secret_value() if self.KAFKA_SASL_PASSWORD else None
            )
        return options

    def kafka_ssl_context(self) -> ssl.SSLContext | None:
        """TLS context for brokers, when the protocol asks for TLS. Raises `ConfigurationError` for unusable files."""
        if "SSL" not in self.KAFKA_SECURITY_PROTOCOL:
            return None
        try:
            context = ssl.create_default_context(cafile=str(self.KAFKA_SSL_CA_FILE) if self.KAFKA_SSL_CA_FILE else None)
            if self.KAFKA_SSL_CERT_FILE:
                context.load_cert_chain(self.KAFKA_SSL_CERT_FILE, self.KAFKA_SSL_KEY_FILE)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"KAFKA_SSL_*: certificate files cannot be used: {error}") from None
        return context


def load_settings(**overrides: Any) -> Settings:
    """Read environment and env file (`MAILSTREAMS_ENV_FILE`, default `.env`).

    Raises `ConfigurationError` naming all problems.
    """
    named = os.environ.get("MAILSTREAMS_ENV_FILE")
    env_file = named or ".env"
    if named and not Path(named).exists():
        raise ConfigurationError(f"MAILSTREAMS_ENV_FILE: there is no {named}")
    try:
        return Settings(_env_file=env_file, **overrides)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"the settings in {env_file} cannot be read: {reason}") from None
    except ValidationError as error:
        problems = [
            ": ".join(part for part in (".".join(str(x) for x in item["loc"]), _plain(item["msg"])) if part)
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise ConfigurationError("; ".join(problems)) from None


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ")
