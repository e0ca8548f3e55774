"""The cleaner's prompt: its sections with their tools, and its typed answer."""

from dataclasses import dataclass, field

from weakincentives import MarkdownSection, PromptTemplate, Tool

from .tools import Change, Drop, convert_column, drop_rows, set_cell, show_rows

__all__ = ["CLEANER", "Conclusion", "Table"]


@dataclass(frozen=True, slots=True)
class Table:
    """The table to clean."""

    name: str
    columns: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The model's summary, without any facts: the changes are in the session."""

    summary: str = field(
        metadata={"description": "What was wrong with the data, in one or two sentences."}
    )
    doubts: list[str] = field(
        metadata={"description": "What the user should look at; empty if nothing."}
    )


CLEANER = PromptTemplate[Conclusion](
    ns="examples/data",
    key="cleaner",
    sections=[
        MarkdownSection(
            title="Role",
            template=(
                "You clean a table, so that each column holds values of one kind, "
                "written in one way."
            ),
            tools=[Tool(name="show_rows", handler=show_rows)],
        ),
        MarkdownSection(
            title="Mending",
            template=(
                "Convert each column to the kind that most of its cells have. A call that is "
                "refused has changed nothing: read why, and try another way. Mend a cell if its "
                "meaning is clear, and empty it if it says that the value is missing. Never invent "
                "a value."
            ),
            tools=[
                Tool(name="convert_column", handler=convert_column),
                Tool(name="set_cell", handler=set_cell),
            ],
            state=[Change],
        ),
        MarkdownSection(
            title="Dropping",
            template="Drop a row only if it is a duplicate or cannot be used.",
            tools=[Tool(name="drop_rows", handler=drop_rows)],
            state=[Drop],
        ),
        MarkdownSection[Table](
            title="Table", template="The table is $name. Its columns are $columns."
        ),
    ],
)
