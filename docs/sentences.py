"""Sentence length of the hand-written pages: `python docs/sentences.py [FILE...]`.

Prints words per sentence (median, 90th percentile, longest) of each page and of all together.
Code blocks, tables, headings and HTML comments are left out. A list item is a paragraph.
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = {"operators.md", "lowering.md", "lowering-modules.md", "networks.md"}
GENERATED |= {"networks-gpu.md", "performance.md"}


def paragraphs(text: str) -> list[str]:
    """The running text, one string a paragraph or list item."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    lines = [
        ""
        if re.match(r"\s*\||#| {4,}\S", line) and not re.match(r"\s+[-*\d]", line)
        else line
        for line in text.splitlines()
    ]
    text = re.sub(r"\n\s*(?:[-*]|\d+\.) ", "\n\n", "\n".join(["", *lines]))
    return [
        " ".join(block.split()) for block in re.split(r"\n\s*\n", text) if block.strip()
    ]


def sentences(text: str) -> list[str]:
    """The sentences of a page, links by their text alone and code as one word."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = []
    for paragraph in paragraphs(text):
        plain = re.sub(r"`[^`]*`", "code", paragraph)
        parts += re.split(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z*(\"]|code)", plain)
    return [sentence for sentence in parts if re.search(r"\w", sentence)]


def measure(pages: list[Path]) -> list[int]:
    """Words in each sentence of the pages."""
    return [
        len(re.findall(r"\w[\w.'-]*", sentence))
        for page in pages
        for sentence in sentences(page.read_text(encoding="utf-8"))
    ]


def row(name: str, counts: list[int]) -> str:
    """One line of the report."""
    p90 = statistics.quantiles(counts, n=10)[-1] if len(counts) > 1 else counts[0]
    median = statistics.median(counts)
    return f"{name:40} {len(counts):5} {median:7.0f} {p90:5.0f} {max(counts):8}"


def hand_written() -> list[Path]:
    """README, CONTRIBUTING and the pages under docs/ that no program writes."""
    docs = sorted(
        path for path in (ROOT / "docs").rglob("*.md") if path.name not in GENERATED
    )
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs]


def main(arguments: list[str]) -> None:
    """Print the table."""
    pages = [Path(name).resolve() for name in arguments] or hand_written()
    print(f"{'page':40} count  median   p90  longest")
    for page in pages:
        name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        print(row(str(name), measure([page])))
    print(row("all", measure(pages)))


if __name__ == "__main__":
    main(sys.argv[1:])
