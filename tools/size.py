"""Lines per room, and the longest file of each: where the house grows.

Counts every line of every Python file under src/anabranch; a file directly in the package is a
room of its own. Then the tests, as one line.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    package = ROOT / "src" / "anabranch"
    rooms: dict[str, list[tuple[int, str]]] = {}
    for file in sorted(package.rglob("*.py")):
        place = file.relative_to(package)
        rooms.setdefault(place.parts[0], []).append((_lines(file), str(place)))
    rows = sorted(rooms.items(), key=lambda room: -sum(lines for lines, _ in room[1]))
    print(f"{'room':<16}{'files':>6}{'lines':>8}  longest")
    for room, files in rows:
        lines, longest = max(files)
        print(f"{room:<16}{len(files):>6}{sum(n for n, _ in files):>8}  {longest} ({lines})")
    tests = [_lines(file) for file in (ROOT / "tests").rglob("*.py")]
    total = sum(lines for files in rooms.values() for lines, _ in files)
    print(f"{'all of it':<16}{sum(map(len, rooms.values())):>6}{total:>8}")
    print(f"{'tests':<16}{len(tests):>6}{sum(tests):>8}")


def _lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    main()
