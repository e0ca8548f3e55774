"""How summarized sections are disclosed: which tool opens which section, and the line that tells the model so."""

from enum import Enum

from .registry import SectionNode

__all__ = ["CLOSE_SECTION", "OPEN_SECTIONS", "READ_SECTION", "Disclosure", "disclosure_tool", "summary_suffix"]

CLOSE_SECTION = "close_section"
READ_SECTION = "read_section"
OPEN_SECTIONS = "open_sections"


class Disclosure(Enum):
    """What the model calls to see a summarized section.

    `READ`: `read_section`, which answers with the content; the section's tools arrive in the running conversation
    where the adapter can do that, else evaluation starts again. `OPEN`: `open_sections`, after which evaluation always
    starts again. `SPLIT`: `open_sections` for sections with tools in their subtree, `read_section` for the others.
    """

    READ = "read"
    OPEN = "open"
    SPLIT = "split"


def disclosure_tool(disclosure: Disclosure, node: SectionNode) -> str:
    """The name of the tool that discloses the section at `node`."""
    opens = disclosure is Disclosure.OPEN or (disclosure is Disclosure.SPLIT and node.tools_in_subtree)
    return OPEN_SECTIONS if opens else READ_SECTION


def summary_suffix(disclosure: Disclosure, node: SectionNode) -> str:
    """The rule and the line that end a summarized section; the children named are the direct ones."""
    tool = disclosure_tool(disclosure, node)
    children = ", ".join([child.key for child in node.section.children])
    if not children:
        return f'---\n[This section is summarized. To view full content, call `{tool}` with key "{node.key}".]'
    return (
        f'---\n[This section is summarized. Call `{tool}` with key "{node.key}" to view full content '
        f"including subsections: {children}.]"
    )
