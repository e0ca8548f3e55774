"""Shows a run live: prints the outline of the rendered prompt, and the events of the run."""

import json
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from weakincentives import serde
from weakincentives.prompt import RenderedPrompt
from weakincentives.runtime.events import (
    AnswerRejected,
    EventBus,
    ProviderCalled,
    ToolInvoked,
    ToolsInjected,
)

__all__ = ["Watch", "print_outline"]


# Any: prompts with any output type
def print_outline(rendered: RenderedPrompt[Any], console: Console) -> None:
    """Prints the tools, and each section with its length in characters."""
    tools = ", ".join(tool.name for tool in rendered.tools)
    tree = Tree(f"[bold]Prompt[/] {len(rendered.text):,} characters, tools: {tools}")
    branches: dict[tuple[str, ...], Tree] = {(): tree}
    for (node, visibility), span in zip(rendered.sections.items(), rendered.spans, strict=True):
        label = f"{node.number}. {escape(node.section.title)}"
        size = f"[dim]{visibility.value}, {span.end - span.start:,}[/]"
        branches[node.path] = branches[node.path[:-1]].add(f"{label} {size}")
    console.print(tree)


class Watch:
    """Prints turns, tool calls, injected tools and rejected answers.

    `state` returns the state that the tools change, as text. If it is given, a line after each
    failed call says whether that state was rolled back.
    """

    def __init__(self, console: Console, state: Callable[[], str] | None = None) -> None:
        self._console, self._state = console, state
        self._before = state() if state else ""

    def attach(self, bus: EventBus) -> None:
        """Subscribes to the events of `bus`."""
        bus.subscribe(ProviderCalled, self._print_turn)
        bus.subscribe(ToolInvoked, self._print_call)
        bus.subscribe(ToolsInjected, self._print_tools)
        bus.subscribe(AnswerRejected, self._print_rejection)

    def _print_turn(self, event: ProviderCalled) -> None:
        calls = f"{event.tool_calls} tool call{'' if event.tool_calls == 1 else 's'}"
        step = event.error or (calls if event.tool_calls else "answer")
        costs = f"{event.usage.total_tokens:,} tokens, {event.seconds:.2f} s"
        self._print(f"[bold cyan]turn {event.turn}[/] {escape(step)}", costs)

    def _print_call(self, event: ToolInvoked) -> None:
        params = serde.dump(event.params)
        arguments = "" if params is None else json.dumps(params, ensure_ascii=False)
        call = f"[bold]{escape(event.name)}[/] {escape(arguments)}"
        answer = escape(" ".join(event.content.split()))
        if event.success:
            self._print(f"  [green]✓[/] {call}", answer)
        else:
            self._print(f"  [red]✗[/] {call}")
            self._print(f"    [red]{answer}[/]")
        if self._state is not None:
            before, self._before = self._before, self._state()
            if not event.success:
                extent = " to the byte" if self._before == before else ", but NOT ALL"
                self._print(f"    [yellow]rolled back[/]{extent}")

    def _print_tools(self, event: ToolsInjected) -> None:
        section = f"  [yellow]+[/] tools from [bold]{escape(event.section_key)}[/]"
        self._print(section, ", ".join(event.tool_names))

    def _print_rejection(self, event: AnswerRejected) -> None:
        self._print(f"  [red]✗ {escape(' '.join(event.reason.split()))}[/]")

    def _print(self, line: str, detail: str = "") -> None:
        self._console.print(
            f"{line} [dim]{detail}[/]", no_wrap=True, overflow="ellipsis", crop=True
        )
