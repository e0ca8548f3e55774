"""A small library of documents, and the tools of an agent that answers questions about it."""

import json
from collections.abc import Mapping
from typing import Any

from examples.offline_model import Tool

type Schema = Mapping[str, object]

DOCS = {
    "manual/coffee.md": (
        "# Coffee machine\n\n## Descaling\n\nRun the descaling programme every three months. It "
        "takes 25 minutes.\n\n"
        "## Lamps\n\n| Lamp | Meaning |\n|---|---|\n| red | water tank empty |\n| orange | "
        "descaling due |\n"
    ),
    "rules/leave.md": (
        "# Leave\n\nEverybody has 28 days of paid holiday a year.\n\n## Carrying over\n\nUp to "
        "five days may be "
        "carried into the next year.\n\n## Sickness\n\nFrom the fourth day on, a doctor's note is "
        "needed.\n"
    ),
    "garden.md": (
        "# Tomatoes\n\nPlant out after the last frost.\n\n## Blight\n\nIf plants have "
        "blight:\n\n- remove them\n"
        "- never compost them\n\n```sh\n# compost everything\n```\n"
    ),
    "town/library.md": (
        "# Library\n\nClosed on Mondays.\n\n## Fees\n\n**What does a lost book cost?** Its price. "
        "Late books cost "
        "20 cents a day, at most 10 euros.\n"
    ),
    "ops/deploy.md": (
        "# Deploying\n\nA deploy needs two approvals. Migrations are never reverted: restore the "
        "nightly backup.\n\n"
        "## Secrets\n\nThey are rotated on the first Monday of the month.\n"
    ),
}
QUESTIONS = {
    "How often should the coffee machine be descaled?": ("manual/coffee.md", "every three months"),
    "What does the red lamp mean?": ("manual/coffee.md", "water tank empty"),
    "How many days of holiday can I carry over?": ("rules/leave.md", "five days"),
    "When do I need a doctor's note?": ("rules/leave.md", "fourth day"),
    "Should I compost plants with blight?": ("garden.md", "never compost"),
    "When are tomatoes planted out?": ("garden.md", "last frost"),
    "What do late books cost?": ("town/library.md", "20 cents"),
    "What does a lost book cost?": ("town/library.md", "Its price"),
    "How are migrations reverted?": ("ops/deploy.md", "nightly backup"),
    "Explain how secrets are rotated.": ("ops/deploy.md", "first Monday"),
}


def schema(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
ANSWER = schema(answer=TEXT, sources=TEXTS)
SEARCH = Tool(
    name="search_docs", description="Search the documents.", parameters=schema(query=TEXT)
)
READ = Tool(name="read_doc", description="Read one document.", parameters=schema(path=TEXT))
OPEN = Tool(
    name="read_section",
    description="Read the full content of a summarized section.",
    parameters=schema(section_key=TEXT),
)


def suffix(key: str, tool: str = "read_section") -> str:
    return (
        f'---\n[This section is summarized. To view full content, call `{tool}` with key "{key}".]'
    )


def search(query: str) -> list[dict[str, str]]:
    """Returns the documents that share the most words with the query, each with its best line."""
    words = query.lower().split()

    def shared(text: str) -> int:
        return sum(word in text.lower() for word in words)

    paths = sorted(
        filter(lambda path: shared(DOCS[path]), DOCS), key=lambda path: -shared(DOCS[path])
    )
    return [
        {"path": path, "snippet": max(DOCS[path].splitlines(), key=shared)} for path in paths[:3]
    ]


def run_tool(name: str, arguments: Mapping[str, Any]) -> str:
    match name:
        case "search_docs":
            return f"Found these.\n\n{json.dumps(search(arguments['query']))}"
        case "read_doc":
            return json.dumps({"path": arguments["path"], "text": DOCS[arguments["path"]]})
        case "read_section":
            return "Content of section 'library':\n\nSearch, then read the best documents."
        case _:
            raise AssertionError(name)
