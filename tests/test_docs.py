"""The documents say what is so: their examples run, their links lead somewhere, the reference of commands is what the commands print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

RUN = ("README.md", "docs/hooks.md", "docs/plugins.md", "docs/tasks.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections(text):
    """Split a page before each second-level heading."""
    return re.split(r"(?m)^(?=## )", text)


def cases(root):
    for name in RUN:
        for section in sections((root / name).read_text()):
            blocks = BLOCK.findall(section)
            if any(kind == "console" for kind, _ in blocks):
                yield name, section.partition("\n")[0].strip("# "), blocks


def pytest_generate_tests(metafunc):
    if "blocks" in metafunc.fixturenames:
        found = list(cases(metafunc.config.rootpath))
        metafunc.parametrize(("page", "heading", "blocks"), found, ids=[f"{page}: {heading}" for page, heading, _ in found])


def write_files(folder, blocks):
    """Write each block whose first line is a comment that names a file."""
    for kind, text in blocks:
        name = re.match(r"# ([\w./-]+\.(?:py|yaml|toml))\n", text)
        if name and kind != "console":
            file = folder / name[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def test_examples_run(page, heading, blocks, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, blocks)
    lines = [line for kind, text in blocks if kind == "console" for line in text.splitlines()]
    commands = [shlex.split(line.removeprefix("$ "))[1:] for line in lines if line.startswith("$ evalharness ")]

    assert commands, f"{page}, {heading}: a console block shows at least one command"
    for command in commands:
        done = cli(*command)
        assert done.code == 0, f"{page}, {heading}: {command}: {done.err}"
        assert done.out.strip(), f"{page}, {heading}: {command} prints nothing"


def test_examples_in_python_run(root, tmp_path, monkeypatch):
    """Blocks of README without a file name are programs of their own."""
    monkeypatch.chdir(tmp_path)
    programs = [text for kind, text in BLOCK.findall((root / "README.md").read_text()) if kind == "python" and not text.startswith("# ")]

    assert programs
    for program in programs:
        exec(compile(program, "README.md", "exec"), {})


def test_the_reference_of_commands_is_what_the_commands_print(root):
    done = subprocess.run([sys.executable, root / "docs/make_cli.py", "--check"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_check_mode_finds_a_difference(root, tmp_path):
    (tmp_path / "cli.md").write_text("old")
    done = subprocess.run(
        [sys.executable, root / "docs/make_cli.py", "--check", tmp_path / "cli.md"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "run `python docs/make_cli.py`" in done.stderr


def pages(root):
    return [
        root / "README.md",
        root / "CONTRIBUTING.md",
        *sorted((root / "docs").glob("*.md")),
        *sorted((root / "examples").rglob("README.md")),
    ]


def test_links_lead_somewhere(root):
    links = [(page, target) for page in pages(root) for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())]
    inside = [(page, target) for page, target in links if not re.match(r"[a-z]+:", target)]

    assert [f"{page.relative_to(root)}: {target}" for page, target in inside if not (page.parent / target).exists()] == []


def test_every_page_can_be_reached_from_the_index(root):
    index = (root / "docs/index.md").read_text()

    assert [page.name for page in (root / "docs").glob("*.md") if page.name != "index.md" and f"({page.name})" not in index] == []


def test_documents_have_one_sentence_a_line(root):
    faults = []
    for page in pages(root):
        if page.name == "cli.md":
            continue
        prose = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())
        for number, line in enumerate(prose.splitlines(), start=1):
            if re.search(r"(?<!e\.g)(?<!i\.e)(?<!vs)[a-z)`]\. [A-Z`]", line) and not line.startswith("|"):
                faults.append(f"{page.relative_to(root)}:{number}: {line}")

    assert not faults, "\n".join(faults)


def test_readme_marks_its_two_commands(root):
    commands = re.findall(r"<!-- ci -->\n```bash\n(.+)\n```", (root / "README.md").read_text())

    assert commands == [
        "pip install -c constraints.txt -e '.[cpu]' && evalharness run quick",
        "pip install -c constraints.txt -e '.[cpu,test]' && pytest",
    ]
