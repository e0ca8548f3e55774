"""Shows a run as it happens: a subscriber that prints events, and the outline of a rendered prompt."""

import json
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from weakincentives import serde
from weakincentives.prompt import RenderedPrompt
from weakincentives.runtime.events import EventBus, ProviderCalled, ToolInvoked, ToolsInjected

__all__ = ["Watch", "outline"]


# Any: prompts of every output
def outline(rendered: RenderedPrompt[Any], console: Console) -> None:
    """Prints the sections with what each costs in characters, and the tools."""
    tree = Tree(
        f"[bold]Prompt[/] {len(rendered.text):,} characters, tools: {', '.join(t.name for t in rendered.tools)}"
    )
    branches: dict[tuple[str, ...], Tree] = {(): tree}
    for (node, visibility), span in zip(rendered.sections.items(), rendered.spans, strict=True):
        label = f"{node.number}. {escape(node.section.title)} [dim]{visibility.value}, {span.end - span.start:,}[/]"
        branches[node.path] = branches[node.path[:-1]].add(label)
    console.print(tree)


class Watch:
    """Prints turns, tool calls and tools that arrive.

    With `probe`, a text of what the tools work on, it also says whether a failed call left that as
    it was.
    """

    def __init__(self, console: Console, probe: Callable[[], str] | None = None) -> None:
        self._console, self._probe = console, probe
        self._before = probe() if probe else ""

    def attach(self, bus: EventBus) -> None:
        """Listens to `bus` from now on."""
        bus.subscribe(ProviderCalled, self._turn)
        bus.subscribe(ToolInvoked, self._tool)
        bus.subscribe(ToolsInjected, self._tools)

    def _turn(self, event: ProviderCalled) -> None:
        calls = f"{event.tool_calls} tool call{'' if event.tool_calls == 1 else 's'}"
        what = event.error or (calls if event.tool_calls else "answer")
        self._line(
            f"[bold cyan]turn {event.turn}[/] {escape(what)}",
            f"{event.usage.total_tokens:,} tokens, {event.seconds:.2f} s",
        )

    def _tool(self, event: ToolInvoked) -> None:
        arguments = (
            "" if event.params is None else json.dumps(serde.dump(event.params), ensure_ascii=False)
        )
        mark = "[green]✓[/]" if event.success else "[red]✗[/]"
        answer = escape(" ".join(event.content.split()))
        self._line(
            f"  {mark} [bold]{escape(event.name)}[/] {escape(arguments)}",
            answer if event.success else "",
        )
        if not event.success:
            self._line(f"    [red]{answer}[/]", "")
        if self._probe is not None:
            before, self._before = self._before, self._probe()
            if not event.success:
                same = self._before == before
                self._line(
                    f"    [yellow]rolled back[/]{' to the byte' if same else ', but NOT ALL'}", ""
                )

    def _tools(self, event: ToolsInjected) -> None:
        self._line(
            f"  [yellow]+[/] tools from [bold]{escape(event.section_key)}[/]",
            ", ".join(event.tool_names),
        )

    def _line(self, head: str, tail: str) -> None:
        self._console.print(f"{head} [dim]{tail}[/]", no_wrap=True, overflow="ellipsis", crop=True)
