"""The `wink` application with all its commands."""

from typing import Annotated

from typer import Exit, Option, Typer, echo

from ..version import __version__
from . import (
    approval,
    chat,
    durable_runs,
    eval_runs,
    mcp,
    overrides,
    prompts,
    report,
    run,
    skills,
)

__all__ = ["app"]

app = Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Inspect prompts, check them, run them, and see their cost. "
    "A target is package.module:name, or a folder of skills.",
)


def _print_version(version: bool) -> None:  # noqa: FBT001 - typer gives the option's value
    if version:
        echo(f"weakincentives {__version__}")
        raise Exit


_Version = Option("--version", is_eager=True, callback=_print_version, help="Print the version.")


@app.callback()
def _options(*, version: Annotated[bool, _Version] = False) -> None: ...


for _command in (
    *(prompts.render, prompts.tree, prompts.check),
    *(run.run, approval.approve, chat.chat, run.show, report.report, run.advise),
    eval_runs.eval_schema,
):
    app.command()(_command)
app.command("eval")(eval_runs.evaluate_cases)
app.command()(eval_runs.compare)
app.add_typer(overrides.app, name="overrides")
app.add_typer(skills.app, name="skill")
app.add_typer(mcp.app, name="mcp")
app.add_typer(durable_runs.app, name="runs")
