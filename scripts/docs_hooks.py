"""What mkdocs does not do by itself: pages outside docs/ become part of the site, as do files of the repository that pages link.

CONTRIBUTING.md and the specification are pages. The report on a fault of torch becomes a page with what it
showed. Other files that exist are copied to ``source/``. A link to a folder becomes its text. A link to what
does not exist is left alone, and fails the strict build.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from devtools.torch_fixes.programs import REPORTS, path_of
from devtools.torch_fixes.reports import pages as pages_of_fixes

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

LINK = re.compile(r"(?P<head>!?\[(?P<text>[^\]]*)\]\()(?P<target>[^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/, and every file that a page links."""
    pages = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "spec").glob("*.md")), *sorted((ROOT / "spec").glob("*/*.md"))]
    for page in pages:
        files.append(File.generated(config, str(page.relative_to(ROOT)), abs_src_path=str(page)))
    linked = {file for page in [*pages, *DOCS.rglob("*.md")] for file in _linked(page)}
    reports = {path_of(fix): text for fix, text in pages_of_fixes().items()}
    for report, text in reports.items():
        files.append(File.generated(config, _uri(report), content=text))
    for file in sorted(linked - {*pages, *reports}):
        files.append(File.generated(config, _uri(file), abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository, as links of the site."""
    if page.file.abs_src_path is None:  # a page of a fix links nothing here
        return markdown
    source = Path(page.file.abs_src_path)
    here = Path(page.file.src_uri).parent

    def replaced(match: re.Match[str]) -> str:
        path, _, anchor = match["target"].partition("#")
        target = _resolved(source, path)
        if target is None:
            return match[0]
        if target.is_dir():
            return match["text"]
        uri = str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) else _uri(target)
        return f"{match['head']}{os.path.relpath(uri, here)}{'#' + anchor if anchor else ''})"

    return LINK.sub(replaced, markdown)


def _linked(page: Path) -> set[Path]:
    """Files outside docs/ that a page links."""
    targets = {_resolved(page, match["target"].partition("#")[0]) for match in LINK.finditer(page.read_text())}
    return {target for target in targets if target is not None and target.is_file() and not target.is_relative_to(DOCS)}


def _resolved(page: Path, path: str) -> Path | None:
    """The file of the repository that a relative link names, if there is one."""
    if not path or re.match(r"[a-z]+:", path):
        return None
    target = (page.parent / path).resolve()
    return target if target.exists() and target.is_relative_to(ROOT) else None


def _uri(file: Path) -> str:
    if file.parent == REPORTS:
        return f"torch-fixes/{file.stem}.md"
    relative = file.relative_to(ROOT)
    page = file.suffix == ".md" and relative.parts[0] in {"CONTRIBUTING.md", "spec"}
    return str(relative) if page else f"source/{relative}"
