"""The table of commands, and the conversion of exceptions to exit codes.

To add a command, write a function in a new file and add one line to `COMMANDS`. The function imports what it needs
when it is called, so that `--help` does not wait for torch.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from undergrowth import __version__
from undergrowth.cli.adapt import adapt
from undergrowth.cli.bench import bench
from undergrowth.cli.compare import compare
from undergrowth.cli.datasets import datasets
from undergrowth.cli.engines import engines
from undergrowth.cli.exit_codes import INTERRUPTED, WRONG_INPUT, exit_code_and_message, is_broken_pipe
from undergrowth.cli.export import export
from undergrowth.cli.fleets import fleets
from undergrowth.cli.list_runs import list_runs
from undergrowth.cli.methods import methods
from undergrowth.cli.models import models
from undergrowth.cli.plan import plan
from undergrowth.cli.report import report
from undergrowth.cli.reproduce import reproduce
from undergrowth.cli.resume import resume
from undergrowth.cli.run import run
from undergrowth.cli.serve import serve
from undergrowth.cli.show import show
from undergrowth.cli.sweep import sweep
from undergrowth.cli.topology import topology

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Run experiments": {
        "plan": plan,
        "run": run,
        "sweep": sweep,
        "resume": resume,
        "adapt": adapt,
        "reproduce": reproduce,
    },
    "Inspect runs": {
        "list": list_runs,
        "show": show,
        "compare": compare,
        "report": report,
        "serve": serve,
        "export": export,
    },
    "List what is available": {
        "methods": methods,
        "datasets": datasets,
        "models": models,
        "fleets": fleets,
        "topology": topology,
        "engines": engines,
        "bench": bench,
    },
}

_python_format = warnings.formatwarning

# Typer joins the lines of a paragraph, so every example is a paragraph.
_EXAMPLES = """
[bold]Examples[/bold]

  undergrowth run                                       FedAvg on the embedded digits data, in seconds

  undergrowth run --method fedprox -s method.mu=0.1     another method, with one of its options

  undergrowth plan --fleet mixed-edge --deadline 0.5    cost per device class, without training

  undergrowth run my.yaml --rounds 50 -s train.lr=0.05  an experiment file with two changes

  undergrowth sweep my.yaml --jobs 2                    every combination of the lists in a file, and one table

  undergrowth compare last 20260102                     two runs, each by id, start of its id, or `last`

  undergrowth report last -o page.html                  an HTML page with all figures of a run

  undergrowth serve                                     all runs in a browser, live while they run

  undergrowth export 'runs/*' --latex                   a table of all runs, mean and deviation over seeds

  undergrowth methods fedprox                           description, options and an example of a method

Exit codes: 0 success · 2 invalid input · 3 the run failed · 130 interrupted, can be resumed
"""


class CommandGroup(TyperGroup):
    """Converts every exception of a command to a one-line message and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **more: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        if "--debug" in words:  # an option of the group, accepted anywhere on the command line
            words.remove("--debug")
            words.insert(0, "--debug")
        try:
            code = super().main(words, *rest, **{**more, "standalone_mode": False})
        except typer.Abort:
            code = INTERRUPTED
        except Exception as error:
            if not _is_usage_error(error):
                raise
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "undergrowth"
            message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
            message += _meant_option(error, context)
            typer.echo(f"error: {message}; see `{command} --help`", err=True)
            code = WRONG_INPUT
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            if _is_usage_error(error) or is_broken_pipe(error):
                raise
            code, message = exit_code_and_message(error)
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            typer.echo(message, err=True)
            raise typer.Exit(code) from None


def _is_usage_error(error: BaseException) -> bool:
    """Whether click rejected the arguments. Some Typer versions bundle click, so its class cannot be imported."""
    return hasattr(error, "format_message")


def _meant_option(error: BaseException, context: Any) -> str:
    """The end of a message about an unknown option that has another name here, such as --learning-rate."""
    written = getattr(error, "option_name", None)
    if not isinstance(written, str) or context is None:
        return ""

    from undergrowth.core.errors import find_meant

    known = [text.lstrip("-") for option in context.command.params for text in option.opts if text.startswith("--")]
    meant = find_meant(written.lstrip("-"), known)
    return f"; did you mean --{meant}?" if meant else ""


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"undergrowth {__version__}")
        raise typer.Exit


def start(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="UNDERGROWTH_DEBUG", help="Print the traceback of errors.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning that weak devices can take part in, and what each way of taking part costs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build_app() -> typer.Typer:
    built = typer.Typer(
        name="undergrowth",
        cls=CommandGroup,
        rich_markup_mode="rich",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    built.callback(invoke_without_command=True, epilog=_EXAMPLES)(start)
    for panel, commands in COMMANDS.items():
        for name, function in commands.items():
            built.command(name, rich_help_panel=panel)(function)
    return built


app = build_app()


def main() -> None:
    warnings.formatwarning = _format_warning
    sys.unraisablehook = _repeat_interrupt
    # A shell can close them: `>&-`.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: not every encoding has a µ
    app(prog_name="undergrowth")


def _repeat_interrupt(unraisable: Any) -> None:
    """Repeats a Ctrl-C that came while Python deleted an object; Python would print a traceback and go on."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        # Later, because an exception of this function would be lost as well.
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A note of a run as one line; other warnings with the line of code that issued them, as Python does."""
    if category.__name__ == "RunWarning":  # by name: its module imports torch
        return f"warning: {message}\n"
    return _python_format(message, category, filename, lineno, line)
