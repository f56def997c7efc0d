"""Figures of ``aotpack inspect --html``, and the README's picture of its page.

    python -m devtools.inspect_pages                     builds portable bundles of four networks, and measures their pages
    python -m devtools.inspect_pages --bundles FOLDER    builds only the bundles that are not in FOLDER yet
    python -m devtools.inspect_pages --picture           draws docs/inspect.png from the page of examples/digits

Needs the Debian packages chromium and chromium-driver, and selenium. Writes
scripts/bench/results/inspect.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aotpack
from aotpack.tools.report.html.inspect import inspect_page
from aotpack_loader.archive.bundle import Bundle

from .browser import chromium
from .files import import_file
from .large_bundle import write_large_bundle
from .machine import provenance
from .paths import RESULTS, ROOT

PICTURE = ROOT / "docs/inspect.png"
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("examples/digits/model.py", {}),
    "GPT-2 small": ("scripts/devtools/bench/models/gpt2.py", {}),
    "ResNet-50": ("scripts/devtools/bench/models/resnet50.py", {}),
    "48 layers": ("scripts/devtools/bench/models/stack.py", {"layers": 48}),
}
ROUNDS = 3


def build(path: str, options: dict[str, Any], out: Path, *, targets: tuple[str, ...] = ("portable",), cache: bool = True) -> None:
    """Build the network that the file ``path`` defines."""
    module = import_file(ROOT / path, "inspected_model")
    inputs = module.example_inputs()
    args, kwargs = inputs if inputs and isinstance(inputs[-1], dict) else (inputs, {})
    shapes = module.dynamic_shapes() if hasattr(module, "dynamic_shapes") else None
    aotpack.build(module.model(**options), args, kwargs, out=out, targets=targets, dynamic_shapes=shapes, cache=cache)


def measured(driver: Any, bundle: Path, page: Path) -> dict[str, Any]:
    """Write the page of a bundle and open it. Times are the shortest of several, in seconds."""
    with Bundle.open(bundle) as opened:
        methods = opened.program.methods.values()
        graphs = [graph for method in methods for graph in (method.forward, method.backward and method.backward.graph) if graph]
        operations = sum(len(opened.graph(graph).nodes) for graph in graphs)
    wrote, opens = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with Bundle.open(bundle) as opened:
            page.write_text(inspect_page(opened, bundle.name))
        wrote.append(time.perf_counter() - began)
        began = time.perf_counter()
        driver.get(page.as_uri())
        assert driver.execute_script("return graphView.state().boxes") > 0
        opens.append(time.perf_counter() - began)
    return {"operations": operations, "page_bytes": page.stat().st_size, "write_seconds": min(wrote), "open_seconds": min(opens)}


def measure(folder: Path) -> None:
    """Measure the page of each network. Bundles are built where ``folder`` does not have them."""
    found: dict[str, Any] = {}
    makers: dict[str, Callable[[Path], None]] = {
        name: lambda out, case=case: build(*case, out)  # type: ignore[misc]
        for name, case in NETWORKS.items()
    }
    makers["a graph of 100,000 operations"] = lambda out: write_large_bundle(out, 100_000)
    folder.mkdir(parents=True, exist_ok=True)
    with chromium(1400, 1000) as driver:
        version = driver.capabilities["browserVersion"]
        for name, make in makers.items():
            bundle = folder / f"{name} page.aotpack".replace(" ", "-")
            if not bundle.exists():
                make(bundle)
            found[name] = measured(driver, bundle, folder / "page.html")
            print(name, found[name], flush=True)
    facts = provenance()
    facts["versions"]["chromium"] = version
    (RESULTS / "inspect.json").write_text(json.dumps({"pages": found, "rounds": ROUNDS, **facts}, indent=1) + "\n")


CONTENT = "return [...document.querySelectorAll('#graph-canvas .box')].map((box) => box.getAttribute('aria-label'))"
"""What the picture shows: the boxes of the graph. It stands in the picture's file, so that a test can compare it."""


def draw(page: Path, picture: Path, section: str, width: int = 1500, height: int = 1000) -> None:
    """Draw one section of a page, in light colours, with one operation chosen."""
    from PIL import Image, PngImagePlugin

    with chromium(width, height) as driver:
        driver.get(page.as_uri())
        driver.execute_script(
            "document.documentElement.dataset.theme = 'light'; document.documentElement.style.scrollBehavior = 'auto';"
            "graphView.select('forward/0', false); document.getElementById(arguments[0]).scrollIntoView()",
            section,
        )
        time.sleep(1)
        driver.save_screenshot(str(picture))
        facts = PngImagePlugin.PngInfo()
        facts.add_text("content", json.dumps(driver.execute_script(CONTENT)))
    with Image.open(picture) as drawn:
        drawn.convert("RGB").quantize(128).save(picture, optimize=True, pnginfo=facts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="inspect_pages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--picture", action="store_true", help=f"draw {PICTURE.relative_to(ROOT)} only")
    parser.add_argument("--bundles", type=Path, metavar="FOLDER", help="keep the bundles in this folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not given.picture:
            measure(given.bundles or Path(folder))
            return
        bundle, page = Path(folder) / "digits.aotpack", Path(folder) / "digits.html"
        build(*NETWORKS["digits"], bundle)
        with Bundle.open(bundle) as opened:
            page.write_text(inspect_page(opened, bundle.name))
        draw(page, PICTURE, "graphs")


if __name__ == "__main__":
    main()
