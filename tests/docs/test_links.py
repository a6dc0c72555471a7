"""Every relative link of the documentation leads to a file and its anchor to a heading; every check has a page."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Without code, where brackets are no links."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", lambda m: "`" + m.group().strip("`").replace("[", " ").replace("]", " ") + "`", text)


def anchors(page: Path) -> set[str]:
    """As GitHub and mkdocs make them."""
    heads = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(TOP)))
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or (anchor and anchor not in anchors(to)):
            broken.append(target)
    assert broken == []


def test_every_check_has_its_runbook_as_generated() -> None:
    spec = importlib.util.spec_from_file_location("runbooks", TOP / "scripts/runbooks.py")
    assert spec is not None
    assert spec.loader is not None
    runbooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runbooks)
    wanted = runbooks.pages()
    there = {file.name: file.read_text(encoding="utf-8") for file in (TOP / "docs/runbooks").glob("*.md")}
    assert there == wanted, "run: .venv/bin/python scripts/runbooks.py"


def test_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: `make docs` installs it")
    argv = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(argv, cwd=TOP, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site/runbooks/gpu.lost.html").exists()
