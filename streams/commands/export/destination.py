"""Where an export is written: one directory below EXPORT_DIR, on a file system or an object store (fsspec).

Blocking; called in threads. Invariants: every path is below the root after links are resolved; a file appears whole or
not at all (a file system gets a temporary name first, object stores are atomic by themselves). Whatever goes wrong is a
`DestinationRefused` or a `DestinationFailed`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import fsspec

from streams.commands.export.failures import destination_errors, judged
from streams.errors import ConfigurationError

_SEGMENT: Final = re.compile(r"[^/\\\0]{1,255}", re.DOTALL)


class Destination:
    """One directory. Names are given as segments, never as paths."""

    def __init__(self, filesystem: Any, root: str, segments: Sequence[str]) -> None:
        self._fs = filesystem
        self._local = "file" in _protocols(filesystem)
        self._root = root.rstrip("/") or "/"
        self._base = self._join(self._root, segments)

    @classmethod
    def below(cls, export_dir: str, segments: Sequence[str]) -> Destination:
        """The directory `segments` below `export_dir`. Raises `ConfigurationError` for an unusable setting."""
        try:
            filesystem, root = fsspec.core.url_to_fs(export_dir)
        except ImportError as error:
            raise ConfigurationError(f"EXPORT_DIR: {error}") from None
        except (TypeError, ValueError) as error:
            # Of their texts only one quotes no part of the address, which may hold a password.
            text = str(error)
            why = text if text.startswith("Protocol not known") else f"it is no address ({type(error).__name__})"
            raise ConfigurationError(f"EXPORT_DIR: {why}") from None
        except Exception as error:  # a store that is asked at once, with whatever its library raises
            raise judged(error) from None
        return cls(filesystem, root, segments)

    def write(self, segments: Sequence[str], data: bytes, *, durable: bool = False) -> str:
        """Write a file, replacing one of that name; returns its path below this directory.

        `durable` waits until it is on the disk, and everything of its directory that was written before.
        """
        path = self._join(self._base, segments)
        with destination_errors():
            if self._local:
                self._write_locally(Path(path), data, durable=durable)
            else:
                self._fs.pipe_file(path, data)
        return "/".join(segments)

    def _write_locally(self, target: Path, data: bytes, *, durable: bool) -> None:
        self._make_directory(target.parent)
        temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            _sync_directory(target.parent)

    def make(self, segments: Sequence[str]) -> None:
        """Make a directory; object stores have none."""
        if self._local:
            with destination_errors():
                self._make_directory(Path(self._join(self._base, segments)))

    def read(self, segments: Sequence[str]) -> bytes | None:
        """A file's content, None when there is none."""
        path = self._join(self._base, segments)
        with destination_errors():
            try:
                content: bytes = self._fs.cat_file(path)
            except FileNotFoundError:
                return None
            return content

    def names(self, segments: Sequence[str]) -> list[str]:
        """Names of the files in a directory, sorted; none when it does not exist."""
        path = self._join(self._base, segments)
        with destination_errors():
            try:
                found = self._fs.ls(path, detail=False, refresh=True)
            except FileNotFoundError:
                return []
        return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in found)

    @property
    def shown(self) -> str:
        """Where it is, for people."""
        return str(self._fs.unstrip_protocol(self._base))

    def _join(self, base: str, segments: Sequence[str]) -> str:
        for segment in segments:
            if segment in ("", ".", "..") or _SEGMENT.fullmatch(segment) is None:
                raise ValueError("a name that is no name of a file")
        return "/".join([base.rstrip("/"), *segments])

    def _make_directory(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # Somebody may have put a link there. The root itself may be one: the operator's choice.
        if not directory.resolve().is_relative_to(Path(self._root).resolve()):
            raise PermissionError("a link leads out of EXPORT_DIR")


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
