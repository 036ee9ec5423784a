"""The `cenote` command: run a subcommand and report errors as one line and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module

from cenote.utils.garbage_collection import no_collections

EXIT_FAILED, EXIT_USAGE, EXIT_CANNOT_LOAD, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 1, 2, 78, 130, 141

COMMANDS = {
    "serve": "start the HTTP server",
    "try": "serve on a free port and open the playground in a browser",
    "embed": "compute one embedding per text",
    "classify": "classify texts: label and probabilities",
    "entities": "find named entities: label, score and position",
    "score": "compute the relevance or similarity score of two texts",
    "rerank": "sort documents by relevance to a query",
    "encode": "compute token embeddings, or run any other pooling task",
    "run-batch": "process a file of requests in the format of the OpenAI Batch API",
    "pull": "download a model",
    "ps": "list the models of a running server",
    "load": "load a model into a running server",
    "unload": "unload a model from a running server",
    "stop": "shut a running server down",
    "doctor": "check a running server, Cenote or another one, with the requests of known clients",
    "inspect": "show the resolved model settings and the file or option each comes from",
    "explain": "compare the speed of a model with the limits of this machine",
    "models": "list the supported architectures and their tasks",
    "bench": "run benchmarks of speed and quality",
    "completion": "print the completion script of bash, zsh or fish",
}

# the others are in `commands`; all modules together take 0.1 s to import, which a server that starts does not have
MODULES = {
    **dict.fromkeys(("load", "ps", "pull", "stop", "unload"), "admin"),
    **dict.fromkeys(("classify", "embed", "encode", "entities", "rerank", "score"), "text_commands"),
    "completion": "completion",
    "doctor": "doctor",
    "serve": "serve",
    "try": "try_model",
}
FUNCTIONS = {"serve": "run_server", "try": "try_model"}  # others have the name of the command

EXAMPLES = """\
  cenote serve --port 8000
  cenote embed "hello world"
  cenote embed --input texts.csv --column body --output vectors.npy
  cenote rerank "how deep is it?" "the water is 40 metres deep" "swimming is free"
  cat lines.txt | cenote embed > vectors.jsonl"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        status = _run_command(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # the reader of standard output has exited; without this, Python reports the same error when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = EXIT_PIPE_CLOSED
    except KeyboardInterrupt as interrupt:
        status = _print_error("interrupted", interrupt, EXIT_INTERRUPTED)
    except Exception as error:
        exit_status = _exit_status(error)
        if exit_status is None:
            raise
        status = _print_error(_one_line_message(error), error, exit_status)
    if argv is None:
        # the engine thread may still run torch code, which aborts when the interpreter exits meanwhile
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
        from cenote.utils.argparse_utils import UsageError

        near = get_close_matches(command, COMMANDS, n=1)
        raise UsageError(f"unknown command {command!r}; {f'did you mean {near[0]}?' if near else 'see cenote --help'}")
    if command == "bench":
        from cenote.bench.main import main as bench

        return bench(rest)
    try:
        with no_collections():
            run = find_command(command)
        return int(run(rest))
    except SystemExit as exit_request:  # argparse has printed the help of the command
        return int(exit_request.code or 0)


def find_command(name: str) -> Callable[[Sequence[str]], int]:
    """Return the function that runs a command."""
    if name in MODULES:
        module = import_module(f"cenote.cli.{MODULES[name]}")
    else:
        from cenote.cli import commands as module
    found: Callable[[Sequence[str]], int] = getattr(module, FUNCTIONS.get(name, name.replace("-", "_")))
    return found


def _help_text() -> str:
    width = max(map(len, COMMANDS))
    command_lines = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: cenote COMMAND [ARGUMENTS]\n\n"
        "A fast engine for pooling models: embedding, reranking, classification and token-level tasks.\n\n"
        f"commands:\n{command_lines}\n\nexamples:\n{EXAMPLES}\n\n"
        "cenote COMMAND --help describes a command. Without --model, the small bundled default model is used.\n"
        "cenote --version prints the version."
    )


def _exit_status(error: Exception) -> int | None:
    """Return the exit status of an expected error; None for a bug, which is shown with its traceback."""
    from cenote.errors import LoadError, PoolingError
    from cenote.utils.argparse_utils import UsageError

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
