"""How subcommands live within Faust's command line: lazy, nested, with exit codes kept and no traceback (row W1)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from streams.cli.frame import Invocation, LazyCommand, asynchronous, synchronous
from streams.errors import ConfigurationError, ServiceUnavailable


@click.group()
def group() -> None:
    """A group of ours."""


@group.command()
@click.option("--code", type=int, default=0)
@asynchronous
async def ends(cli: Invocation, *, code: int) -> int:
    """End with a code."""
    click.echo("result")
    return code


@group.command()
@click.argument("kind")
@synchronous
def fails(cli: Invocation, *, kind: str) -> None:
    """Fail in some way."""
    errors: dict[str, BaseException] = {
        "configuration": ConfigurationError("PARTITIONS\nis wrong"),
        "unavailable": ServiceUnavailable("Kafka does not answer"),
        "defect": ZeroDivisionError("secret detail"),
        "usage": click.UsageError("which one?"),
        "interrupt": KeyboardInterrupt(),
        "no": click.Abort(),
    }
    raise errors[kind]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> click.Group:
    module = ModuleType("lazy_commands")
    module.group = group  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lazy_commands", module)
    made = click.Group("faust")
    made.add_command(LazyCommand("things", "lazy_commands:group", "Do things."))
    made.add_command(LazyCommand("broken", "no_such_module:group", "Cannot be imported."))
    return made


def run(root: click.Group, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(root, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_the_list_of_commands_imports_none_of_them(root: click.Group) -> None:
    code, out, _ = run(root, "--help")
    assert code == 0
    assert "things  Do things." in out
    assert "broken" in out


def test_nested_help_is_that_of_the_real_command(root: click.Group) -> None:
    code, out, _ = run(root, "things", "--help")
    assert code == 0
    assert "A group of ours." in out
    assert "ends" in out
    assert "--code" in run(root, "things", "ends", "--help")[1]


@pytest.mark.parametrize("code", [0, 3])
def test_exit_codes_are_kept(root: click.Group, code: int) -> None:
    assert run(root, "things", "ends", "--code", str(code)) == (code, "result\n", "")


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("configuration", 2, "configuration error: PARTITIONS is wrong\n"),
        ("unavailable", 1, "Kafka does not answer\n"),
        ("interrupt", 130, ""),
    ],
)
def test_errors_are_one_line(root: click.Group, kind: str, code: int, line: str) -> None:
    assert run(root, "things", "fails", kind) == (code, "", line)


def test_a_defect_is_one_line_without_its_text(root: click.Group) -> None:
    code, out, err = run(root, "things", "fails", "defect")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "ZeroDivisionError" in err
    assert "secret" not in err


def test_wrong_usage_is_2(root: click.Group) -> None:
    assert run(root, "things", "fails", "usage")[0] == 2
    assert run(root, "things", "nothing")[0] == 2


def test_an_output_that_cannot_be_written_is_one_line_and_exit_code_1() -> None:
    command = [sys.executable, "-m", "faust", "-A", "streams", "keys", "generate"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stderr) == (1, "the output cannot be written: No space left on device\n")


def test_whoever_is_asked_and_does_not_say_yes_has_met_no_defect(root: click.Group) -> None:
    code, _, stderr = run(root, "things", "fails", "no")
    assert (code, stderr.strip()) == (1, "Aborted!")


def test_w1_an_argument_that_is_not_utf_8_is_wrong_usage(root: click.Group) -> None:
    code, _, stderr = run(root, "things", "fails", "a\udcffb")
    assert code == 2
    assert "UTF-8" in stderr
