"""Docstrings in Google's, NumPy's and Sphinx's styles give a summary and parameter descriptions."""

from time import process_time

import pytest

from weakincentives.prompt.docstrings import read_docstring

CITY = {"city": "The city."}


@pytest.mark.parametrize(
    ("docstring", "summary", "parameters"),
    [
        pytest.param(None, "", {}, id="none"),
        pytest.param("   ", "", {}, id="blank"),
        pytest.param("Get it.\nAll of it.\n\nMore.", "Get it. All of it.", {}, id="paragraph"),
        pytest.param("Get it: yes\nand: no", "Get it: yes and: no", {}, id="colons"),
        pytest.param("Get it.\nArgs:\n    city: The city.", "Get it.", CITY, id="no-blank-line"),
        pytest.param("Args:\n    city: The city.", "", CITY, id="opens-with-args"),
        pytest.param("Get.\n\nArgs:\n\n    city: The city.", "Get.", CITY, id="blank-below-args"),
        pytest.param(
            "Get.\n\nNote:\n    A: b.\nArgs:\n    city: The city.", "Get.", CITY, id="below-note"
        ),
        pytest.param(
            "Get.\n\nMore.\n\nRaises:\n    OSError: If so.\n\nArgs:\n    city: The city.\n\n"
            "Yields:\n    str: x",
            "Get.",
            CITY,
            id="other-sections",
        ),
        pytest.param("Get.\n\nKeyword Args:\n  city: The city.", "Get.", CITY, id="keyword-args"),
        pytest.param("Get.\n\nParameters:\n  city: The city.", "Get.", CITY, id="parameters"),
        pytest.param(
            "Get.\n\nArgs:\n    city:\n        The city.\n    n: N.",
            "Get.",
            CITY | {"n": "N."},
            id="text-on-the-next-line",
        ),
        pytest.param(
            "Get.\n\nArgs:\n    city: The\n        city.\n\n    n: N.",
            "Get.",
            CITY | {"n": "N."},
            id="text-on-two-lines",
        ),
        pytest.param("Get.\n\nArgs:\n    city (str) : The city.", "Get.", CITY, id="type"),
        pytest.param(
            "Get.\n\nArgs:\n  `city` (dict[str, int], optional): The city (or: a town).",
            "Get.",
            {"city": "The city (or: a town)."},
            id="long-type",
        ),
        pytest.param(
            "Get.\n\nArgs:\n    a, b: The city.", "Get.", dict.fromkeys("ab", "The city."), id="two"
        ),
        pytest.param("Get.\n\nArgs:\n    \\*city: The city.", "Get.", CITY, id="stars"),
        pytest.param("Get.\n\nArgs:\ncity: The city.\n\nMore.", "Get.", CITY, id="not-indented"),
        pytest.param("Get.\n\n#Args:\n    city: The city.", "Get.", {}, id="comment"),
        pytest.param(
            "Get.\n\nParameters\n----------\ncity : str, optional\n    The city.\nn\n    N.\n\n"
            "Returns\n-------\nstr\n    Text.",
            "Get.",
            CITY | {"n": "N."},
            id="numpy",
        ),
        pytest.param(
            "Get.\n\nOther Parameters\n----------------\ncity, town : str\n    The\n    city.",
            "Get.",
            {"city": "The city.", "town": "The city."},
            id="numpy-other-parameters",
        ),
        pytest.param(
            "Get.\nParameters\n----------\ncity\n    The city.",
            "Get.",
            CITY,
            id="numpy-no-blank-line",
        ),
        pytest.param(
            "Get.\n\n:param str city: The\n    city.\n:keyword n: N.\n:arg m: M.\n:returns: Text.",
            "Get.",
            CITY | {"n": "N.", "m": "M."},
            id="sphinx",
        ),
        pytest.param(":param city: The city.\n:type city: str", "", CITY, id="sphinx-only"),
    ],
)
def test_docstring_gives_its_first_paragraph_and_texts_of_parameters(
    docstring: str | None, summary: str, parameters: dict[str, str]
) -> None:
    read = read_docstring(docstring)
    assert (read.summary, dict(read.parameters)) == (summary, parameters)


def test_the_three_styles_of_one_docstring_give_the_same_texts() -> None:
    google = "Find.\n\nArgs:\n    city (str): The city,\n        or a town.\n    n: N.\n"
    numpy = (
        "Find.\n\nParameters\n----------\ncity : str\n    The city,\n    or a town.\nn\n    N.\n"
    )
    sphinx = "Find.\n\n:param city: The city,\n    or a town.\n:type city: str\n:param n: N.\n"
    assert read_docstring(google) == read_docstring(numpy) == read_docstring(sphinx)


def test_indentation_of_the_function_does_not_change_what_is_read() -> None:
    lines = ["Find.", "", "Args:", "    city: The city.", "Returns:", "    x: y"]
    assert read_docstring("\n    ".join(lines)) == read_docstring("\n".join(lines))


@pytest.mark.parametrize(
    ("docstring", "parameters"),
    [
        (
            "Get.\n\nArgs:\n    a: A.\n    note:\n        N.\n    b: B.",
            {"a": "A.", "note": "N.", "b": "B."},
        ),
        (
            "Get.\n\nArgs:\n  a: A.\n\n      Deep.\n\n Less.\n\n  b: B.",
            {"a": "A. Deep.", "b": "B."},
        ),
        (
            "Get.\n\nArgs:\n    a: Right.\n\nExample::\n\n    Args:\n        a: Wrong.",
            {"a": "Right."},
        ),
        ("Get.\n\nArgs:\n    a: A.\n\nReturns:\n    b: Wrong.", {"a": "A."}),
        ("Get.\n\nExample::\n\n    Args:\n        a: Wrong.", {}),
        ("Get.\n\nParameters\n----------\nNone", {}),
    ],
    ids=[
        "named-like-a-heading",
        "dedented",
        "example",
        "other-section",
        "only-in-an-example",
        "none",
    ],
)
def test_known_parameters_are_read_even_in_odd_places(
    docstring: str, parameters: dict[str, str]
) -> None:
    assert dict(read_docstring(docstring, {"a", "b", "note"}).parameters) == parameters


def test_underlined_title_is_the_summary() -> None:
    assert read_docstring("Find orders\n===========\n\nMore.").summary == "Find orders"


@pytest.mark.parametrize("text", [f"Get.\n\n:param{' ' * 100_000}x", f"Args:\n  a{' ' * 100_000}!"])
def test_long_white_space_takes_no_time(text: str) -> None:
    started = process_time()
    read_docstring(text)
    assert process_time() - started < 1
