"""W12: a chat of 1,000 turns with a tool call each, in the formats of both OpenAI APIs.

Nothing is sent. The floor of a late turn is an early one.
"""

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from time import process_time

from benchmarks.captured import APIS, Captured, fresh_share, talk
from benchmarks.measure import MICRO, SINGLE_ROUND, Row
from benchmarks.w6_disclosure import Entries, Query, look
from weakincentives.adapters.codec import Codec
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.evaluation.conversation import Conversation
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool

TURNS = 1_000
TENTH = TURNS // 10
BLOCK = 10
PROMPT = PromptTemplate[None](
    ns="bench",
    key="chat",
    sections=[
        MarkdownSection(
            title="Task",
            template="Answer questions about accounts. " * 20,
            tools=[Tool[Query, Entries](name="look", description="Looks.", handler=look)],
        )
    ],
).bind()


def cpu_of_tenths(codec: type[Codec]) -> dict[str, float]:
    """Returns the CPU microseconds of a turn in the first tenth and in the last.

    A short and a long chat take turns.
    """
    adapters = {"floor": Captured(codec), "ours": Captured(codec)}
    chats = {
        name: talk(adapters[name], PROMPT, turns).conversation
        for name, turns in (("floor", 1), ("ours", TURNS - TENTH))
    }
    spans: dict[str, list[float]] = {name: [] for name in chats}
    gc.collect()
    for _ in range(TENTH // BLOCK):
        for name, adapter in adapters.items():
            times, chats[name] = talk(adapter, PROMPT, BLOCK, chats[name])
            spans[name] += [(after - before) * MICRO for before, after in pairwise(times)]
    return {name: median(costs) for name, costs in spans.items()}


def memory_of_tenths(codec: type[Codec]) -> dict[str, float]:
    """Returns the kilobytes that a turn in the first tenth leaves behind, and one in the last."""
    adapter = Captured(codec)
    gc.collect()
    tracemalloc.start()
    traced = [tracemalloc.get_traced_memory()[0]]
    conversation = None
    for turns in (TENTH, TURNS - 2 * TENTH, TENTH):
        conversation = talk(adapter, PROMPT, turns, conversation).conversation
        gc.collect()
        traced.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    start, early, late, end = traced
    return {"floor": (early - start) / TENTH / 1e3, "ours": (end - late) / TENTH / 1e3}


def json_of_lengths() -> dict[str, float]:
    """Returns the CPU µs per turn of a JSON round trip, after a tenth of the turns and all."""
    costs: dict[str, float] = {}
    for name, turns in (("floor", TENTH), ("ours", TURNS)):
        conversation = talk(Captured(ResponsesCodec), PROMPT, turns).conversation
        spans: list[float] = []
        for _ in range(1 if SINGLE_ROUND else 5):
            started = process_time()
            assert Conversation.from_json(conversation.to_json()) == conversation
            spans.append((process_time() - started) * MICRO / turns)
        costs[name] = median(spans)
    return costs


def rows() -> Iterator[Row]:
    for codec, api in APIS.items():
        tenths = f"turn of the last tenth of {TURNS:,}, {api} (floor: of the first)"
        yield Row("W12", tenths, "µs", cpu_of_tenths(codec), 1.2)
        new, fresh = fresh_share(codec, PROMPT, TENTH)
        costs = {"floor": new, "ours": fresh}
        yield Row("W12", f"{TENTH} turns, {api}, fresh (floor: new)", "k chars", costs, 1.1)
    kept = f"kept by a turn of the last tenth of {TURNS:,} (floor: of the first)"
    yield Row("W12", kept, "kB", memory_of_tenths(ResponsesCodec), 1.2)
    text = f"to JSON and back, per turn, {TURNS:,} turns (floor: {TENTH})"
    yield Row("W12", text, "µs", json_of_lengths(), 1.3)
