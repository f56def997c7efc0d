"""README and docs/: every snippet runs, every link leads somewhere, every error is explained.

Blocks of a page run in order, in one namespace and one directory. The title of a fence says what its text is: a file name
(written, not run), ``output`` (what the block before printed or raised), ``raises X``, ``warns X``, or ``not run: reason``.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import re
import runpy
import shlex
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.markdown import ROOT, Block, anchors, blocks, links, pages, sentences

import aotpack
import aotpack_loader
from aotpack.tools.cli import main
from aotpack_loader import errors

RUN = {"python", "sh"}
KNOWN = RUN | {"text", "json", "toml"}
NOT_RUN = re.compile(r"not run: \S.{8,}")

SPECIFICATION = sorted((ROOT / "spec").glob("*.md"))
PAGES = [page for page in pages() if page.exists()]
TESTED = [
    page for page in PAGES if any(block.language in RUN and not block.title.startswith("not run") for block in blocks(page))
]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ---------------------------------------------------------------- snippets


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What other pages go on with: model.py and train.py of the getting-started page, and a portable model.aotpack of it."""
    directory = tmp_path_factory.mktemp("shared")
    for block in blocks(ROOT / "docs" / "getting-started.md"):
        if block.title.endswith(".py"):
            (directory / block.title).write_text(block.text)
    words = ["build", str(directory / "model.py"), "-o", str(directory / "model.aotpack"), "--target", "portable"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return directory


@pytest.fixture
def workplace(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that a page's snippets run in: with those files, and the examples."""
    for file in shared.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AOTPACK_CONFIG", str(tmp_path / "config"))  # keys that one page trusts are not known to others
    modules = set(sys.modules)
    yield tmp_path
    for added in set(sys.modules) - modules:
        if added in {"page", "model"}:
            del sys.modules[added]


@pytest.mark.parametrize("page", TESTED, ids=name)
def test_snippets_run_in_order(page: Path, workplace: Path) -> None:
    module = types.ModuleType("page")
    sys.modules["page"] = module
    printed = ""
    for block in blocks(page):
        if block.left_out:
            continue
        if block.title == "output":
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(block.text, printed, flags), f"{block}: printed was\n{printed}"
        elif block.title.endswith((".py", ".toml")):
            (workplace / block.title).write_text(block.text)
        elif block.language == "python":
            printed = run_python(block, module)
        elif block.language == "sh":
            printed = "".join(run_command(block, command) for command in commands(block.text))


def run_python(block: Block, module: types.ModuleType) -> str:
    """What a block prints, and the message of what it raises or warns of."""
    code = compile("\n" * block.line + block.text, str(block.page), "exec")  # so that lines are those of the page
    word, _, expected = block.title.partition(" ")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if word == "raises":
            printed.write(f"{raised(block, code, module, expected)}\n")
        elif word == "warns":
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                exec(code, vars(module))
            assert expected in [type(each.message).__name__ for each in found], f"{block}: {found}"
            printed.write("".join(f"{each.message}\n" for each in found))
        else:
            assert not block.title, f"{block}: {block.title!r} is not known"
            exec(code, vars(module))
    return printed.getvalue()


def raised(block: Block, code: types.CodeType, module: types.ModuleType, expected: str) -> Exception:
    try:
        exec(code, vars(module))
    except Exception as error:
        if type(error).__name__ != expected:
            raise
        return error
    pytest.fail(f"{block}: nothing was raised")


def commands(text: str) -> list[list[str]]:
    """The lines of a block as words; a prompt is not part of a command, nor is a comment."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def run_command(block: Block, words: list[str]) -> str:
    """``aotpack …`` and ``python file.py …`` in this process, which has torch already."""
    program, *arguments = words
    if program == "aotpack":
        if arguments[0] == "build" and built_before(arguments):
            return ""
        result = CliRunner().invoke(main, arguments)
        expected = 1 if block.title.startswith("fails") else 0
        assert result.exit_code == expected, f"{block}: {' '.join(words)}\n{result.output}\n{result.exception!r}"
        if arguments[0] == "build" and expected == 0:
            keep_built(arguments)
        return result.output
    assert program == "python", f"{block}: {program} is not run by tests; say so: title='not run: reason'"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")
    return printed.getvalue()


BUILT: dict[tuple[str, ...], bytes] = {}
"""Bundles by the source of their model and the command: equal input gives equal bytes, so pages share them."""


def built_before(arguments: list[str]) -> bool:
    found = BUILT.get((Path(arguments[1]).read_text(), *arguments))
    if found is not None:
        Path(arguments[arguments.index("-o") + 1]).write_bytes(found)
    return found is not None


def keep_built(arguments: list[str]) -> None:
    BUILT[(Path(arguments[1]).read_text(), *arguments)] = Path(arguments[arguments.index("-o") + 1]).read_bytes()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_fences_say_what_they_are(page: Path) -> None:
    for block in blocks(page):
        assert block.language in KNOWN, f"{block}: give the fence a language, one of {', '.join(sorted(KNOWN))}"
        if block.left_out:
            assert NOT_RUN.fullmatch(block.title), f"{block}: say why it is not run"


def test_what_is_not_run_has_a_reason_and_is_the_exception() -> None:
    every = [block for page in PAGES for block in blocks(page) if block.language in RUN]
    left_out = [block for block in every if block.left_out]
    assert len(left_out) < len(every) / 2


# ---------------------------------------------------------------- links


@pytest.mark.parametrize("page", [*PAGES, *SPECIFICATION], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


# ---------------------------------------------------------------- errors, words


def _shown_classes() -> list[str]:
    """Errors of ours, and warnings, that a user meets: classes without a leading underscore in the code of both packages."""
    found = [kind.__name__ for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.AotpackError)]
    for path in sorted([*(ROOT / "aotpack").rglob("*.py"), *(ROOT / "loader" / "aotpack_loader").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            bases = {ast.unparse(base) for base in node.bases} if isinstance(node, ast.ClassDef) else set()
            if (
                isinstance(node, ast.ClassDef)
                and not node.name.startswith("_")
                and bases & {"AotpackError", "UserWarning", *found}
            ):
                found.append(node.name)
    return found


def test_every_error_and_warning_is_on_the_page_for_troubleshooting() -> None:
    text = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text()
    found = _shown_classes()
    assert {"TrustArgumentError", "KeyFileError", "LayoutWarning", "CallLibraryWarning"} <= {*found}
    assert [kind for kind in found if f"### `{kind}`" not in text] == []


def test_messages_for_troubleshooting_are_those_of_the_code() -> None:
    """A message is part of a text of the sources, or holds all of such a text. On both sides ``…`` stands for any words."""
    page = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text()
    messages = [one or two for one, two in re.findall(r"^\| (?:``(.+?)``|`([^`]+)`) \|", page, re.MULTILINE)]
    texts = {text for text in _texts() if len(text.replace("…", "")) >= 12}
    assert len(messages) > 30
    assert [message for message in messages if not any(_holds(t, message) or _holds(message, t) for t in texts)] == []


def _texts() -> Iterator[str]:
    """The strings of the sources, with ``…`` for what an f-string puts in."""
    for path in (path for folder in ("aotpack", "loader/aotpack_loader") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def _holds(text: str, pattern: str) -> bool:
    """Whether ``text`` has the words of ``pattern`` in their order."""
    at = 0
    for words in re.split(r"…|\{\}", pattern):
        at = text.find(words, at) + len(words)
        if at < len(words):
            return False
    return True


def test_the_reference_is_complete() -> None:
    """Public names are in the reference by the address of their definition; the errors' module is in it as a whole."""
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    named = {line.rpartition(".")[2] for line in pages.splitlines() if line.startswith("::: ")}
    of_errors = {kind.__name__ for kind in vars(errors).values() if inspect.isclass(kind)}
    public = {*aotpack.__all__, *aotpack_loader.__all__, *_shown_classes()}
    assert "::: aotpack_loader.errors\n" in pages
    assert public - of_errors - named == set()


def test_the_walk_through_the_code_exists() -> None:
    text = (ROOT / "docs" / "design.md").read_text().partition("## A walk through the code")[2].partition("\n## ")[0]
    steps = re.findall(r"^\| `(\S+\.py)`:? ?(.*?) \|", text, re.MULTILINE)
    assert len(steps) > 10
    for file, names in steps:
        code = ast.parse((ROOT / file).read_text())
        known = {node.name for node in ast.walk(code) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert set(re.findall(r"`(\w+)`", names)) <= known, file


def test_contributing_names_every_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## The tree")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(?:aotpack/|loader/aotpack_loader/)?(\w+)/(?:\w+\.py)?`", text))
    packages = {
        path.parent.name for package in ("aotpack", "loader/aotpack_loader") for path in ROOT.glob(f"{package}/*/__init__.py")
    }
    assert packages <= named


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 1000


def test_sentences_are_short() -> None:
    """At most 6 % of the sentences of README, docs/ and spec/ have more than 25 words, as in OCI's image specification."""
    read = [each for page in (*PAGES, *SPECIFICATION) for each in sentences(page)]
    long = sorted((each for each in read if len(each.split()) > 25), key=lambda each: -len(each.split()))
    assert len(read) > 1500
    assert len(long) <= 0.06 * len(read), "\n".join(long[:20])
