"""The command `tracelens`: find the verb, run it, turn every ending into an exit code and at most two lines.

Exit: 0 done · 1 findings at or above --fail-on · 2 could not · 130 interrupted. Knows no verb's flags.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tracelens.commands import VERBS
from tracelens.errors import TracelensError
from tracelens.installed import other_owner

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Argument errors end like every other error."""

    def error(self, message: str) -> NoReturn:
        raise TracelensError(message, f"see `{self.prog} --help`")


class _Version(argparse.Action):
    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        from tracelens import __version__

        print(f"tracelens-profiler {__version__}")
        raise SystemExit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Never raises."""
    _tolerant(sys.stdout)
    _tolerant(sys.stderr)
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse: --help, --version
        return _flushed(stop.code if isinstance(stop.code, int) else 0)
    except TracelensError as error:
        return _complain(error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        return _complain("interrupted", None, EXIT_INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except MemoryError:
        return _complain("out of memory", "analyse a shorter recording or fewer files at once", EXIT_ERROR)
    except Exception as error:
        if os.environ.get("TRACELENS_DEBUG") == "1":
            raise
        return _complain(
            f"internal error: {type(error).__name__} in {_where(error)}: {error}",
            "TRACELENS_DEBUG=1 shows the traceback; please report it",
            EXIT_ERROR,
        )


def _run(arguments: list[str]) -> int:
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    verb = chosen if chosen in VERBS else None
    if verb != "doctor" and (owner := other_owner()):
        raise TracelensError(
            f"the distribution {owner} also installs a package called tracelens",
            "uninstall it, or install tracelens-profiler by itself: pipx install tracelens-profiler",
        )
    args = _parser(verb).parse_args(arguments)
    return int(import_module(f"tracelens.commands.{args.verb}").run(args))


def _parser(verb: str | None) -> argparse.ArgumentParser:
    """The parser, with the flags of one verb only: the others are not imported."""
    parser = _Parser(
        prog="tracelens",
        description="Findings from LLM inference traces: local, cheap, each with its own experiment.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, says in VERBS.items():
        sub = verbs.add_parser(name, help=says, description=says[0].upper() + says[1:] + ".", allow_abbrev=False)
        if name == verb:
            import_module(f"tracelens.commands.{name}").configure(sub)
    return parser


def _complain(message: str, hint: str | None, code: int) -> int:
    """Print the error and its hint; both may quote untrusted names."""
    from tracelens.presenters.text import clean

    with contextlib.suppress(OSError):
        print(f"tracelens: error: {clean(message, 1000)}", file=sys.stderr)
        if hint:
            print(f"hint: {clean(hint, 1000)}", file=sys.stderr)
    return _flushed(code)


def _flushed(code: int) -> int:
    """The code, after what is still buffered for stdout was written or given up."""
    try:
        sys.stdout.flush()
    except OSError:
        _silence_stdout()
    return code


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain about a closed pipe."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tolerant(stream: TextIO) -> None:
    """Characters that the terminal's encoding lacks become escapes instead of an exception."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _where(error: BaseException) -> str:
    """file:line of the deepest frame."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return "an unknown place"
    path = Path(frame.tb_frame.f_code.co_filename)
    return f"{Path(*path.parts[-2:])}:{frame.tb_lineno}"


if __name__ == "__main__":
    sys.exit(main())
