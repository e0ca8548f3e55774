"""The assistant's prompt: its task, and a section for each skill in a folder."""

from dataclasses import dataclass, field
from pathlib import Path

from weakincentives import MarkdownSection, PromptTemplate
from weakincentives.contrib.skills import skills

__all__ = ["FOLDER", "Answer", "assistant"]

FOLDER = Path(__file__).parent / "skills"


@dataclass(frozen=True)
class Answer:
    """The assistant's answer."""

    answer: str = field(
        metadata={"description": "The answer in a few sentences, in the words of the skills."}
    )
    sources: list[str] = field(
        metadata={"description": "Keys of the sections that the answer was taken from."}
    )


def assistant(folder: Path = FOLDER) -> PromptTemplate[Answer]:
    """Returns the assistant for the skills in `folder`.

    Each skill's summary is its description; its headings open one by one.
    """
    return PromptTemplate[Answer](
        ns="examples/skills",
        key="assistant",
        sections=[
            MarkdownSection(
                title="Role",
                template="You answer questions from the skills below and from nothing else.",
            ),
            *skills(folder, split=1),
            MarkdownSection(
                title="Answer",
                template="Open the skill that fits, and of its parts only those that you need. "
                "Close what did not help. Name the sections that you used.",
            ),
        ],
        closable=True,
    )
