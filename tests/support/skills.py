"""Folders of skills for tests, and the reference validator."""

from pathlib import Path

from weakincentives.contrib.skills import Skill, read_skill

__all__ = ["SHIPPED", "front_matter", "refusals", "skill", "write_skill"]

SHIPPED = Path(__file__).parents[2] / ".skills"
"""The skills that `tools/fetch_skills.py` has fetched, each in the folder of its package."""


def front_matter(
    name: str = "pdf", description: str = "Work with PDF files.", more: str = ""
) -> str:
    return f"---\nname: {name}\ndescription: {description}\n{more}---\n"


def write_skill(
    folder: Path, source: str | bytes | None = None, files: dict[str, str | bytes] | None = None
) -> Path:
    """Writes a skill to `folder`, by default a short one named like the folder; returns it."""
    if source is None:
        source = front_matter(folder.name) + "\nRead the file.\n"
    for path, content in {"SKILL.md": source, **(files or {})}.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def skill(folder: Path, source: str | bytes) -> Skill:
    return read_skill(write_skill(folder, source))


def refusals(folder: Path) -> list[str]:
    """Returns the reference validator's problems with the skill in `folder`."""
    from skills_ref.validator import validate  # not always installed

    return list(validate(folder))
