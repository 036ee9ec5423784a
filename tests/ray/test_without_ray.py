"""Without the extra, the error names it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cenote.utils.install_commands import install_command

COMMANDS = {
    "embed": "import cenote.ray; cenote.ray.embed(None)",
    "command": "from cenote.cli.main import main; sys.exit(main(['embed', 'a', '--engine', 'ray']))",
    "serve": "from cenote.cli.main import main; sys.exit(main(['serve', '--engine', 'ray']))",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_error_names_the_packages(name: str) -> None:
    code = f"import sys; sys.modules['ray'] = None; {COMMANDS[name]}"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)

    assert done.returncode != 0
    assert install_command("ray") in done.stderr
