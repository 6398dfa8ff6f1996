"""The table of commands, and how any of them ends.

A new command is a function in a file of its own and one line in the table. The function imports what it needs when it
is called, so that `--help` does not wait for torch.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from undergrowth import __version__
from undergrowth.cli import (
    bench,
    compare,
    datasets,
    engines,
    fleets,
    look,
    methods,
    models,
    plan,
    report,
    reproduce,
    resume,
    run,
)
from undergrowth.cli.endings import INTERRUPTED, WRONG_INPUT, is_broken_pipe, told

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Run": {
        "plan": plan.plan,
        "run": run.run,
        "resume": resume.resume,
        "reproduce": reproduce.reproduce,
    },
    "Look at runs": {
        "list": look.list_runs,
        "show": look.show,
        "compare": compare.compare,
        "report": report.report,
    },
    "What there is": {
        "methods": methods.methods,
        "datasets": datasets.datasets,
        "models": models.models,
        "fleets": fleets.fleets,
        "engines": engines.engines,
        "bench": bench.bench,
    },
}

# Every example is a paragraph: lines of one paragraph are joined.
_EXAMPLES = """
[bold]Examples[/bold]

  undergrowth run                                       the embedded default, on real data, in seconds

  undergrowth run --method fedprox -s method.mu=0.1     another method, with an option of it

  undergrowth plan --fleet mixed-edge --deadline 0.5    who could take part, at what price, without training

  undergrowth run my.yaml --rounds 50 -s train.lr=0.05  an experiment file with two changes

  undergrowth compare last 20260102                     two runs, by id, beginning of id, or `last`

  undergrowth report last -o page.html                  one page with everything that can be drawn

  undergrowth methods fedprox                           what it does, its options, an example

Exit codes: 0 done · 2 the input is wrong · 3 the run failed · 130 interrupted, can be resumed
"""


class Commands(TyperGroup):
    """Turns whatever ends a command into a sentence and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **more: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        if "--debug" in words:  # belongs to all commands, so it may stand anywhere
            words.remove("--debug")
            words.insert(0, "--debug")
        try:
            code = super().main(words, *rest, **{**more, "standalone_mode": False})
        except typer.Abort:
            code = INTERRUPTED
        except Exception as error:
            if not _is_usage(error):
                raise
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "undergrowth"
            said = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
            typer.echo(f"error: {said}; `{command} --help` explains", err=True)
            code = WRONG_INPUT
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if _is_usage(error) or is_broken_pipe(error):
                raise
            code, sentence = told(error)
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            typer.echo(sentence, err=True)
            raise typer.Exit(code) from None


def _is_usage(error: BaseException) -> bool:
    """Words that do not fit a command. Some versions of typer carry a click of their own, so it has no one name."""
    return hasattr(error, "format_message")


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"undergrowth {__version__}")
        raise typer.Exit


def start(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="UNDERGROWTH_DEBUG", help="Show the traceback of what goes wrong.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Federated learning that weak devices can take part in, and what each way of taking part costs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build() -> typer.Typer:
    made = typer.Typer(
        name="undergrowth",
        cls=Commands,
        rich_markup_mode="rich",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True, epilog=_EXAMPLES)(start)
    for panel, commands in COMMANDS.items():
        for name, function in commands.items():
            made.command(name, rich_help_panel=panel)(function)
    return made


app = build()


def main() -> None:
    app(prog_name="undergrowth")
