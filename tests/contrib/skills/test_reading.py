"""A skill is read despite its faults; each fault is a finding with a line and a remedy."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skills_ref import read_properties

from support.skills import front_matter, refusals, skill, write_skill
from weakincentives.contrib.skills import SkillError, SkillSection, read_skill
from weakincentives.prompt import PromptValidationError

LONG = "x" * 1_025


@pytest.mark.parametrize(
    "source",
    [
        front_matter(),
        front_matter(more="license: MIT\ncompatibility: git\nallowed-tools: Bash(git:*) Read\n"),
        front_matter(more='metadata:\n  author: me\n  version: "1.0"\n'),
        front_matter(description=">-\n  Over two\n  lines."),
        front_matter().replace("\n", "\r\n"),
    ],
)
def test_skill_accepted_by_the_validator_has_no_findings(tmp_path: Path, source: str) -> None:
    assert skill(tmp_path / "pdf", source).findings == ()
    assert refusals(tmp_path / "pdf") == []
    assert read_skill(tmp_path / "pdf/SKILL.md", strict=True).name == "pdf"


FAULTS = [
    (front_matter(more="argument-hint: file\n"), 4, "unexpected field 'argument-hint'"),
    (front_matter(more="disable-model-invocation: true\n"), 4, "disable-model-invocation"),
    (front_matter(description=LONG), 3, "description has 1,025 characters"),
    (front_matter(name="pdf2"), 2, "name 'pdf2' must match the directory name 'pdf'"),
    (front_matter(name="Pdf"), 2, "name 'Pdf' is not valid"),
    (front_matter(name="-pdf"), 2, "name '-pdf' is not valid"),
    (front_matter(name="pd--f"), 2, "name 'pd--f' is not valid"),
    (front_matter(name="p" * 65), 2, "name has 65 characters"),
    (front_matter(name='""'), 2, "name is missing or empty"),
    (front_matter(description='" "'), 3, "description is missing or empty"),
    ("---\ndescription: x\n---\n", 1, "name is missing or empty"),
    ("---\nname: pdf\n---\n", 1, "description is missing or empty"),
    (front_matter(more=f"compatibility: {LONG}\n"), 4, "compatibility has 1,025 characters"),
    (front_matter(description="Use when: needed"), 3, "invalid YAML"),
    (front_matter(more="allowed-tools: [Read, Grep]\n"), 4, "a list in brackets"),
    (front_matter(more="metadata: {a: b}\n"), 4, "a mapping in braces"),
    (front_matter(more="metadata: &a\n  b: c\n"), 4, "an anchor"),
    (front_matter(more="name: pdf\n"), 4, "field 'name' occurs twice"),
    ("\ufeff" + front_matter(), 1, "must start with front matter"),
    ("# PDF\n\nNo front matter.", 1, "must start with front matter"),
    ("---\nname: pdf\n", 1, "must start with front matter"),
    ("---\njust text\n---\n", 2, "not a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "line", "message"), FAULTS)
def test_skill_rejected_by_the_validator_has_a_matching_finding(
    tmp_path: Path, source: str, line: int, message: str
) -> None:
    folder = tmp_path / "pdf"
    findings = skill(folder, source).findings
    assert refusals(folder) != []
    [finding] = [finding for finding in findings if message in finding.message]
    assert (finding.path, finding.line) == (str(folder / "SKILL.md"), line)
    assert finding.remedy
    with pytest.raises(SkillError, match=re.escape(message)) as caught:
        read_skill(folder, strict=True)
    assert caught.value.findings == findings
    assert isinstance(caught.value, PromptValidationError)


def test_dashes_that_truncate_a_value_for_the_validator_are_a_finding(tmp_path: Path) -> None:
    read = skill(tmp_path / "pdf", front_matter(description="one --- two"))
    assert (read.text("description"), read.findings[0].line) == ("one --- two", 3)
    assert read_properties(tmp_path / "pdf").description == "one"


NAMES = st.text("ab-1Ü ", max_size=6)
TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=30)


@given(NAMES, TEXTS, st.sampled_from(["name", "license", "hint"]), TEXTS)
def test_skill_without_findings_is_accepted_by_the_validator(
    name: str, description: str, field: str, value: str
) -> None:
    source = f"---\nname: {name}\ndescription: {description}\n{field}: {value}\n---\nText\n"
    with TemporaryDirectory() as folder:
        findings = skill(Path(folder, "a"), source).findings
        assert findings or refusals(Path(folder, "a")) == []


def test_value_with_a_colon_is_parsed_to_the_end_of_its_line(tmp_path: Path) -> None:
    source = front_matter(description="'Use when: needed' # or not: so", more="license: MIT\n")
    read = skill(tmp_path / "pdf", source.replace("'", ""))
    assert read.text("description") == "Use when: needed # or not: so"
    assert read.text("license") == "MIT"


# ---------------------------------------------------------------------------------------------
# unreadable files


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"---\nname: \xff\n---\n", "can't decode byte 0xff in position 10"),
        (b"\x89PNG\r\n\x1a\n\0\0", "can't decode"),
        (b"---\nname: a\0b\n---\n", "contains a NUL character"),
        (b"---\n" + b"x" * 1_000_001, "the limit is 1000000"),
    ],
)
def test_binary_or_huge_skill_is_rejected(tmp_path: Path, data: bytes, message: str) -> None:
    write_skill(tmp_path / "pdf", data)
    with pytest.raises(SkillError, match=message) as caught:
        read_skill(tmp_path / "pdf")
    [finding] = caught.value.findings
    assert finding.path == str(tmp_path / "pdf/SKILL.md")


def test_folder_without_a_skill_and_missing_folder_are_rejected(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(SkillError, match=r"SKILL\.md"):
            read_skill(path)


def test_links_cannot_escape_the_skill_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("---\nname: pdf\ndescription: secret\n---\n")
    folder = write_skill(tmp_path / "pdf")
    (folder / "link.md").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    read = read_skill(folder)
    assert read.files == ()
    messages = [finding.message.partition(" or ")[0] for finding in read.findings]
    assert messages == ["'link.md' is a link", "'up' is a link"]
    (folder / "SKILL.md").unlink()
    (folder / "SKILL.md").symlink_to(tmp_path / "secret")
    with pytest.raises(SkillError, match="out of bounds") as caught:
        read_skill(folder)
    assert "secret" not in str(caught.value)


def test_skill_with_hard_links_is_accepted(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "pdf", files={"references/a.md": "a"})
    for path in ("SKILL.md", "references/a.md"):
        (tmp_path / path.replace("/", "-")).hardlink_to(folder / path)
    read = read_skill(folder, strict=True)
    assert [file.path for file in read.files] == ["references/a.md"]


BOMB = "a0: &a0 lol\n" + "".join(
    f"a{level}: &a{level}\n{f'  - *a{level - 1}\n' * 9}" for level in range(1, 12)
)


@pytest.mark.parametrize(
    "source",
    [
        front_matter(more=BOMB),
        front_matter(more=f"{BOMB}? *a11\n: x\n"),
        front_matter(more=f"metadata: {'[' * 10_000}\n"),
        front_matter(more=f"metadata: {'{a: ' * 5_000}\n"),
        front_matter(more="  " * 15_000 + "a: b\n"),
        front_matter(more="x: !!python/object/apply:os.system ['touch owned']\n"),
        front_matter(more=f"x: {'y ' * 20_000}\n"),
        front_matter() + "#" * 400_000 + " " * 400_000 + "x",
        front_matter() + "`" * 900_000,
        front_matter() + "# " + "\t " * 400_000,
        front_matter() + "# a\n" * 200_000,
        "---\n" + " " * 900_000,
        "---\n" * 200_000,
    ],
    ids=range(13),
)
def test_hostile_skill_text_is_parsed_quickly_and_executes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_skill(tmp_path / "pdf", source)
    start = process_time()
    read = read_skill(tmp_path / "pdf")
    assert len(read.markdown.children) <= 300
    assert process_time() - start < 20
    assert len(read.findings) < 20
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(("count", "parsed"), [(100, True), (101, False)])
def test_front_matter_with_over_100_brackets_is_not_parsed_as_yaml(
    tmp_path: Path, count: int, *, parsed: bool
) -> None:
    source = front_matter(more=f"metadata: {'[' * count}{']' * count}\n")
    write_skill(tmp_path / "pdf", source)
    messages = [finding.message for finding in read_skill(tmp_path / "pdf").findings]
    unparsed = "the front matter is invalid YAML (YAMLError) and is read line by line"
    assert (unparsed not in messages) == parsed  # PyYAML takes quadratic time


# ---------------------------------------------------------------------------------------------
# headings


def test_headings_in_fenced_code_are_ignored(tmp_path: Path) -> None:
    text = (
        "Intro\n# One #\n#hashtag\n```bash\n# a comment\n~~~\n```\n   ## Deeper  \n"
        "    ````\n    # of a list\n    ```\n    ````\n``` inline ```\n### \n"
        "# Two\u2028lines\n~~~~\n# never closed"
    )
    root = skill(tmp_path / "pdf", front_matter() + text).markdown
    assert [heading.title for heading in root.children] == ["One", "Two lines"]
    assert [heading.title for heading in root.children[0].children] == ["Deeper"]
    read = read_skill(tmp_path / "pdf")
    assert read.source[root.children[1].start :] == "# Two\u2028lines\n~~~~\n# never closed"


def test_byte_order_mark_is_removed_and_reported_as_a_finding(tmp_path: Path) -> None:
    for start in ("", "---\nname: plans\ndescription: Plan.\n---\n"):
        (tmp_path / "SKILL.md").write_text(f"\ufeff{start}Plan first.\n", encoding="utf-8")
        section = SkillSection(tmp_path)
        assert section.body_text() == "Plan first."
        assert any("byte order mark" in finding.remedy for finding in section.skill.findings)
