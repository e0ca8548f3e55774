"""Random scripts through real adapters for as long as you say: `python tests/soak.py --minutes 60
chat litellm …`.

Half of an adapter's runs are scenarios of the conformance suite, played in a random way and checked
as the suite checks them. The others are scripts composed of turns from these scenarios, which must
end like a run of the scripted adapter. The runs of `chats` come from `soak_chats`: several turns
over two SDKs, with fallbacks, an MCP server, approvals, nested runs and compaction. Once a minute,
a line reports the process's resources. The test fails if memory, threads, open files, sockets,
children or temporary files have grown at the end, or if a run has a wrong result. Linux only: it
reads /proc.
"""

import gc
import logging
import os
import random
import socket
import sys
import tempfile
import threading
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from time import monotonic, sleep

from support.scripted_server import ScriptedServer
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.testing import say
from weakincentives.testing.conformance import (
    ConformanceError,
    Harness,
    ScriptedHarness,
    Way,
    check,
    run,
    scenarios,
)
from weakincentives.testing.scenarios import Capability, Scenario

type Ways = tuple[Way, ...]

ALL_WAYS: Ways = (
    "execute",
    "execute_async",
    "evaluate",
    "evaluate_async",
    "stream",
    "stream_async",
)
ENDS = ("text", "error", "usage", "notes", "book", "opened", "visible", "tools", "answers")
GROWTH, NOISE = 1.05, 2  # allowed between the medians of the second and the last quarter
MOST_TURNS = 12


@dataclass(frozen=True)
class Subject:
    """A harness, the scenarios it can play, and the ways to run it."""

    name: str
    harness: Harness
    pool: tuple[Scenario, ...]
    ways: Ways


@dataclass(frozen=True)
class Chats:
    """Chats like those of an application; `play` returns the facts of one chat."""

    name: str
    play: Callable[[random.Random], Iterable[str]]


def subjects(wanted: list[str]) -> list[Subject]:
    """Returns subjects by name; each imports the tests of its adapter, and so the adapter's SDK."""
    made: dict[str, Callable[[], Subject]] = {
        "scripted": lambda: _of("testing.test_conformance", "scripted"),
        "restarts": lambda: _of("testing.test_conformance", "scripted, starting again"),
        "chat": lambda: _of("testing.test_conformance", "chat"),
        "responses": lambda: _of("testing.test_conformance", "responses"),
        "anthropic": lambda: _of("adapters.anthropic.test_anthropic_conformance", "inline"),
        "litellm": lambda: _of("adapters.litellm.test_litellm_conformance", "openai"),
        "litellm-anthropic": lambda: _of("adapters.litellm.test_litellm_conformance", "anthropic"),
        "claude": lambda: _claude("RESTARTS"),
        "claude-injects": lambda: _claude("INJECTS"),
    }
    return [made[name]() for name in wanted]


def _of(module: str, name: str) -> Subject:
    tests = import_module(module)
    harness: Harness = tests.HARNESSES[name]
    lost: set[str] = getattr(tests, "LOST_IN_STREAMS", set())
    pool = tuple(scenario for scenario in scenarios(harness) if scenario.name not in lost)
    return Subject(f"{module.split('.')[-2]} {name}", harness, pool, ALL_WAYS)


def _claude(name: str) -> Subject:
    tests = import_module("adapters.claude_agent_sdk.test_claude_conformance")
    harness: Harness = getattr(tests, name)
    pool = scenarios(harness)
    return Subject(f"claude {name.lower()}", harness, pool, ("execute", "execute_async"))


def composed(subject: Subject, chance: random.Random) -> Scenario:
    """Returns turns of successful scenarios on one prompt, in any order, and a last message."""
    first = chance.choice([scenario for scenario in subject.pool if _plain(scenario)])
    turns = [
        step
        for scenario in subject.pool
        if _plain(scenario) and scenario.prompt == first.prompt
        for step in scenario.steps
        if isinstance(step, AssistantMessage) and step.tool_calls
    ]
    script: list[AssistantMessage] = []
    for turn, step in enumerate(chance.choices(turns, k=chance.randint(1, MOST_TURNS)), 1):
        calls = [
            replace(call, call_id=f"call_{turn}_{place}")
            for place, call in enumerate(step.tool_calls, 1)
        ]
        script.append(replace(step, tool_calls=tuple(calls)))
    return replace(first, name="composed", steps=(*script, say("done")), expect={})


def _plain(scenario: Scenario) -> bool:
    plain = (scenario.config, scenario.seconds, scenario.budget) == (
        RunConfig(),
        None,
        None,
    )
    replies = [step for step in scenario.steps if isinstance(step, AssistantMessage)]
    asks = any("ask" in call.arguments for step in replies for call in step.tool_calls)
    return (
        plain and not scenario.expect.get("error") and "output" not in scenario.expect and not asks
    )


def played(subject: Subject, chance: random.Random) -> str:
    """Plays one run and returns its description. Raises `ConformanceError` if it fails."""
    if chance.random() < 0.5:
        scenario = chance.choice(subject.pool)
        goes_on = subject.ways[:2]  # without MainLoop, a restart ends the evaluation
        check(
            scenario,
            subject.harness,
            chance.choice(goes_on if "V" in _events(scenario, subject) else subject.ways),
        )
        return "scenario"
    scenario = composed(subject, chance)
    way = chance.choice(subject.ways[:2])
    got = run(scenario, subject.harness, way)
    wanted = run(
        scenario, ScriptedHarness(inject=Capability.INJECT in subject.harness.capabilities)
    )
    for name in ENDS:
        if name == "usage" and Capability.USAGE not in subject.harness.capabilities:
            continue
        if getattr(got, name) != getattr(wanted, name):
            raise ConformanceError(
                f"{name}: {getattr(got, name)!r}, not {getattr(wanted, name)!r}, {way}: "
                f"{scenario.steps}"
            )
    return "composed"


def _events(scenario: Scenario, subject: Subject) -> str:
    inject = Capability.INJECT in subject.harness.capabilities
    if scenario not in _KNOWN.setdefault(inject, {}):
        _KNOWN[inject][scenario] = run(scenario, ScriptedHarness(inject=inject)).events
    return _KNOWN[inject][scenario]


_KNOWN: dict[bool, dict[Scenario, str]] = {}


def _play_chat() -> Callable[[random.Random], Iterable[str]]:
    play: Callable[[random.Random], Iterable[str]] = import_module("support.soak_chats").play
    return play


def footprint(temporary: Path) -> dict[str, float]:
    """Returns the process's current resources, with memory in megabytes."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    opened = list(_links())
    return {
        "memory": next(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")
        )
        / 1024,
        "threads": threading.active_count(),
        "files": sum(not name.startswith("socket:") for name in opened),
        "sockets": sum(name.startswith("socket:") for name in opened),
        "children": sum(map(_children, Path("/proc/self/task").iterdir())),
        "temporary files": len(list(temporary.rglob("*"))),
    }


def _children(thread: Path) -> int:
    try:
        return len((thread / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
        return 0


def _links() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            yield str(link.readlink())
        except FileNotFoundError:  # the file descriptor of the listed folder itself
            continue


def verdict(seen: Sequence[tuple[int, Mapping[str, float]]]) -> list[str]:
    """Returns what grew between the second quarter of the runs and the last one.

    `seen` has the number of runs before each footprint, because a busy machine has few runs in an
    hour.
    """
    total, wrong = seen[-1][0], list[str]()

    def quarter(number: int) -> list[Mapping[str, float]]:
        bounds = total * (number - 1) / 4, total * number / 4
        return [sample for count, sample in seen if bounds[0] < count <= bounds[1]]

    for name in seen[0][1]:
        before = median([sample[name] for sample in quarter(2) or [seen[0][1]]])
        after = median([sample[name] for sample in quarter(4)])
        if after > before * GROWTH + (0 if name == "memory" else NOISE):
            wrong.append(f"{name} grew from {before:g} to {after:g}")
    return wrong


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="+")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--runs", type=int, default=0, help="at least, whatever time they take")
    parser.add_argument("--every", type=float, default=60, help="seconds between two looks")
    parser.add_argument(
        "--pause", type=float, default=0, help="seconds between two runs, where others work too"
    )
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    logging.disable(logging.CRITICAL)  # failures are part of the scripts
    # SDKs keep clients by address, so all servers have one
    with socket.create_server(("127.0.0.1", 0)) as probe:
        ScriptedServer.port = probe.getsockname()[1]
    chance = random.Random(given.seed)
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC_", "CLAUDE_", "OPENAI_")):
            del os.environ[name]
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        os.environ["HOME"] = tempfile.mkdtemp()
        all_subjects: list[Subject | Chats] = [
            *subjects([name for name in given.subjects if name != "chats"]),
            *[Chats(name, _play_chat()) for name in given.subjects if name == "chats"],
        ]
        begun, looks, count = monotonic(), 0, 0
        seen: list[tuple[int, Mapping[str, float]]] = []
        runs: Counter[str] = Counter()
        failures: list[str] = []
        while (now := monotonic() - begun) < given.minutes * 60 or count < given.runs:
            count += 1
            subject = chance.choice(all_subjects)
            sleep(given.pause)
            try:
                if isinstance(subject, Chats):
                    runs.update([f"{subject.name} {kind}" for kind in subject.play(chance)])
                else:
                    runs[f"{subject.name} {played(subject, chance)}"] += 1
            except AssertionError as error:
                failures.append(f"{subject.name}: {error}")
                print(failures[-1], flush=True)
            if now >= (looks + 1) * given.every:
                looks += 1
                held = footprint(Path(folder))
                seen.append((count, held))
                figures = ", ".join(f"{name} {value:.0f}" for name, value in held.items())
                print(f"{now / 60:5.1f} min, {count} runs: {figures}", flush=True)
        left = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
        grown = verdict(seen) if seen else ["nothing was looked at: --minutes is less than --every"]
    print(dict(runs), f"{len(failures)} failed", f"left behind: {left[-20:]}", *grown, sep="\n")
    return 1 if failures or grown else 0


if __name__ == "__main__":
    sys.exit(main())
