"""The options of all commands are the same with every version of Typer."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from undergrowth.cli.app import COMMANDS, app

GROUP = typer.main.get_command(app)
ALL: dict[str, Any] = {"undergrowth": GROUP, **GROUP.commands}  # type: ignore[attr-defined]
OPTIONS = [
    pytest.param(option, id=f"{name} {max(option.opts, key=len)}")
    for name, command in ALL.items()
    for option in command.params
    if option.param_type_name == "option"
]


def test_all_commands_are_checked() -> None:
    assert ALL.keys() == {"undergrowth", *(name for commands in COMMANDS.values() for name in commands)}
    assert len(OPTIONS) > len(ALL)


@pytest.mark.parametrize("option", OPTIONS)
def test_option_names(option: Any) -> None:
    """Some versions use a metavar that is the parameter's name in capitals as the name of the option."""
    assert option.metavar is None or option.metavar != option.name.upper()
    strings = [*option.opts, *option.secondary_opts]
    assert strings and all(each.startswith("-") and each == each.lower() for each in strings)


def test_help_shows_every_example_as_it_is_written(type_command, monkeypatch) -> None:
    """Typer reads text in brackets as markup, unless it is escaped."""
    monkeypatch.setenv("COLUMNS", "200")
    for name, command in ALL.items():
        shown = " ".join(type_command(*([] if command is GROUP else [name]), "--help").stdout.split())
        examples = [line.strip() for line in (command.help or "").splitlines() if line.startswith("  undergrowth")]
        assert all(" ".join(line.replace("\\[", "[").split()) in shown for line in examples), name
    assert "personal.adapt=[ewc,kd]" in type_command("run", "--help").stdout


def test_without_a_terminal_a_run_prints_lines_unless_it_is_quiet(type_command) -> None:
    few = ("run", "--model", "logistic", "--clients", "4", "--rounds", "2", "--no-report")
    assert ": round 2 of 2, accuracy " in type_command(*few).stderr
    assert type_command(*few, "--quiet").stderr == ""


def test_an_unknown_tracker_is_refused_before_anything_starts(type_command) -> None:
    done = type_command("run", "--track", "tensorbord")
    assert done.exit_code == 2 and "track 'tensorbord' is not a tracker; did you mean 'tensorboard'" in done.stderr
