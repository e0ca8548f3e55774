"""`wink overrides` as a process, with a module whose texts change after they were overridden."""

import json
from pathlib import Path

import pytest

from support.commands import Done, Wink, write_shop

LONG = "First line.\\nSecond line.\\nThird line."


@pytest.fixture
def wink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Wink:
    write_shop(tmp_path)
    (tmp_path / ".git").mkdir()
    change(tmp_path, "Help, 100% of the time.", LONG)
    return Wink(tmp_path, monkeypatch, capsys)


def change(folder: Path, old: str, new: str) -> None:
    module = folder / "shop.py"
    text = module.read_text()
    assert old in text
    module.write_text(text.replace(old, new))


def edit(wink: Wink, name: str, text: str) -> Done:
    return wink("overrides", "edit", "shop:template", name, "--file", "-", stdin=text)


def test_edited_text_replaces_the_authored_text_and_appears_in_the_diff(wink: Wink) -> None:
    assert edit(wink, "body:task", "First line.\nOther line.\nThird line.\n").stderr == ""
    assert edit(wink, "tool:refund", "Give money back.").stderr == ""
    rendered = wink(
        "render", "shop:template", "--set", "text=hi", "--open", "refunds", "--tag", "latest"
    )
    assert "First line.\nOther line.\nThird line.\n" in rendered.stdout
    assert "Second line." in wink("render", "shop:template", "--set", "text=hi").stdout
    assert wink("overrides", "list").stdout == "shop/support latest\n"
    assert wink("overrides", "diff", "shop:template").stdout.splitlines() == [
        "--- body:task (code)",
        "+++ body:task (latest)",
        "@@ -1,3 +1,3 @@",
        " First line.",
        "-Second line.",
        "+Other line.",
        " Third line.",
        "--- tool:refund (code)",
        "+++ tool:refund (latest)",
        "@@ -1 +1 @@",
        "-Pay an order back.",
        "+Give money back.",
    ]


def test_unknown_tag_is_reported_if_other_tags_exist(wink: Wink) -> None:
    shown = ("render", "shop:template", "--set", "text=hi")
    plain = wink(*shown)
    assert wink(*shown, "--tag", "breif") == plain
    edit(wink, "body:task", "Brief.")
    misspelt = wink(*shown, "--tag", "breif")
    assert misspelt.stdout == plain.stdout
    assert (
        misspelt.stderr
        == "wink: nothing is stored for shop/support under tag 'breif'; tags there: latest\n"
    )
    for command in ("check", "diff", "prune", "rebase"):
        assert (
            wink("overrides", command, "shop:template", "--tag", "breif").stderr == misspelt.stderr
        )
    assert wink(*shown, "--tag", "latest").stderr == ""


def test_stored_text_cannot_control_the_terminal(wink: Wink) -> None:
    edit(wink, "body:task", "Safe.\x1b[1A\x1b[2K\u202e\x9b2J\tEnd.\n")
    shown = wink("overrides", "diff", "shop:template").stdout
    assert "+Safe.?[1A?[2K??2J\tEnd." in shown.splitlines()
    rendered = wink(
        "render", "shop:template", "--set", "text=hi", "--tag", "latest", "--json"
    ).stdout
    assert "\x9b" not in rendered
    assert "\x1b[1A\x1b[2K\u202e\x9b2J" in json.loads(rendered)["text"]


def test_stale_text_is_reported_and_can_be_rebased_or_pruned(wink: Wink) -> None:
    edit(wink, "body:task", "New first line.\nSecond line.\nThird line.")
    edit(wink, "body:refunds", "At once.")
    assert wink("overrides", "check", "shop:template").stdout == "texts that apply: 2, stale: 0\n"
    change(wink.folder, "Third line.", "Third line, changed.")
    change(wink.folder, "Within 30 days.", "Within 14 days.")
    checked = wink("overrides", "check", "shop:template")
    assert checked.returncode == 1
    assert checked.stdout.splitlines() == [
        "stale body:refunds: changed",
        "stale body:task: changed",
        "texts that apply: 0, stale: 2",
    ]
    report = wink("check", "shop:template", "--tag", "latest")
    assert (
        "warning: task: the stored override of body task does not apply: "
        "the code's own text has changed" in (report.stdout)
    )
    assert "body:task is stale: changed" in wink("overrides", "diff", "shop:template").stdout
    rebased = wink("overrides", "rebase", "shop:template")
    assert rebased.returncode == 1
    merged, conflict, see = rebased.stdout.splitlines()
    assert merged == "merged body:task"
    assert conflict.startswith("conflict body:refunds: Both have changed")
    assert Path(see.removeprefix("see ")).read_text().startswith("# Overrides to settle")
    assert wink("overrides", "prune", "shop:template").stdout == "removed body:refunds\n"
    assert wink("overrides", "check", "shop:template").stdout == "texts that apply: 1, stale: 0\n"
    text = wink("render", "shop:template", "--set", "text=hi", "--tag", "latest").stdout
    assert "New first line.\nSecond line.\nThird line, changed.\n" in text


def test_conflict_is_resolved_by_an_edit(wink: Wink) -> None:
    edit(wink, "body:refunds", "At once.")
    change(wink.folder, "Within 30 days. ", "Within 14 days. ")
    assert wink("overrides", "rebase", "shop:template").returncode == 1
    arguments = ("overrides", "edit", "shop:template", "body:refunds")
    assert wink(*arguments, EDITOR="grep -q 'At once.'", VISUAL="").returncode == 0
    assert wink("overrides", "check", "shop:template").returncode == 1
    assert edit(wink, "body:refunds", "Within 14 days. " * 20).returncode == 0
    assert wink("overrides", "check", "shop:template").stdout == "texts that apply: 1, stale: 0\n"


def test_run_reports_stale_overrides(wink: Wink) -> None:
    edit(wink, "body:refunds", "At once.")
    change(wink.folder, "Within 30 days. ", "Within 14 days. ")
    done = wink(
        "run", "shop:template", "--set", "text=hi", "--tag", "latest", "--adapter", "shop:scripted"
    )
    assert "stale overrides: body refunds" in done.stderr.splitlines()


def test_every_kind_of_text_can_be_edited_by_the_name_that_seed_prints(wink: Wink) -> None:
    change(
        wink.folder,
        "from weakincentives.testing",
        "from weakincentives.prompt import TaskExample, TaskExamplesSection, ToolExample\n"
        "from weakincentives.testing",
    )
    change(
        wink.folder,
        "handler=refund)",
        'handler=refund, examples=[ToolExample("Usual.", Question("A"), Question("A"))])',
    )
    change(
        wink.folder,
        "sections=[\n        Mark",
        'sections=[TaskExamplesSection(examples=[TaskExample(objective="Pay.")]),\n        Mark',
    )
    names = wink("overrides", "seed", "shop:template").stdout.split("\nin ")[0].splitlines()
    assert {name.partition(":")[0] for name in names} == {
        "body",
        "param",
        "summary",
        "task-example",
        "tool",
        "tool-example",
    }
    for name in names:
        assert edit(wink, name, "Other.").stderr == ""
    changed = wink("overrides", "diff", "shop:template").stdout
    assert changed.count("+Other.") == len(names)


def test_edit_starts_the_users_editor(wink: Wink) -> None:
    arguments = ("overrides", "edit", "shop:template", "body:task")
    assert wink(*arguments, EDITOR="sed -i s/First/Edited/", VISUAL="").returncode == 0
    assert "+Edited line." in wink("overrides", "diff", "shop:template").stdout
    failed = wink(*arguments, EDITOR="false", VISUAL="")
    assert (failed.returncode, failed.stderr) == (
        2,
        "wink: 'false' exited with 1; nothing was changed\n",
    )
    assert wink(*arguments, EDITOR="", VISUAL="").stderr.startswith(
        "wink: cannot find an editor; set EDITOR"
    )
    assert (
        wink(*arguments, EDITOR='vi "', VISUAL="").stderr
        == "wink: editor 'vi \"': No closing quotation\n"
    )


def test_text_left_unchanged_in_the_editor_is_not_stored(wink: Wink) -> None:
    change(wink.folder, "Third line.", "Third line.\\n")
    assert (
        wink("overrides", "edit", "shop:template", "body:task", EDITOR="true", VISUAL="").returncode
        == 0
    )
    assert wink("overrides", "list").stdout == ""


def test_file_that_is_not_utf8_is_named_and_nothing_is_stored(wink: Wink) -> None:
    (wink.folder / "text").write_bytes(b"\xff")
    done = wink("overrides", "edit", "shop:template", "body:task", "--file", "text")
    assert (done.returncode, done.stderr[:30]) == (2, "wink: text is not UTF-8 text: ")
    assert wink("overrides", "list").stdout == ""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("body:nope", "x", "'body:nope' is not a text that can be replaced; use one of body:task,"),
        ("task", "x", "'task' is not a text that can be replaced"),
        ("body:task", "$nope", "the params have no field for a placeholder"),
    ],
)
def test_unknown_text_or_placeholder_is_rejected_and_nothing_is_stored(
    wink: Wink, name: str, text: str, message: str
) -> None:
    done = edit(wink, name, text)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert wink("overrides", "list").stdout == ""


def test_folder_outside_any_repository_is_a_usage_error(wink: Wink) -> None:
    (wink.folder / ".git").rmdir()
    done = wink("overrides", "list")
    assert done.returncode == 2
    assert done.stderr.startswith("wink: cannot find a project: neither ")


def test_byte_order_mark_of_an_edited_text_is_dropped(wink: Wink) -> None:
    (wink.folder / "t.txt").write_bytes(b"\xef\xbb\xbfNew text.\n")
    wink("overrides", "edit", "shop:template", "body:task", "--file", "t.txt")
    (stored,) = (wink.folder / ".weakincentives").rglob("latest.json")
    stored.write_bytes(b"\xef\xbb\xbf" + stored.read_bytes())  # as some editors save it
    done = wink("render", "shop:template", "--set", "text=hi", "--tag", "latest")
    assert "\nNew text.\n" in done.stdout
