"""Durable agents: a prompt, the loop that runs it, and the version that its runs require."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ... import serde
from ...adapters.core import LoopAdapter
from ...evaluation.main_loop import MainLoop
from ...prompt.template import Prompt
from ...prompt.tool import AnyTool
from ...runtime.session import Session

__all__ = ["AnyAgent", "DurableAgent", "combined_version", "durable"]

# Part of an agent's version, so that code with a different log format does not continue its runs.
_LOG_FORMAT = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableAgent[Out]:
    """A prompt and the loop that runs it, created by `durable`; its runs can be started."""

    main_loop: MainLoop
    adapter: LoopAdapter
    prompt: Callable[[], Prompt[Out]]
    types: frozenset[type[object]]
    session: Callable[[str], Session]

    @property
    def version(self) -> str:
        """Changes with texts, tools and the log format; runs of other versions cannot continue."""
        return _digest(
            _LOG_FORMAT,
            self.prompt().descriptor.hash,
            [(tool.name, tool.effect, *_approval(tool)) for tool in self.tools],
        )

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """All the prompt's tools, including those in closed sections."""
        return tuple(
            [tool for node in self.prompt().template.registry.sections for tool in node.tools]
        )


type AnyAgent = DurableAgent[Any]  # Any: agents with any output type


def _session(run_id: str) -> Session:
    return Session(session_id=run_id)


def durable[Out](
    main_loop: MainLoop,
    prompt: Callable[[], Prompt[Out]],
    *,
    types: Collection[type[object]] = (),
    session: Callable[[str], Session] = _session,
) -> DurableAgent[Out]:
    """Returns an agent whose runs survive a crash.

    `prompt` creates the prompt of each run, for example `template.bind`. `session` creates its
    session and registers the application's reducers. Session state can contain values of the given
    `types`, of types that the prompt declares, and of types that have reducers. Raises `TypeError`
    for an adapter whose runs cannot be logged.
    """
    adapter = main_loop.adapter
    if not isinstance(adapter, LoopAdapter) or type(adapter).evaluate is not LoopAdapter.evaluate:
        raise TypeError(
            f"cannot record {type(adapter).__name__} because it runs its own loop; use a "
            "LoopAdapter"
        )
    return DurableAgent(
        main_loop=main_loop, adapter=adapter, prompt=prompt, types=frozenset(types), session=session
    )


def combined_version(agents: Mapping[str, AnyAgent]) -> str:
    """Returns the combined version of all agents in a process."""
    return _digest([(name, agent.version) for name, agent in sorted(agents.items())])


def _approval(tool: AnyTool) -> list[str]:
    """Returns when calls need approval, which affects the log; `[]` if they never need it."""
    match tool.approval:
        case None:
            return []
        case str() as mode:
            return [mode]
        case _:
            return ["selected"]


def _digest(*parts: object) -> str:
    return sha256(serde.dump_json(parts).encode()).hexdigest()[:16]
