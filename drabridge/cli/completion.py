"""``drabridge completion``: print what makes a shell complete commands and options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

_SCRIPT = """\
_drabridge() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} path= words= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path $word" in
      {paths}) path="${{path:+$path }}$word";;
    esac
  done
  case "$path" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _drabridge drabridge
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
_NO_FILES = 4  # cobra's ShellCompDirectiveNoFileComp (github.com/spf13/cobra, completions.go); 0: files as well


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.epilog = (
        "For `kubectl drabridge`, kubectl finds kubectl_complete-drabridge in the PATH: nothing is to be done.\n\n"
        "examples:\n"
        '  eval "$(drabridge completion bash)"     # in ~/.bashrc\n'
        '  eval "$(drabridge completion zsh)"      # in ~/.zshrc'
    )


def run(arguments: argparse.Namespace) -> int:
    known = dict(_words())
    paths = "|".join(f'"{" ".join(path[:-1])} {path[-1]}"' for path in known if path)
    cases = "\n".join(f'    "{" ".join(path)}") words="{" ".join(words)}";;' for path, words in known.items())
    print((_ZSH if arguments.shell == "zsh" else "") + _SCRIPT.format(paths=paths, cases=cases), end="")
    return 0


def for_kubectl() -> int:
    """Print the completions of the words that kubectl passes on, in the form of kubectl's plugins."""
    *before, current = sys.argv[1:] or [""]
    known = dict(_words())
    path: tuple[str, ...] = ()
    for word in before:
        path = (*path, word) if (*path, word) in known else path
    found = [word for word in known[path] if word.startswith(current)]
    print("\n".join([*found, f":{_NO_FILES if found else 0}"]))
    return 0


def _words() -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield each command with the words that may follow it: subcommands, choices and options."""
    from drabridge.cli import COMMANDS, build_parser

    yield (), [*COMMANDS, "--version", "--help"]
    for name in COMMANDS:
        yield from _of(_subparsers(build_parser(name))[name], (name,))


def _of(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    options = [word for action in parser._actions for word in action.option_strings if word.startswith("--")]
    places = [action for action in parser._actions if not action.option_strings]
    yield path, [*(str(choice) for place in places for choice in place.choices or ()), *options]
    for name, inner in _subparsers(parser).items():
        yield from _of(inner, (*path, name))


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}
