"""What `send` refuses before anything is sent: a command that is poison would be waited for in vain."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from streams.cli.send import group

ACCOUNT = "00000000-0000-4000-8000-00000000000a"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["job", "", ACCOUNT], id="no kind"),
        pytest.param(["job", "k" * 201, ACCOUNT], id="kind"),
        pytest.param(["job", "k", ACCOUNT, "--command-id", "i" * 201], id="id"),
        pytest.param(["job", "k", ACCOUNT, "--command-id", ""], id="no id"),
        pytest.param(["job", "k", ACCOUNT, "--args", '{"a": "' + "x" * 300_000 + '"}'], id="size"),
        pytest.param(["job", "k", ACCOUNT, "--args", '{"a":' * 3000 + "1" + "}" * 3000], id="depth"),
        pytest.param(["job", "k", ACCOUNT, "--expires", "1e300"], id="end of time"),
        pytest.param(["job", "k", ACCOUNT, "--expires", "nan"], id="no time"),
    ],
)
def test_w13_what_no_reader_takes_is_wrong_usage(arguments: list[str]) -> None:
    root = click.Group("faust", commands={"send": group})
    result = CliRunner().invoke(root, ["send", *arguments])
    assert result.exit_code == 2
