"""The installed package is typed: a checker reads its source instead of assuming `Any`, even where
the root imports a name on first use.
"""

from typing import assert_type

import weakincentives
from weakincentives import Chat, MainLoop, PromptTemplate, Session
from weakincentives.testing import ScriptedAdapter

assert_type(weakincentives.__name__, str)

loop, session = MainLoop(ScriptedAdapter([])), Session()
assert_type(loop, MainLoop)
prompt = PromptTemplate[int](ns="n", key="k").bind()
assert_type(Chat(loop, prompt, session=session).send("Hi").output, int)

assert weakincentives.MainLop  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
