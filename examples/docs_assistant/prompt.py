"""The assistant's prompt: its sections, its two tools and its typed answer.

The tools get the documents as a resource, so the template is a constant, built and checked once.
"""

from dataclasses import dataclass, field

from weakincentives import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)

from .library import Library

__all__ = ["ASSISTANT", "Answer", "assistant"]


@dataclass(frozen=True)
class Project:
    """The documented project, and a list of its documents."""

    name: str
    catalogue: str


@dataclass(frozen=True)
class Answer:
    """The assistant's answer."""

    answer: str = field(
        metadata={"description": "The answer in a few sentences, in the documents' own words."}
    )
    sources: list[str] = field(
        metadata={"description": "Paths of the documents that the answer was taken from."}
    )


@dataclass(frozen=True)
class SearchParams:
    query: str = field(metadata={"description": "What to look for, in a few telling words."})
    limit: int = field(default=5, metadata={"description": "How many passages to give."})


@dataclass(frozen=True)
class Hit:
    path: str
    heading: str
    text: str


@dataclass(frozen=True)
class Hits:
    hits: list[Hit]


@dataclass(frozen=True)
class ReadParams:
    path: str = field(
        metadata={"description": "Path of a document, as a search or the catalogue gives it."}
    )


@dataclass(frozen=True)
class Document:
    path: str
    text: str

    def render(self) -> str:
        """Returns the document's source, below its path."""
        return f"{self.path}\n\n{self.text}"


def search_docs(params: SearchParams, *, context: ToolContext) -> ToolResult[Hits]:
    """Search the documentation for passages about something."""
    passages = context.resources.get(Library).search(params.query, max(1, min(params.limit, 10)))
    hits = [Hit(passage.path, " > ".join(passage.headings), passage.text) for passage in passages]
    return ToolResult(message=f"{len(hits)} passages.", value=Hits(hits))


def read_doc(params: ReadParams, *, context: ToolContext) -> ToolResult[Document]:
    """Read one document of the documentation whole."""
    library = context.resources.get(Library)
    text = library.documents.get(params.path)
    if text is None:
        paths = ", ".join(library.documents)
        message = f"No document {params.path!r}. There are: {paths}."
        return ToolResult(message=message, success=False)
    return ToolResult(message=f"{library.title(params.path)}.", value=Document(params.path, text))


ASSISTANT = PromptTemplate[Answer](
    ns="examples/docs",
    key="assistant",
    sections=[
        MarkdownSection[Project](
            title="Role",
            template=(
                "You answer questions about $name from its own documentation and from nothing else."
            ),
        ),
        MarkdownSection(
            title="Rules",
            template="Look the answer up before you give it.",
            children=[
                MarkdownSection(
                    title="Sources", template="Name each document that you took a statement from."
                ),
                MarkdownSection(
                    title="Gaps",
                    template="Say so when the documentation does not answer the question.",
                ),
            ],
        ),
        MarkdownSection[Project](  # closed at first: its tools arrive when the model opens it
            title="Documentation",
            key="documentation",
            summary=(
                "The documentation of $name, with tools to search it and to read its documents."
            ),
            template="Search first; read a document whole when a passage is not enough.",
            visibility=SectionVisibility.SUMMARY,
            tools=[
                Tool(name="search_docs", handler=search_docs),
                Tool(name="read_doc", handler=read_doc),
            ],
            children=[MarkdownSection[Project](title="Catalogue", template="$catalogue")],
        ),
        MarkdownSection(title="Answer", template="Answer in a few sentences."),
    ],
)


def assistant(library: Library) -> Prompt[Answer]:
    """Returns the assistant for the documents in `library`; questions are sent as messages."""
    catalogue = "\n".join(f"- `{path}`: {library.title(path)}" for path in library.documents)
    return ASSISTANT.bind(Project("weakincentives", catalogue), resources={Library: library})
