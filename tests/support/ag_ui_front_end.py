"""A front end that follows AG-UI 1.0 to the letter and checks that the producer does too."""

import json
from collections.abc import Iterable
from typing import Any

from ag_ui import core as ag_ui
from pydantic import TypeAdapter

type Json = dict[str, Any]  # Any: JSON that tests index into

PARSER: TypeAdapter[ag_ui.Event] = TypeAdapter(ag_ui.Event)


class FrontEnd:
    """A front end that follows AG-UI 1.0 to the letter and asserts that the producer does too."""

    def __init__(self, request: ag_ui.RunAgentInput | None = None) -> None:
        self.messages: list[Json] = [
            as_json(message) for message in (request.messages if request else [])
        ]
        self.state = "before"
        self.last: Json = {}
        self.shared_state: object = request.state if request else None
        self._texts: set[str] = set()
        self._thoughts: set[str] = set()  # open spans of reasoning
        self._thought: set[str] = set()  # open reasoning messages
        self._calls: set[str] = set()
        self._unanswered: set[str] = set()

    def read_all(self, events: Iterable[ag_ui.Event]) -> None:
        for event in events:
            self.read(event.model_dump_json(by_alias=True))

    def read(self, line: str) -> None:
        PARSER.validate_json(line)  # the package's own types accept it
        event = json.loads(line)
        self.last, kind = event, event["type"]
        if kind == "RUN_STARTED":
            assert self.state != "open"
            self.state = "open"
            return
        assert self.state == "open", kind
        match kind.split("_"):
            case ["RUN", _]:
                assert not self._texts | self._calls | self._thoughts | self._thought
                if event.get("outcome", {}).get("type") != "interrupt":
                    assert not self._unanswered
                self.state = "ended"
            case ["REASONING", part]:
                assert not self._texts | self._thought
                (self._thoughts.add if part == "START" else self._thoughts.remove)(
                    event["messageId"]
                )
            case ["REASONING", "MESSAGE", part]:
                self._read_thought(part, event)
            case ["TEXT", "MESSAGE", part]:
                assert not self._thoughts  # ended before text starts
                self._read_text(part, event)
            case ["TOOL", "CALL", part]:
                self._read_call(part, event)
            case ["ACTIVITY", "SNAPSHOT"]:
                activity = {"id": event["messageId"], "role": "activity"}
                names = "activityType", "content"
                self.messages.append(activity | {name: event[name] for name in names})
            case ["STATE", "SNAPSHOT"]:
                self.shared_state = event["snapshot"]
            case ["STATE", "DELTA"]:
                self.shared_state = apply_patch(self.shared_state, event["delta"])
            case ["MESSAGES", "SNAPSHOT"]:
                self._reconcile(event["messages"])
            case _:
                raise AssertionError(kind)

    def _read_text(self, part: str, event: Json) -> None:
        message_id = event["messageId"]
        match part:
            case "START":
                assert all(message["id"] != message_id for message in self.messages)
                self._texts.add(message_id)
                self.messages.append({"id": message_id, "role": "assistant", "content": ""})
            case "CONTENT":
                assert message_id in self._texts
                assert event["delta"]  # older versions reject empty ones
                self._message(message_id)["content"] += event["delta"]
            case _:
                self._texts.remove(message_id)

    def _read_thought(self, part: str, event: Json) -> None:
        message_id = event["messageId"]
        match part:
            case "START":
                assert self._thoughts
                assert all(message["id"] != message_id for message in self.messages)
                self._thought.add(message_id)
                message = {"id": message_id, "role": event["role"], "content": ""}
                self.messages.append(message)
            case "CONTENT":
                assert message_id in self._thought
                assert event["delta"]
                self._message(message_id)["content"] += event["delta"]
            case _:
                self._thought.remove(message_id)

    def _read_call(self, part: str, event: Json) -> None:
        call_id = event["toolCallId"]
        match part:
            case "START":
                parent = event["parentMessageId"]
                assert all(call["id"] != call_id for call in self._all_calls())
                self._calls.add(call_id)
                self._unanswered.add(call_id)
                if all(message["id"] != parent for message in self.messages):
                    self.messages.append({"id": parent, "role": "assistant"})
                function = {"name": event["toolCallName"], "arguments": ""}
                call = {"id": call_id, "type": "function", "function": function}
                self._message(parent).setdefault("toolCalls", []).append(call)
            case "ARGS":
                assert call_id in self._calls
                [call] = [call for call in self._all_calls() if call["id"] == call_id]
                call["function"]["arguments"] += event["delta"]
            case "END":
                self._calls.remove(call_id)
            case _:
                assert call_id in [call["id"] for call in self._all_calls()]
                assert call_id not in [item["toolCallId"] for item in self.of("tool")]
                self._unanswered.discard(call_id)
                content = event["content"]
                answer = {"id": event["messageId"], "role": "tool", "content": content}
                answer["toolCallId"] = call_id
                if "metadata" in event:
                    answer["error"] = content
                self.messages.append(answer)

    def _reconcile(self, snapshot: list[Json]) -> None:
        new = {message["id"]: message for message in snapshot}
        declared = {message["role"] for message in snapshot} | {"user", "assistant", "tool"}
        self.messages = [
            new.pop(message["id"], message)
            for message in self.messages
            if message["id"] in new or message["role"] not in declared
        ]
        self.messages += new.values()

    def _message(self, message_id: str) -> Json:
        [message] = [message for message in self.messages if message["id"] == message_id]
        return message

    def _all_calls(self) -> list[Json]:
        return [call for message in self.messages for call in message.get("toolCalls", [])]

    @property
    def text(self) -> str:
        return "|".join([message.get("content") or "" for message in self.of("assistant")])

    def of(self, role: str) -> list[Json]:
        return [message for message in self.messages if message["role"] == role]


def apply_patch(document: Any, operations: list[Json]) -> Any:
    """Applies a JSON patch as RFC 6902 defines it; fails for a path that does not exist."""
    for operation in operations:
        kind, keys = operation["op"], operation["path"].split("/")
        value = operation["value"]
        if keys == [""]:
            document = value
            continue
        assert keys.pop(0) == ""
        *parents, last = [key.replace("~1", "/").replace("~0", "~") for key in keys]
        target = document
        for key in parents:
            target = target[int(key)] if isinstance(target, list) else target[key]
        if isinstance(target, list):
            index = len(target) if last == "-" else int(last)
            assert 0 <= index < len(target) + (kind == "add")
            target[index : index + (kind == "replace")] = [value]
        else:
            assert kind == "add" or (kind == "replace" and last in target)
            target[last] = value
    return document


def as_json(message: ag_ui.Message) -> Json:
    found: Json = message.model_dump(mode="json", by_alias=True)
    return found
