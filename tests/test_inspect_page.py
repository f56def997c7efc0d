"""``aotpack inspect --html`` in a headless Chromium: no script errors, the graph opens and closes, names are inert."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from support.browser import PageUnderTest, chromium
from support.hostile import HIDDEN, HOSTILE, hostile_bundle

from aotpack.tools.cli import main
from aotpack.tools.report.html.inspect import inspect_page
from aotpack.tools.report.text import visible
from aotpack_loader.archive.bundle import Bundle
from devtools.inspect_pages import CONTENT, NETWORKS, PICTURE, build
from devtools.large_bundle import write_large_bundle
from devtools.paths import ROOT

VECTORS = ROOT / "spec/vectors/v1/valid"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def portable_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that the picture of the README shows: its operators are those that the model calls."""
    out = tmp_path_factory.mktemp("digits") / "digits.aotpack"
    build(*NETWORKS["digits"], out)
    return out


@pytest.fixture(scope="module")
def digits_page(portable_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pages") / "digits.html"
    done = CliRunner().invoke(main, ["inspect", str(portable_digits), "--html", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return out


def test_the_page_of_the_digits_network(browser: Any, digits_page: Path) -> None:
    page = PageUnderTest(browser, digits_page)
    assert page.complaints() == []
    assert digits_page.stat().st_size < 300_000
    assert "2 <= batch <= 1797" in page.texts("#signature .tag bdi")
    assert {"images", "labels", "features.0.weight"} <= set(page.texts("#signature th bdi, #state th bdi"))
    assert "runs" in page.texts("#targets .tag")
    assert page.texts(".lane") == ["forward", "backward"]
    assert page.script("return document.querySelectorAll('path.saved').length") > 5
    assert page.script("return document.querySelectorAll('#memory canvas').length") >= 1
    assert page.script("return document.querySelectorAll('.cell').length") > 5


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="other releases ask for the batch in another module")
def test_the_picture_of_the_readme_shows_this_page(browser: Any, digits_page: Path) -> None:
    """If this fails: python -m devtools.inspect_pages --picture."""
    with Image.open(PICTURE) as picture:
        content = json.loads(picture.text["content"])  # type: ignore[attr-defined]
    assert content == PageUnderTest(browser, digits_page).script(CONTENT)
    assert PICTURE.stat().st_size < 200_000
    assert "docs/inspect.png" in (ROOT / "README.md").read_text()


def test_modules_open_and_close(browser: Any, digits_page: Path) -> None:
    page = PageUnderTest(browser, digits_page)
    page.script("document.getElementById('graph-collapse').click()")
    collapsed = page.script("return graphView.state()")
    assert collapsed["open"] == []
    assert "features" in "".join(page.texts(".box.module .title"))
    press = "[...document.querySelectorAll('.box.module')].find((b) => b.dataset.key === arguments[0])"
    enter = ".dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))"
    page.script(press + enter, "forward/features")
    opened = page.script("return graphView.state()")
    assert opened["open"] == ["features"]
    assert opened["boxes"] > collapsed["boxes"]
    assert page.script(f"return {press}.getAttribute('aria-expanded')", "forward/features") == "true"
    assert page.script("return document.activeElement.dataset.key") == "forward/features"
    page.script(press + enter, "forward/features")
    assert page.script("return graphView.state()") == {**collapsed, "selected": "forward/features"}
    assert page.complaints() == []


@pytest.mark.parametrize(
    ("query", "count"), [("convolution", 6), ("features.7", 3), ("model.py:22", 7), ("BATCH_NORM features.4", 2), ("nothing", 0)]
)
def test_search_by_operator_module_and_line(browser: Any, digits_page: Path, query: str, count: int) -> None:
    page = PageUnderTest(browser, digits_page)
    page.script("graphView.search(arguments[0])", query)
    assert page.script("return graphView.state().hits") == count
    assert len(page.texts("#graph-results button")) == count
    if count:
        page.script("document.querySelector('#graph-results button').click()")
        assert page.script("return graphView.state().selected").startswith(("forward/", "backward/"))
        assert page.texts("#graph-details h3")[0].startswith("aten.")
    assert page.complaints() == []


def test_tables_sort_and_filter(browser: Any, digits_page: Path) -> None:
    page = PageUnderTest(browser, digits_page)
    page.script("document.querySelectorAll('#state-table .sort')[3].click()")
    sizes = page.texts("#state-table td:nth-child(4)")
    assert sizes == sorted(sizes, key=lambda text: int(text.replace(",", "")))
    find = "const input = document.querySelector('[data-filter=state-table]'); "
    page.script(find + "input.value = 'buffer int64'; input.dispatchEvent(new Event('input'))")
    assert page.texts("#state-table-count") == ["3 of 20 rows"]


def test_the_theme_changes(browser: Any, digits_page: Path) -> None:
    page = PageUnderTest(browser, digits_page)
    colours = []
    for _ in range(2):
        page.script("document.getElementById('theme').click()")
        colours.append(page.script("return getComputedStyle(document.body).backgroundColor"))
    assert len(set(colours)) == 2
    assert page.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_rules_of_axe(browser: Any, digits_page: Path, theme: str) -> None:
    """axe-core checks roles, names, landmarks, focus order and contrast."""
    axe = Path(str(pytest.importorskip("axe_core_python").__file__)).with_name("axe.min.js").read_text()
    page = PageUnderTest(browser, digits_page)
    page.script("document.documentElement.dataset.theme = arguments[0]", theme)
    page.script("document.getElementById('graph-expand').click(); graphView.search('convolution')")
    page.script(axe)
    found = browser.execute_async_script("axe.run(document).then(arguments[arguments.length - 1])")
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]] == []
    assert len(found["passes"]) > 25


def test_what_a_screen_reader_needs(browser: Any, digits_page: Path) -> None:
    """Every control has a name, every table has heading cells, every section a heading."""
    page = PageUnderTest(browser, digits_page)
    nameless = """return [...document.querySelectorAll('button, input, select, [role=button]')].filter((e) =>
        !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label'))).map((e) => e.outerHTML)"""
    assert page.script(nameless) == []
    assert page.script("return [...document.querySelectorAll('table')].filter((t) => !t.querySelector('th')).length") == 0
    assert page.script("return [...document.querySelectorAll('main > section')].every((s) => s.querySelector('h2'))")
    assert page.script("return document.documentElement.lang") == "en"


# ---------------------------------------------------------------- bundles by others


def test_hostile_names_are_inert(browser: Any, tmp_path: Path) -> None:
    bundle = hostile_bundle(tmp_path)
    out = tmp_path / "hostile.html"
    done = CliRunner().invoke(main, ["inspect", str(bundle), "--html", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    page = PageUnderTest(browser, out)
    assert page.complaints() == []
    assert page.script("return document.title").startswith(visible(HOSTILE))
    assert page.script("return document.querySelectorAll('img, iframe, object, embed, link').length") == 0
    shown = out.read_text()
    assert not set(shown) & HIDDEN
    page.script("document.getElementById('graph-expand').click(); graphView.search('img')")
    assert page.script("return graphView.state().hits") > 0
    page.script("document.querySelector('#graph-results button').click()")
    assert page.script("return document.querySelectorAll('img').length") == 0
    assert page.complaints() == []


@pytest.mark.parametrize("options", [[], ["-v"]])
def test_hostile_names_are_inert_in_a_terminal(tmp_path: Path, options: list[str]) -> None:
    done = CliRunner().invoke(main, ["inspect", str(hostile_bundle(tmp_path)), *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert visible(HOSTILE)[-12:] in done.output.replace("\n", "").replace(" ", "")
    assert not set(done.output) & HIDDEN


def test_vectors_of_every_kind_have_a_page(tmp_path: Path) -> None:
    """Subclasses, control flow, operators and classes that are not here: all is shown, and nothing is imported."""
    for folder in sorted(VECTORS.iterdir()):
        with Bundle.open(folder / "bundle.aotpack") as bundle:
            assert "</html>" in inspect_page(bundle, folder.name), folder.name


def test_a_graph_of_100000_operations_opens_within_3_seconds(browser: Any, tmp_path: Path) -> None:
    write_large_bundle(tmp_path / "large.aotpack", 100_000)
    out = tmp_path / "large.html"
    with Bundle.open(tmp_path / "large.aotpack") as bundle:
        out.write_text(inspect_page(bundle, "large.aotpack"))
    began = time.perf_counter()
    page = PageUnderTest(browser, out)
    assert page.script("return graphView.state().boxes") > 0
    assert time.perf_counter() - began < 3 * 3, "three times what the issue asks, for a busy machine"
    page.script("graphView.search('layers.399.mlp')")
    assert page.script("return graphView.state().hits") == 70
    assert page.complaints() == []


# ---------------------------------------------------------------- one graph


def graph_of(bundle: Path, *options: str) -> str:
    done = CliRunner().invoke(main, ["inspect", str(bundle), "--graph", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_graph_as_text(portable_digits: Path) -> None:
    lines = graph_of(portable_digits, "train.forward").splitlines()
    at = lines.index("  3:")
    assert lines[at + 1] == (
        "    convolution_1 = convolution(relu, features.3.weight) -> float32[batch, 64, 4, 4]  # model.py:21"
    )
    assert "result['loss'] = nll_loss_forward" in lines
    assert "gradient features.0.weight = convolution_backward_2" in graph_of(portable_digits, "train.backward")


def test_a_graph_as_dot_and_svg(portable_digits: Path) -> None:
    dot = graph_of(portable_digits, "train.backward", "--format", "dot")
    assert dot.startswith('digraph "train.backward" {\n  rankdir=BT')
    assert 'label="features"' in dot
    if shutil.which("dot") is None:
        pytest.skip("graphviz is not installed")
    svg = graph_of(portable_digits, "train.backward", "--format", "svg")
    assert "convolution_backward" in svg
    assert svg.rstrip().endswith("</svg>")


def test_a_graph_of_a_hostile_bundle_is_inert(tmp_path: Path) -> None:
    bundle = hostile_bundle(tmp_path)
    for form in ("text", "dot"):
        shown = graph_of(bundle, "train.forward", "--format", form)
        assert not set(shown) & HIDDEN
        assert r"\u202e" in shown


def test_an_unknown_graph_is_refused(portable_digits: Path) -> None:
    done = CliRunner().invoke(main, ["inspect", str(portable_digits), "--graph", "train.sideways"])
    assert done.exit_code == 1
    assert "train.forward, train.backward" in done.output
