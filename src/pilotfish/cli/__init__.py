"""The command line: one file per command, errors as one line, exit codes in one place."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from pilotfish import __version__
from pilotfish.cli import bench, models, run, serve, verify
from pilotfish.errors import PilotfishError

FAILED, USAGE, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="pilotfish",
    help="Gemma 4 with multi-token prediction: the same text, sooner.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command(name="run", no_args_is_help=False)(run.run)
app.command(name="serve")(serve.serve)
app.command(name="verify")(verify.verify)
for name, command in models.COMMANDS.items():
    app.command(name=name)(command)
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pilotfish {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    return None


# Typer keeps click's exceptions in a place that has moved between releases; their common base is found, not imported.
_UsageError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")


def main() -> None:
    """Entry point: every foreseeable failure is one line on standard error and an exit code."""
    sys.exit(_main())


def _main() -> int:
    try:
        result = app(standalone_mode=False, prog_name="pilotfish")
    except PilotfishError as error:
        return _fail(str(error), FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone; nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if isinstance(error, _UsageError):
            return _fail(f"{error.format_message()} (see pilotfish --help)", USAGE)
        raise
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    typer.echo(f"pilotfish: {' '.join(message.split())}", err=True)
    return code
