"""What must be true before a worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.errors import ConfigurationError
from streams.runtime.checks import take_data_directory
from streams.settings import load_settings


def test_a_data_directory_has_one_worker(tmp_path: Path) -> None:
    settings = load_settings(DATA_DIR=tmp_path / "data")
    with take_data_directory(settings):
        with pytest.raises(ConfigurationError, match="another worker runs in"):
            take_data_directory(settings)
        take_data_directory(load_settings(DATA_DIR=tmp_path / "other")).close()
    take_data_directory(settings).close()


def test_a_data_directory_that_cannot_be_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="DATA_DIR: cannot write"):
        take_data_directory(load_settings(DATA_DIR=tmp_path / "file" / "data"))
