"""Settings are combined by field and at every depth; invalid ones are their author's errors."""

import copy
import pickle
from typing import Any, assert_type

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives import ModelSettings
from weakincentives.model_settings import Effort

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.none() | st.floats(0, 2),
    "top_p": st.none() | st.floats(0, 1),
    "max_output_tokens": st.none() | st.integers(1, 9),
    "reasoning": st.none() | st.sampled_from(["none", "low", "high"]),
    "seed": st.none() | st.integers(0, 9),
    "stop": st.none() | st.lists(st.text("ab", min_size=1)).map(tuple),
    "tool_choice": st.none() | st.sampled_from(["auto", "none", "required", "look"]),
    "parallel_tool_calls": st.none() | st.booleans(),
    "service_tier": st.none() | st.sampled_from(["auto", "flex"]),
    "timeout": st.none() | st.floats(0.1, 9),
    "extra": st.recursive(
        st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 3)),
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner),
        max_leaves=6,
    ),
}
SETTINGS = st.fixed_dictionaries({}, optional=VALUES).map(lambda given: ModelSettings(**given))


@given(SETTINGS, SETTINGS, SETTINGS)
def test_settings_are_combined_in_the_same_way_in_any_grouping(
    far: ModelSettings, middle: ModelSettings, near: ModelSettings
) -> None:
    assert near.over(middle).over(far) == near.over(middle.over(far))


@given(SETTINGS, SETTINGS)
def test_nearer_setting_wins_even_if_it_is_none_and_an_unset_one_keeps_the_other(
    far: ModelSettings, near: ModelSettings
) -> None:
    combined = near.over(far)
    assert combined.given == far.given | near.given
    for name in combined.given - {"extra"}:
        assert getattr(combined, name) == getattr(near if name in near.given else far, name)


@given(SETTINGS)
def test_settings_survive_pickling_copying_and_evaluation_of_their_repr(it: ModelSettings) -> None:
    again = eval(repr(it), {"ModelSettings": ModelSettings})  # noqa: S307 - our own text
    assert again == it == pickle.loads(pickle.dumps(it)) == copy.deepcopy(it)
    assert again.given == it.given
    assert hash(again) == hash(it)


@pytest.mark.parametrize(
    ("name", "near", "far"),
    [
        ("temperature", 0, 0.7),
        ("parallel_tool_calls", False, True),
        ("stop", (), ("END",)),
        ("stop", "", "END"),
    ],
)
def test_falsy_setting_overrides_another(name: str, near: Any, far: Any) -> None:
    combined = ModelSettings(**{name: near}).over(ModelSettings(**{name: far}))
    assert not getattr(combined, name)
    assert getattr(combined, name) is not None


def test_none_clears_a_setting_and_an_unset_one_does_not() -> None:
    far = ModelSettings(seed=7)
    assert ModelSettings(seed=None).over(far).seed is None
    assert ModelSettings(temperature=1).over(far).seed == 7
    assert ModelSettings(seed=None) != ModelSettings()


def test_extra_is_merged_at_every_depth_and_lists_are_replaced() -> None:
    far = ModelSettings(extra={"a": {"b": 1, "c": {"d": [1, 2], "e": 2}}, "f": 3})
    near = ModelSettings(extra={"a": {"c": {"d": [3]}, "g": None}})
    assert near.over(far).extra == {
        "a": {"b": 1, "c": {"d": [3], "e": 2}, "g": None},
        "f": 3,
    }
    assert far.extra["a"] == {"b": 1, "c": {"d": [1, 2], "e": 2}}


def test_settings_do_not_change_with_the_mapping_that_they_were_created_from() -> None:
    tools = [{"type": "web_search"}]
    extra = {"tools": tools, "reasoning": {"summary": "auto"}}
    settings = ModelSettings(extra=extra)
    tools[0]["type"] = "other"
    tools.append({})
    extra.clear()
    assert settings.extra == {"tools": [{"type": "web_search"}], "reasoning": {"summary": "auto"}}


def test_repr_masks_credentials() -> None:
    assert "sentinel" not in repr(ModelSettings(extra={"api_key": "sk-sentinel-0123456789"}))


def test_misspelt_setting_is_a_type_error_that_names_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"'temprature'; did you mean 'temperature'\?"):
        ModelSettings(temprature=0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="it takes temperature, top_p"):
        ModelSettings(_given=frozenset())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"temperature": "0"}, TypeError, "temperature must be a number, got '0'"),
        ({"temperature": True}, TypeError, "temperature must be a number, got True"),
        ({"top_p": float("nan")}, ValueError, "top_p must be finite, got nan"),
        ({"max_output_tokens": 1.5}, TypeError, "max_output_tokens must be an int, got 1.5"),
        ({"max_output_tokens": 0}, ValueError, "max_output_tokens must be more than 0, got 0"),
        ({"reasoning": "much"}, ValueError, "reasoning must be one of none, minimal, low"),
        ({"seed": "1"}, TypeError, "seed must be an int, got '1'"),
        ({"stop": (1,)}, TypeError, "stop must be a str or several, got 1"),
        ({"stop": 1}, TypeError, "stop must be a str or several, got 1"),
        ({"tool_choice": {"type": "any"}}, TypeError, "tool_choice must be a str"),
        ({"parallel_tool_calls": 0}, TypeError, "parallel_tool_calls must be a bool, got 0"),
        ({"cache_ttl": "2h"}, ValueError, "cache_ttl must be one of 5m, 30m, 1h, 24h, got '2h'"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0, got 0"),
        ({"tool_choice": ""}, ValueError, "tool_choice must not be empty"),
        ({"extra": {"tools": {}}}, TypeError, r"extra\['tools'\] must be a list, got {}"),
        ({"extra": None}, TypeError, "extra must be a mapping, got None"),
        ({"extra": {"messages": []}}, ValueError, "extra cannot contain 'messages'"),
    ],
)
def test_invalid_value_is_an_error_that_names_the_setting(
    given: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ModelSettings(**given)


def test_type_checkers_know_the_settings() -> None:
    settings = ModelSettings(temperature=0, reasoning="low", stop="END")
    assert_type(settings.reasoning, Effort | None)
    assert settings.stop == ("END",)
