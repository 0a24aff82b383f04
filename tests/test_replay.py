"""tools/replay.py across names that changed: dumps of an older commit are compared by today's."""

from __future__ import annotations

import runpy
from pathlib import Path

REPLAY = runpy.run_path(str(Path(__file__).parent.parent / "tools" / "replay.py"))


def test_stages_are_compared_under_the_names_that_they_have_now(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    files = {
        "02_fuse.txt": "02_fusion.txt",
        "03_kernels.txt": "03_tuning.txt",
        "07_abreast.txt": "07_horizontal_fusion.txt",
        "08_pack.txt": "08_memory.txt",
        "kernels/conv.py": "kernels/conv.py",
    }
    for old, new in files.items():
        for folder, name in ((before, old), (after, new)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"what {new} holds\n")
    (before / "events.json").write_text('{"where": "overlap", "what": "fuse"}\n')
    (after / "events.json").write_text('{"where": "pdl", "what": "fuse"}\n')
    (before / "tasks.txt").write_text("a pair: triton.abreast abreast:rows:1x32.w4+pair:8x8\n")
    (after / "tasks.txt").write_text(
        "a pair: triton.horizontal horizontal:rows:1x32.w4+gemm_chain:8x8\n"
    )
    assert REPLAY["_differences"](before, after, {}) == []
    (after / "08_memory.txt").write_text("something else\n")
    lines = REPLAY["_differences"](before, after, {})
    assert "-what 08_memory.txt holds" in lines and "+something else" in lines


def test_modules_that_moved_have_their_new_names(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, name in ((before, "anabranch.old"), (after, "anabranch.new")):
        folder.mkdir()
        (folder / "08_memory.txt").write_text(f"from {name} import it\n")
    assert REPLAY["_differences"](before, after, {"anabranch.old": "anabranch.new"}) == []
    assert REPLAY["_differences"](before, after, {})
