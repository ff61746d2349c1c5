"""pymap with users out of a file; run as a program by `pymap_server`.

    python -m streams.local.pymap_program USERS_FILE HOST PORT CERTIFICATE KEY

The file is a JSON object of names and passwords, read again before each login. Mail is kept in memory.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from pymap.backend import backends
from pymap.backend.dict import Config, DictBackend, Identity, Login
from pymap.main import main as pymap_main
from pymap.user import Passwords, UserMetadata


class _FileLogin(Login):
    """A login that knows the users of a file."""

    def __init__(self, config: Any, users: Path) -> None:
        super().__init__(config)
        self._users = users
        self._known: dict[str, str] = {}

    async def authenticate(self, credentials: Any) -> Any:
        for name, password in json.loads(self._users.read_text()).items():
            if self._known.get(name) != password:
                hashed = await Passwords(self.config).hash_password(password)
                await Identity(name, self, None, frozenset()).set(UserMetadata(self.config, name, password=hashed))
                self._known[name] = password
        return await super().authenticate(credentials)


class _Backend(DictBackend):
    """The in-memory backend with that login."""

    users: Path

    @classmethod
    async def init(cls, args: Namespace, **overrides: Any) -> Any:
        config = Config.from_args(args, **overrides)
        return cls(_FileLogin(config, cls.users), config), config


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM."""
    users, host, port, certificate, key = arguments
    _Backend.users = Path(users)
    backends.add("users", _Backend)
    options = ["--no-service", "admin", "--no-service", "managesieve", "--pid-file", f"mailstreams-pymap-{port}"]
    sys.argv = ["pymap", *options, "--host", host, "--port", port, "--cert", certificate, "--key", key, "users"]
    pymap_main()


if __name__ == "__main__":
    main(sys.argv[1:])
