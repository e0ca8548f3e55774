"""The `wink` application: every group of commands is added here."""

from typer import Typer

from . import overrides, prompts, runs

__all__ = ["app"]

app = Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Look at prompts, check them, run them, and see what they cost. Targets are written package.module:name.",
)
for _command in (prompts.render, prompts.tree, prompts.check, runs.run, runs.show, runs.advise):
    app.command()(_command)
app.add_typer(overrides.app, name="overrides")
