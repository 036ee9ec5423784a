"""The `cenote` command: finds the subcommand and turns what goes wrong into one line and a status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

EXIT_FAILED, EXIT_USAGE, EXIT_CANNOT_LOAD, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 1, 2, 78, 130, 141

COMMANDS = {
    "serve": "answer over HTTP",
    "embed": "turn texts into vectors",
    "classify": "give texts a label and its probability",
    "score": "say how well two texts belong together",
    "rerank": "sort documents by how well they answer a query",
    "encode": "turn texts into one vector per token",
    "run-batch": "answer a file of requests, as OpenAI's batches have them",
    "inspect": "show what was found out about a model, and in which file",
    "explain": "say what a model could reach on this machine, and what it reaches",
    "models": "list the architectures there are, with their tasks",
    "bench": "measure speed",
}

EXAMPLES = """\
  cenote serve --port 8000
  cenote embed "hello world"
  cenote embed --input texts.csv --column body --output vectors.npy
  cenote rerank "how deep is it?" "the water is 40 metres deep" "swimming is free"
  cat lines.txt | cenote embed > vectors.jsonl"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    try:
        status = _run_command(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # whoever read our output has gone; Python would complain once more when it flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = EXIT_PIPE_CLOSED
    except KeyboardInterrupt as stop:
        status = _print_error("interrupted", stop, EXIT_INTERRUPTED)
    except Exception as error:
        known = _exit_status(error)
        if known is None:
            raise
        status = _print_error(_one_line_message(error), error, known)
    if argv is None:
        # the engine's thread may still be inside torch, which aborts when the interpreter ends below it
        sys.stdout.flush()
        os._exit(status)
    return status


def _run_command(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help_text(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else EXIT_USAGE
    if argv[0] in ("-V", "--version"):
        from cenote.version import __version__

        print(f"cenote {__version__}")
        return 0
    command, *rest = argv
    if command not in COMMANDS:
        from cenote.cli.parser import UsageError

        near = get_close_matches(command, COMMANDS, n=1)
        raise UsageError(f"no command {command!r}; {f'did you mean {near[0]}?' if near else 'see cenote --help'}")
    if command == "bench":
        from cenote.bench.main import main as bench

        return bench(rest)
    from cenote.cli import commands

    try:
        return int(getattr(commands, command.replace("-", "_"))(rest))
    except SystemExit as end:  # argparse has shown the help of the command
        return int(end.code or 0)


def _help_text() -> str:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: cenote COMMAND [ARGUMENTS]\n\n"
        "A fast engine for pooling models: embeddings, reranking, classification, token tasks.\n\n"
        f"commands:\n{listed}\n\nexamples:\n{EXAMPLES}\n\n"
        "cenote COMMAND --help explains a command. Without --model the small model that comes along is used.\n"
        "cenote --version prints the version."
    )


def _exit_status(error: Exception) -> int | None:
    """The exit status of what may go wrong on purpose; None for a bug, which shows its traceback."""
    from cenote.cli.parser import UsageError
    from cenote.errors import LoadError, PoolingError

    if isinstance(error, UsageError):
        return EXIT_USAGE
    if isinstance(error, LoadError):
        return EXIT_CANNOT_LOAD
    return EXIT_FAILED if isinstance(error, PoolingError | OSError) else None


def _one_line_message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror.lower()}: {error.filename}"
    return " ".join(str(getattr(error, "message", error)).split())


def _print_error(text: str, error: BaseException, status: int) -> int:
    from cenote.utils.progress import print_note

    print_note("; ".join([text, *getattr(error, "__notes__", [])]))
    return status
