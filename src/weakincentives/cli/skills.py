"""`wink skill`: write a prompt as skills."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Option, Typer

from .printing import single_line
from .target import Params, Set, Tag, Target, load_prompt

__all__ = ["app"]

app = Typer(no_args_is_help=True, help="Write a prompt as skills, folders with a SKILL.md.")
To = Annotated[Path, Option(help="The folder to write them into.")]
Description = Annotated[str, Option(help="What the new skill does and when to use it.")]
Replace = Annotated[bool, Option("--replace", help="Write over a skill that is there.")]


@app.callback()
def _group() -> None: ...  # without it typer would make the only command the group itself


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
    """Write each skill of the prompt as it is, with overrides in their places.

    Sections that were no skills become one new skill. What a skill cannot hold is named on stderr.
    """
    from ..contrib.skills import export_skills

    for skill in export_skills(load_prompt(target, params, set_, tag), description=description):
        skill.write(to, replace=replace)
        sys.stdout.writelines(f"{to / skill.name / path}\n" for path in sorted(skill.files))
        sys.stderr.writelines(f"wink: {single_line(note)}\n" for note in skill.notes)
