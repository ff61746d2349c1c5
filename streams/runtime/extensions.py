"""Code of one's own in our process: hooks, probes and services, named by the setting WORKER_EXTENSIONS.

::

    # WORKER_EXTENSIONS=acme.mail:extend
    def extend(extension: Extension) -> None:
        extension.hooks.add("tracing", startup=start_tracing, shutdown=stop_tracing)
        extension.probe("licence", licence_is_valid)
        extension.service(Mailbox2Webhook(extension.settings))
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from streams.errors import ConfigurationError
from streams.observer import RuntimeObserver
from streams.runtime.hooks import Hooks
from streams.runtime.probes import Probe
from streams.runtime.services import Service
from streams.settings import Settings


@dataclass
class Extension:
    """What an extension may add to, and what it may use."""

    settings: Settings
    observer: RuntimeObserver
    hooks: Hooks = field(default_factory=Hooks)
    probes: dict[str, tuple[Probe, bool]] = field(default_factory=dict)
    services: list[Service] = field(default_factory=list)

    def probe(self, name: str, probe: Probe, *, liveness: bool = False) -> None:
        """Add a custom probe; it counts for readiness, with `liveness` for liveness instead."""
        self.probes[name] = (probe, liveness)

    def service(self, service: Service) -> None:
        """Have a service run beside ours: started after the checks, stopped after the shards."""
        self.services.append(service)


def extend(extension: Extension, names: Sequence[str]) -> None:
    """Call the functions named `package.module:function`. Raises `ConfigurationError` for one that cannot be had."""
    for name in names:
        module_name, _, attribute = name.partition(":")
        try:
            function = getattr(importlib.import_module(module_name), attribute or "extend")
        except Exception as error:  # whatever a foreign module does at import
            raise ConfigurationError(f"WORKER_EXTENSIONS: {name} cannot be loaded: {error}") from error
        if not callable(function):
            raise ConfigurationError(f"WORKER_EXTENSIONS: {name} is no function")
        function(extension)
