"""translume completion"""

import click
from click.shell_completion import get_completion_class

PROGRAM = "translume"
VARIABLE = "_TRANSLUME_COMPLETE"
"""The environment variable in which a shell requests completions from click."""


@click.command(
    "completion",
    short_help="Print a script that completes commands in a shell.",
    epilog="Example: translume completion bash > translume.bash",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script for SHELL that completes the commands, options and file names of translume.

    \b
    bash, in ~/.bashrc:                 eval "$(translume completion bash)"
    zsh, in ~/.zshrc, after compinit:   eval "$(translume completion zsh)"
    fish:  translume completion fish > ~/.config/fish/completions/translume.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    completion = kind(context.find_root().command, {}, PROGRAM, VARIABLE)
    click.echo(completion.source_template % completion.source_vars())
