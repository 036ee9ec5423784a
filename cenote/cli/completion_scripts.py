"""Completion scripts of bash, zsh and fish."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cenote.cli.completion import CommandEntry, OptionEntry, iter_value_flags

BASH = """\
# bash completion of cenote
_cenote() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
    local words= flags= values= arguments=
    COMPREPLY=()
    # bash splits --flag=value into three words
    if [[ $current == = ]]; then
        current=
    elif [[ $previous == = ]]; then
        previous=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    if [[ $command == bench ]] && ((COMP_CWORD > 2)); then
        command="bench ${{COMP_WORDS[2]}}"
    fi
    case $command in
{cases}
    esac
    if [[ -z $words && " $values " != *" $previous "* ]]; then
        if [[ $current == -* ]]; then words=$flags; else words=$arguments; fi
    fi
    # nothing to offer: bash completes file names
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _cenote cenote
"""
ZSH = """\
#compdef cenote
_cenote() {{
    local -a commands
    commands=({commands})
    if (( CURRENT == 2 )); then
        _describe -t commands command commands
        return
    fi
    local command=$words[2]
    if [[ $command == bench ]] && (( CURRENT > 3 )); then
        command="bench $words[3]"
        shift words
        (( CURRENT-- ))
    fi
    shift words
    (( CURRENT-- ))
    case $command in
{cases}
    esac
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _cenote "$@"
else
    compdef _cenote cenote
fi
"""
FISH = """\
# fish completion of cenote
function __cenote_is
    set -l words (commandline -opc)
    set -l last (math 1 + (count $argv))
    test "$words[2..$last]" = "$argv"
end
{lines}
"""


def make_bash_script(commands: Sequence[CommandEntry]) -> str:
    names = " ".join(command.name for command in commands if len(command.words) == 1)
    return BASH.format(commands=names, cases="\n".join(map(_bash_case, commands)))


def _bash_case(command: CommandEntry) -> str:
    flags = " ".join(flag for option in command.options for flag in option.flags)
    lines = [
        f'    "{command.name}")',
        f'        flags="{flags}"',
        f'        values="{" ".join(iter_value_flags(command.options))}"',
        f'        arguments="{" ".join(command.arguments)}"',
    ]
    with_choices = [option for option in command.options if option.choices]
    if with_choices:
        lines.append("        case $previous in")
        lines += [f'        {"|".join(option.flags)}) words="{" ".join(option.choices)}" ;;' for option in with_choices]
        lines.append("        esac")
    return "\n".join([*lines, "        ;;"])


def make_zsh_script(commands: Sequence[CommandEntry]) -> str:
    names = [command for command in commands if len(command.words) == 1]
    described = " ".join(_quote_posix(f"{command.name}:{command.summary}") for command in names)
    return ZSH.format(commands=described, cases="\n".join(map(_zsh_case, commands)))


def _zsh_case(command: CommandEntry) -> str:
    arguments = f"1:argument:({' '.join(command.arguments)})" if command.arguments else "*:file:_files"
    specs = [_zsh_spec(option, flag) for option in command.options for flag in option.flags]
    lines = " \\\n            ".join(map(_quote_posix, [arguments, *specs]))
    return f'    "{command.name}")\n        _arguments \\\n            {lines}\n        ;;'


def _zsh_spec(option: OptionEntry, flag: str) -> str:
    text = option.help
    for mark in "\\[]:":
        text = text.replace(mark, f"\\{mark}")
    if option.metavar is None:
        return f"*{flag}[{text}]"
    values = f"({' '.join(option.choices)})" if option.choices else "_files"
    equals = "=" if flag.startswith("--") else ""  # --flag value and --flag=value
    return f"*{flag}{equals}[{text}]:{option.metavar}:{values}"


def make_fish_script(commands: Sequence[CommandEntry]) -> str:
    lines = []
    for command in commands:
        before = command.words[:-1]
        parent = f"__cenote_is {' '.join(before)}; and " if before else ""
        place = f"{parent}test (count (commandline -opc)) -eq {1 + len(before)}"
        lines.append(
            f"complete -c cenote -f -n {_quote_fish(place)} -a {command.words[-1]} -d {_quote_fish(command.summary)}"
        )
        condition = _quote_fish(f"__cenote_is {command.name}")
        if command.arguments and command.name != "bench":  # its commands have lines of their own
            lines.append(f"complete -c cenote -f -n {condition} -a {_quote_fish(' '.join(command.arguments))}")
        lines += [f"complete -c cenote -n {condition} {_fish_option(option)}" for option in command.options]
    return FISH.format(lines="\n".join(lines))


def _fish_option(option: OptionEntry) -> str:
    words = [_fish_flag(flag) for flag in option.flags]
    if option.choices:
        words.append(f"-x -a {_quote_fish(' '.join(option.choices))}")
    elif option.metavar is not None:
        words.append("-r")
    return " ".join([*words, "-d", _quote_fish(option.help)])


def _fish_flag(flag: str) -> str:
    if flag.startswith("--"):
        return f"-l {flag[2:]}"
    return f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"


def _quote_posix(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _quote_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: dict[str, Callable[[Sequence[CommandEntry]], str]] = {
    "bash": make_bash_script,
    "zsh": make_zsh_script,
    "fish": make_fish_script,
}
