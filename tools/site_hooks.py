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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the made pages; the changelog lies at the root, where people look for it."""
    sys.path.insert(0, str(ROOT / "src"))
    pages = runpy.run_path(str(ROOT / "tools" / "pages.py"))["PAGES"]
    made = {
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        "reference/commands.md": pages["commands"](),
    }
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files
