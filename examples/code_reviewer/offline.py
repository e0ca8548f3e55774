"""Replaces the model with a fixed plan of calls. It is not an LLM and judges nothing.

The plan opens the topics one by one and reports the hints from their checks. It knows one fix: to
raise an error that is swallowed.
"""

import json
import re
from functools import partial

from examples.common.models import Offline
from examples.offline_model import Call, Plan, embedded_json, follow

__all__ = ["FIXING", "OFFLINE"]

_SEVERITY = {"security": "blocker", "correctness": "major", "tests": "minor", "style": "minor"}
_MAX_FINDINGS = 5  # per topic


def review(*, fix: bool = False) -> Plan:
    """Opens each topic, runs its check and reports the hints; `fix` adds the fix it knows."""
    count = 0
    for topic, severity in _SEVERITY.items():
        yield Call(name="read_section", arguments={"section_key": f"guidelines.{topic}"})
        answer = yield Call(name=f"check_{topic}", arguments={"limit": _MAX_FINDINGS})
        _, hints = embedded_json(answer)
        for hint in hints if isinstance(hints, list) else []:
            finding = {"path": hint["path"], "line": hint["line"], "severity": severity}
            finding |= {"title": hint["problem"], "suggestion": hint["remedy"]}
            finding["explanation"] = f"The check of {topic} found it."
            yield Call(name="report_finding", arguments=finding)
            count += 1
            if fix and hint["problem"] == "every error is swallowed":
                window = {"path": hint["path"], "offset": hint["line"], "limit": 2}
                shown = yield Call(name="read_file", arguments=window)
                old = "\n".join(re.findall(r"^ *\d+\t(.*)$", shown, re.MULTILINE))
                change = {"path": hint["path"], "old": old, "new": old.replace("pass", "raise")}
                yield Call(name="propose_fix", arguments=change)
    verdict = "request changes" if count else "approve"
    summary = f"The checks of four topics gave {count} findings."
    return json.dumps({"verdict": verdict, "summary": summary})


_NAME = "an offline plan (no LLM: it reports what the checks find, and judges nothing)"
OFFLINE = Offline(_NAME, follow(review))
FIXING = Offline(_NAME, follow(partial(review, fix=True)))
