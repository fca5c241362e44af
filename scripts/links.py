#!/usr/bin/env python3
"""Checks that every relative link and anchor of the given markdown files and folders leads somewhere.

Usage: scripts/links.py PATH...   Prints each dead link as file:line and ends with 1 if there is one.
"""
import pathlib
import re
import sys

LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")


def slug(title):
    """A heading's anchor, as mdBook and code hosts make it."""
    title = re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", r"\1", title.strip().lower())
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title))


def lines_of_prose(path):
    """Lines outside code fences, with their numbers."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(path):
    return {slug(line.lstrip("#")) for _, line in lines_of_prose(path) if re.match(r"#{1,6} ", line)}


def dead_links(path):
    for number, line in lines_of_prose(path):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            other = (path.parent / file) if file else path
            if not other.exists():
                yield number, target, "no such file"
            elif anchor and other.suffix == ".md" and anchor not in anchors(other):
                yield number, target, "no such heading"


def main():
    files = []
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        files += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    dead = 0
    for path in files:
        for number, target, why in dead_links(path):
            print(f"{path}:{number}: {target}: {why}")
            dead += 1
    print(f"{len(files)} pages, {dead} dead links")
    return 1 if dead else 0


sys.exit(main())
