"""The jars of Apache Kafka, resolved once by `jgo` (no Maven, no Java) and kept in the user's cache.

Invariant: a list of jars is written only when all of them are complete, and is the only thing later starts trust;
an interrupted download leaves nothing that would be taken for a jar.
"""

from __future__ import annotations

import fcntl
import json
import os
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streams.local.errors import Unavailable

KAFKA_VERSION = "4.1.1"
LOG4J_VERSION = "2.24.3"  # what this Kafka brings log4j-core in
# Resolved one after the other: the parent of log4j-core manages kafka-clients down to 3.9 when they go together.
COORDINATES = (
    (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",),
    (
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
        f"org.apache.logging.log4j:log4j-core:{LOG4J_VERSION}",
    ),
)
REQUEST_TIMEOUT_S = 60
ATTEMPTS = 3

Progress = Callable[[str], None]


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/mailstreams`, by default in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mailstreams"


def kafka_classpath(progress: Progress, *, cache: Path | None = None) -> list[Path]:
    """Every jar a broker needs, downloading (about 45 MB) what is not there. Blocks; two processes wait for another.

    Raises `Unavailable` when they cannot be had.
    """
    home = (cache or cache_directory()) / "jars"
    listing = home / f"kafka-{KAFKA_VERSION}-log4j-{LOG4J_VERSION}.json"
    if (known := _complete(listing)) is not None:
        return known
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / ".lock"):
        if (known := _complete(listing)) is not None:
            return known
        jars = _resolve(home / "repository", progress)
        sizes = {str(jar.relative_to(home)): jar.stat().st_size for jar in jars}
        draft = listing.with_suffix(".new")
        draft.write_text(json.dumps(sizes, indent=1))
        draft.replace(listing)
        return jars


def _complete(listing: Path) -> list[Path] | None:
    """The jars of a listing, or None unless each is there in full."""
    try:
        sizes: dict[str, int] = json.loads(listing.read_text())
        jars = {listing.parent / name: size for name, size in sizes.items()}
        return list(jars) if all(jar.stat().st_size == size for jar, size in jars.items()) else None
    except (OSError, ValueError):
        return None


def _resolve(repository: Path, progress: Progress) -> list[Path]:
    try:
        from jgo.maven import MavenContext
    except ImportError as error:
        raise Unavailable("Kafka: the package `jgo` is missing; install mailstreams[local]") from error
    problem: Exception | None = None
    for _ in range(ATTEMPTS):
        _drop_incomplete(repository)
        try:
            context = MavenContext(repo_cache=repository, timeout=REQUEST_TIMEOUT_S)
            progress("Kafka: looking up what it is made of")
            wanted: dict[tuple[str, str, str], Any] = {}
            for group in COORDINATES:
                asked, behind = context.resolver.resolve([context.create_dependency(name) for name in group])
                for dependency in (*asked, *behind):
                    artifact = dependency.artifact
                    wanted.setdefault((artifact.groupId, artifact.artifactId, artifact.classifier), artifact)
            jars = []
            for number, artifact in enumerate(wanted.values(), start=1):
                progress(f"Kafka: downloading jar {number} of {len(wanted)}: {artifact.filename}")
                jars.append(Path(artifact.resolve()))
            if all(zipfile.is_zipfile(jar) for jar in jars):
                return jars
            problem = RuntimeError("an incomplete jar")
        except Exception as error:  # jgo raises whatever its HTTP client and its parsers do
            problem = error
    raise Unavailable(
        f"Kafka: its jars cannot be downloaded ({type(problem).__name__}: {problem}); "
        "with brokers of your own set KAFKA_BOOTSTRAP_SERVERS"
    ) from problem


def _drop_incomplete(repository: Path) -> None:
    """Remove what an interrupted download left behind: jgo takes any file that exists for complete."""
    for path in repository.rglob("*.jar"):
        if not zipfile.is_zipfile(path):
            path.unlink()
    for path in repository.rglob("*.pom"):
        try:
            ElementTree.parse(path)  # noqa: S314 - what the jars' own publisher wrote, only looked at for completeness
        except ElementTree.ParseError:
            path.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
