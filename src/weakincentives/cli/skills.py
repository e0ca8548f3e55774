"""`wink skill`: export a prompt as skills."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Option, Typer

from .printing import single_line
from .target import Params, Set, Tag, Target, load_prompt

__all__ = ["app"]

app = Typer(no_args_is_help=True, help="Export a prompt as skills, folders with a SKILL.md.")
To = Annotated[Path, Option(help="The folder for the skills.")]
Description = Annotated[str, Option(help="The purpose of the new skill and when to use it.")]
Replace = Annotated[bool, Option("--replace", help="Replace existing skills.")]


@app.callback()
def _group() -> None: ...  # otherwise typer would make the only command the group


@app.command()
def export(
    target: Target,
    *,
    to: To = Path(),
    description: Description = "",
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    replace: Replace = False,
) -> None:
    """Export each skill of the prompt with its overrides applied.

    All other sections become one new skill. Parts that a skill cannot contain are listed on stderr.
    """
    from ..contrib.skills import export_skills

    for skill in export_skills(load_prompt(target, params, set_, tag), description=description):
        skill.write(to, replace=replace)
        sys.stdout.writelines(f"{to / skill.name / path}\n" for path in sorted(skill.files))
        sys.stderr.writelines(f"wink: {single_line(note)}\n" for note in skill.notes)
