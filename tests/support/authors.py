"""What a prompt author has: a module with a template, tests of it, and the plugin, run as they
would run them.

pytester forgets the modules that a run within this process loads. Those whose classes meet those of
others must not be loaded twice, so they are loaded here.
"""

from importlib import import_module

import pytest

__all__ = ["SHOP", "Author"]

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

# By its module, so that a bare checkout has it too.
PLUGIN = ("-p", "no:weakincentives", "-p", "weakincentives.pytest_plugin")


class Author:
    """Runs pytest over a file of tests next to `shop.py`, in this process."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        pytester.makepyfile(shop=SHOP)

    def runs(self, tests: str, *options: str) -> pytest.RunResult:
        """`tests` need no imports."""
        self.pytester.makepyfile(test_shop=HEAD + tests)
        return self.pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", *options)
