"""The documentation: its code runs, its links lead somewhere, its reference is complete."""

import ast
import contextlib
import io
import re
import shlex
import textwrap
import traceback
import unicodedata
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
import torch

from hessalign.cli.main import parse

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
README = [page for page in [ROOT / "README.md"] if page.is_file()]
RUN = [*README, *DOCS]
LINKED = [*sorted(ROOT.glob("*.md")), *DOCS]
REFERENCE = ROOT / "docs" / "reference.md"
PACKAGES = [
    "hessalign",
    "hessalign.curvature",
    "hessalign.alignment",
    "hessalign.heads",
    "hessalign.diagnosis",
    "hessalign.bench.data",
    "hessalign.bench.models",
    "hessalign.bench.algorithms",
    "hessalign.bench.runs",
    "hessalign.bench.sweep",
    "hessalign.bench.sweep.selection",
]

SKIP = "<!-- no-test -->"
FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*\{?\.?([\w+-]*)")


# --- what a page contains -----------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced block: the lines strictly between its fences, numbered from 0."""

    language: str
    start: int
    end: int
    skipped: bool


def blocks(text):
    lines, found, opening = text.splitlines(), [], None
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        if opening is None and match:
            opening = number, match[1], match[2].lower()
        elif opening is not None and line.strip() == opening[1]:
            first, _, language = opening
            skipped = first > 0 and lines[first - 1].strip() == SKIP
            found.append(Block(language, first + 1, number, skipped))
            opening = None
    if opening is not None:
        raise ValueError(f"The block that opens in line {opening[0] + 1} is never closed.")
    return found


def run_python(page, text):
    """Run the Python blocks of a page in order, in one namespace; return how many there were."""
    namespace, lines, count = {"__name__": "__main__"}, text.splitlines(), 0
    for block in blocks(text):
        if block.language not in {"python", "py", "python3"} or block.skipped:
            continue
        code = textwrap.dedent("\n".join(lines[block.start : block.end]))
        # Empty lines in front make the line numbers of a traceback those of the page.
        exec(compile("\n" * block.start + code, str(page), "exec"), namespace)
        count += 1
    return count


def commands(text):
    """The words after `hessalign` of every command in the blocks of a page, with their lines."""
    lines, found = text.splitlines(), []
    for block in blocks(text):
        if block.language in {"", "bash", "sh", "console", "text"} and not block.skipped:
            for number in range(block.start, block.end):
                match = re.match(r"\s*(?:\$ )?hessalign (.+)", lines[number])
                if match:
                    found.append((number + 1, shlex.split(match[1], comments=True)))
    return found


def bad_commands(page, text):
    """What is wrong with the commands of a page, one sentence each."""
    problems = []
    for number, words in commands(text):
        try:
            with contextlib.redirect_stderr(io.StringIO()) as said:
                parse(words)
        except SystemExit:
            reason = said.getvalue().strip().splitlines()[-1]
            problems.append(f"{page.name}, line {number}: {reason}")
    return problems


def prose(text):
    """The page without code and formulas, its lines where they were."""
    lines = text.splitlines()
    for block in blocks(text):
        lines[block.start - 1 : block.end + 1] = [""] * (block.end - block.start + 2)
    plain = "\n".join(lines)
    for pattern in (r"`[^`\n]+`", r"\$\$.*?\$\$", r"\$[^$\n]+\$"):
        plain = re.sub(pattern, lambda match: re.sub(r".", " ", match[0]), plain, flags=re.DOTALL)
    return plain


def links(text):
    """Targets of links and images: inline, by reference, and in HTML."""
    patterns = (
        r"\]\(\s*<?([^)\s>]+)",
        r"(?m)^\[[^\]]+\]:\s+<?([^\s>]+)",
        r"(?:href|src)=\"([^\"]+)\"",
    )
    return [target for pattern in patterns for target in re.findall(pattern, prose(text))]


def github_slug(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def mkdocs_slug(heading):
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors(text):
    """Anchors that lead to the same place on GitHub and on the site, and those set by hand."""
    fenced = {number for block in blocks(text) for number in range(block.start, block.end)}
    lines = [line for number, line in enumerate(text.splitlines()) if number not in fenced]
    headings = [match[1] for line in lines if (match := re.match(r"#{1,6}\s+(.+?)\s*#*$", line))]
    found = {github_slug(h) for h in headings} & {mkdocs_slug(h) for h in headings}
    found.update(re.findall(r"(?:id|name)=\"([^\"]+)\"", "\n".join(lines)))
    return found | set(directives(text))


def directives(text):
    return re.findall(r"(?m)^::: ([\w.]+)$", text)


def broken_links(page, text):
    """What is wrong with the relative links of a page, one sentence each."""
    problems = []
    for target in links(text):
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / unquote(path)).resolve() if path else page
        if path.startswith("/") or (path and not file.exists()):
            problems.append(f"{page.name} links to {target}: there is no such file.")
        elif anchor and file.suffix == ".md":
            known = anchors(text if file == page else file.read_text(encoding="utf-8"))
            if anchor not in known:
                problems.append(f"{page.name} links to {target}: there is no such heading.")
    return problems


@cache
def package_classes():
    """Methods and fields of every class of the package, by its name."""
    found = {}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                members = found.setdefault(node.name, set())
                for part in ast.walk(node):
                    if isinstance(part, ast.FunctionDef):
                        members.add(part.name)
                    elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        members.add(part.id)
                    elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                        members.add(part.attr)
    return found


def exists(name):
    """Whether a full name leads to a module of the package, or something in one."""
    path, _, last = name.rpartition(".")
    try:
        import_module(name)
    except ModuleNotFoundError:
        return bool(path) and exists(path) and hasattr(import_module(path), last)
    return True


def wrong_names(page, text):
    """Names of the package in backticks that are not there: `hessalign.a.b`, `ha.a`, `Class.a`."""
    problems, classes = [], package_classes()
    for name in re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)[`(]", text):
        first, _, rest = name.partition(".")
        if first in {"ha", "hessalign"}:
            known = exists(f"hessalign.{rest}")
        else:
            known = first not in classes or rest.partition(".")[0] in classes[first]
        if not known:
            problems.append(f"{page.name} speaks of {name}, which does not exist.")
    return problems


def missing_files(page, text):
    """Paths in backticks that are neither in the repository nor in the package.

    A link leads to its file by itself, so what it shows may be short.
    """
    named = set(re.findall(r"(?<!\[)`((?:\w+/)+(?:\w+\.\w+)?|\w+\.py)`", text))
    places = (ROOT, ROOT / "src" / "hessalign")
    missing = sorted(path for path in named if not any((at / path).exists() for at in places))
    return [f"{page.name} speaks of {path}, which does not exist." for path in missing]


def name_of(page):
    return str(page.relative_to(ROOT))


# --- the pages of this project ------------------------------------------------------------------


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        run_python(page, page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_resolve(page):
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_links_stay_on_the_site(page):
    assert [link for link in links(page.read_text(encoding="utf-8")) if link.startswith("..")] == []


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_commands_are_understood(page):
    assert bad_commands(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_names_in_backticks_exist(page):
    assert wrong_names(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "page", [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"], ids=name_of
)
def test_files_in_backticks_exist(page):
    assert missing_files(page, page.read_text(encoding="utf-8")) == []


def test_the_architecture_shows_every_package():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.splitlines()[blocks(text)[0].start : blocks(text)[0].end]
    named = {match[1] for line in tree[1:] if (match := re.match(r" +(\w+)(?:/|\.py)", line))}
    package = ROOT / "src" / "hessalign"
    folders = {init.parent.name for init in package.glob("**/__init__.py")} - {package.name}
    modules = {file.stem for file in package.glob("*.py") if not file.name.startswith("_")}
    assert named - {"_errors"} == folders | modules


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_display_formulas_are_closed(page):
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    for block in blocks(text):
        lines[block.start : block.end] = [""] * (block.end - block.start)
    for number, paragraph in enumerate("\n".join(lines).split("\n\n")):
        assert paragraph.count("$$") % 2 == 0, f"paragraph {number} of {page.name}: {paragraph}"


def test_pages_are_found_and_checked():
    assert {"index.md", "maths.md", "errata.md", "reference.md"} <= {page.name for page in DOCS}
    for name, least in (
        ("maths.md", 15),
        ("errata.md", 5),
        ("index.md", 2),
        ("quickstart.md", 5),
        ("losses.md", 7),
        ("your-own-data.md", 7),
        ("your-own-algorithm.md", 3),
        ("using-a-trained-model.md", 5),
    ):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        checked = [block for block in blocks(text) if block.language == "python"]
        assert len([block for block in checked if not block.skipped]) >= least


@pytest.mark.parametrize("package", PACKAGES)
def test_reference_lists_every_public_name(package):
    listed = {name.rpartition(".")[2] for name in directives(REFERENCE.read_text(encoding="utf-8"))}
    module = import_module(package)
    public = {
        name
        for name in dir(module)
        if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType)
    }
    assert public
    assert public <= listed, f"docs/reference.md lacks {sorted(public - listed)} of {package}"


def test_reference_lists_every_name_once_and_no_other():
    listed = directives(REFERENCE.read_text(encoding="utf-8"))
    assert sorted(set(listed)) == sorted(listed)
    assert [name for name in listed if not exists(name)] == []


def test_every_page_is_in_the_navigation():
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(named) == sorted(page.name for page in DOCS)


# --- the checks themselves ----------------------------------------------------------------------


def page_of(*parts):
    return "\n".join(parts) + "\n"


def test_wrong_code_fails_and_says_where():
    text = page_of(
        "# Page", "```python", "x = 1", "```", "", "```python", "", "assert x == 2", "```"
    )
    with pytest.raises(AssertionError) as failure:
        run_python("page.md", text)
    last = traceback.extract_tb(failure.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == ("page.md", 8)


@pytest.mark.parametrize("fault", ["undefined_name", "import no_such_module", "1 +"])
def test_other_faults_fail_too(fault):
    with pytest.raises((NameError, ImportError, SyntaxError)):
        run_python("page.md", page_of("```python", fault, "```"))


def test_blocks_share_a_namespace_and_run_in_order():
    text = page_of("```python", "x = 1", "```", "- item", "  ```py", "  x += 1", "  ```")
    assert run_python("page.md", text) == 2


@pytest.mark.parametrize(
    "before", ["<!-- no-test -->\n```python", "```", "```bash", "```pycon"], ids=repr
)
def test_blocks_that_are_not_to_run(before):
    assert run_python("page.md", page_of(before, "raise RuntimeError", "```")) == 0


def test_a_mark_further_up_does_not_skip():
    with pytest.raises(RuntimeError):
        run_python("page.md", page_of(SKIP, "", "```python", "raise RuntimeError", "```"))


def test_wrong_commands_are_found():
    text = page_of("```", "hessalign trai", "hessalign train --stepz 3", "```")
    wrong = bad_commands(ROOT / "page.md", text)
    assert [problem.partition(":")[0] for problem in wrong] == [
        "page.md, line 2",
        "page.md, line 3",
    ]
    good = page_of("```bash", "$ hessalign train --algorithm erm steps=3  # short", "ls", "```")
    assert commands(good) == [(2, ["train", "--algorithm", "erm", "steps=3"])]
    assert bad_commands(ROOT / "page.md", good) == []


def test_wrong_names_are_found():
    text = page_of(
        "`hessalign.bench.runs.Nothing`, `ha.nothing()`, `Outer.blocks`, `hessalign.no_such.it`;",
        "`hessalign.curvature.gram`, `ha.diagnose(z)`, `Outer.inner`, `Features.z`, `torch.func`",
    )
    assert [problem.split()[3] for problem in wrong_names(ROOT / "page.md", text)] == [
        "hessalign.bench.runs.Nothing,",
        "ha.nothing,",
        "Outer.blocks,",
        "hessalign.no_such.it,",
    ]


def test_missing_files_are_found():
    text = "`bench/runs/loop.py`, `cli/`, `docs/maths.md`, `_errors.py`; `bench/loop.py`, `lib/`"
    assert [problem.split()[3] for problem in missing_files(ROOT / "page.md", text)] == [
        "bench/loop.py,",
        "lib/,",
    ]


def test_a_block_that_is_never_closed():
    with pytest.raises(ValueError, match="opens in line 2 is never closed"):
        blocks(page_of("text", "```python", "x = 1"))


@pytest.mark.parametrize(
    "link",
    [
        "[a](missing.md)",
        "![a](missing.png)",
        "[![a](other.md)](missing.md)",
        "[a](other.md#missing)",
        "[a](#missing)",
        "[a](/other.md)",
        "[a]: missing.md",
        '<img src="missing.png">',
    ],
)
def test_broken_links_are_found(link, tmp_path):
    (tmp_path / "other.md").write_text("# Title\n")
    assert len(broken_links(tmp_path / "page.md", page_of("# Page", link))) == 1


@pytest.mark.parametrize(
    "link",
    [
        "[a](other.md)",
        "[a](other.md#a-title-of-code)",
        "[a](other.md#by-hand)",
        "[a](#page)",
        "[a](https://example.org/missing.md)",
        "`[a](missing.md)`",
        "$[a](missing.md)$",
        page_of("```", "[a](missing.md)", "```"),
    ],
)
def test_good_links_pass(link, tmp_path):
    (tmp_path / "other.md").write_text('# A title of `code`\n<a id="by-hand"></a>\n')
    assert broken_links(tmp_path / "page.md", page_of("# Page", link)) == []
