"""What mkdocs asks while it builds the site: the pages that are made from the code.

Named in mkdocs.yml. docs/options.md is a file; all other pages of `tools/pages.py` are made here.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
AT_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the made pages, and those that lie at the root, where people look for them."""
    sys.path.insert(0, str(ROOT / "src"))
    pages = runpy.run_path(str(ROOT / "tools" / "pages.py"))["PAGES"]
    content_of = {
        name.lower(): _as_page((ROOT / name).read_text(encoding="utf-8")) for name in AT_ROOT
    }
    content_of["reference/commands.md"] = pages["commands"]()
    for name, content in content_of.items():
        files.append(File.generated(config, name, content=content))
    return files


def _as_page(text: str) -> str:
    """With links that start in docs, as those of all pages of the site do."""
    for name in AT_ROOT:
        text = text.replace(f"]({name})", f"]({name.lower()})")
    return text.replace("](docs/", "](")
