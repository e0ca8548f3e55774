"""A prompt author's files, run as the author would: a module with a template, its tests, and the
plugin.

pytester forgets the modules that a run in this process loads. Modules whose classes are compared
with classes of other modules must not be loaded twice, so they are loaded here.
"""

from importlib import import_module

import pytest

__all__ = ["HEAD", "PLUGIN", "SHOP", "Author"]

SHOP = '''
from dataclasses import dataclass, field

from weakincentives import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)


@dataclass(frozen=True)
class Refund:
    order_id: str = field(metadata={"description": "The number on the invoice."})


def refund(params: Refund, *, context: ToolContext) -> ToolResult[Refund]:
    """Pay an order back."""
    return ToolResult(message="Paid back.", value=params)


template = PromptTemplate(
    ns="shop",
    key="support",
    sections=[
        MarkdownSection(title="Task", template="Help the customer."),
        MarkdownSection(
            title="Refunds",
            summary="When and how to pay back.",
            template="Refund within 30 days.",
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool(name="refund", handler=refund)],
            children=[MarkdownSection(title="Food", template="Food: never.")],
        ),
        MarkdownSection(
            title="Complaints",
            summary="When they are angry.",
            template="Stay calm.",
            visibility=SectionVisibility.SUMMARY,
        ),
    ],
)
'''
HEAD = """
import asyncio
import socket

import pytest

from shop import template
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.runtime.events import *
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.runtime.session import Session
from weakincentives.testing import call, say

open_refunds = call(("read_section", {"section_key": "refunds"}))
pay = call(("refund", {"order_id": "7"}))
"""

for _name in (
    "pydantic.json_schema",
    "weakincentives.prompt.overrides.apply",
    "weakincentives.prompt.overrides.store",
    "weakincentives.evaluation.main_loop",
    "weakincentives.testing.disclosure_coverage",
    "weakincentives.testing.fixtures",
    "weakincentives.network_guard",
):
    import_module(_name)

# Named by its module, so that it is also found in a bare checkout.
PLUGIN = ("-p", "no:weakincentives", "-p", "weakincentives.pytest_plugin")


class Author:
    """Runs pytest on a test file next to `shop.py`, in this process."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        pytester.makepyfile(shop=SHOP)

    def runs(self, tests: str, *options: str) -> pytest.RunResult:
        """Runs `tests`, which can omit their imports."""
        self.pytester.makepyfile(test_shop=HEAD + tests)
        return self.pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", *options)
