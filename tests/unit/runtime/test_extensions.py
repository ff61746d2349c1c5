"""Code of one's own in our process."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from streams.errors import ConfigurationError
from streams.observer import NoopObserver
from streams.runtime.extensions import Extension, extend
from streams.settings import load_settings


async def probe() -> bool:
    return True


@pytest.fixture
def extension() -> Extension:
    return Extension(load_settings(), NoopObserver())


def test_a_function_is_called_with_what_it_may_add_to(extension: Extension, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("acme_mail")

    def add(extension: Extension) -> None:
        extension.probe("licence", probe, liveness=True)
        extension.hooks.add("tracing")

    module.extend = add  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "acme_mail", module)
    extend(extension, ["acme_mail", "acme_mail:extend"])
    assert extension.probes == {"licence": (probe, True)}


@pytest.mark.parametrize("name", ["no.such.module:f", "json:no_such_function", ":f", "json:__name__"])
def test_what_cannot_be_loaded_is_a_configuration_error(extension: Extension, name: str) -> None:
    with pytest.raises(ConfigurationError, match="WORKER_EXTENSIONS"):
        extend(extension, [name])


def test_w1_a_module_that_fails_at_import_is_a_configuration_error(
    extension: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_broken.py").write_text("def extend(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match="WORKER_EXTENSIONS"):
        extend(extension, ["acme_broken"])
