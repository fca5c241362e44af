#!/usr/bin/env python3
"""Prints what a test run showed: claim, test, seconds; then the count.

Usage: scripts/shown.py STEPS.tsv JUNIT.xml SHOWN.toml
STEPS.tsv has a line "name, verdict, seconds" for each step of scripts/test.sh; JUNIT.xml is nextest's report. SHOWN.toml
maps claims to tests by regular expressions over "binary::test" (or "step::name"). Ends with 1 when a test or step failed,
when a claim has no test that ran, and when an expression fits none: it claims what nobody shows.

A test that could not show its claim here prints "NOT SHOWN: why", which the table repeats and the count leaves out.
"""
import pathlib
import re
import sys
import tomllib
import xml.etree.ElementTree as ElementTree

NOT_SHOWN = re.compile(r"NOT SHOWN: .*")


def read_tests(path):
    """{"binary::test": (verdict, seconds)}; a test that was tried again counts as its last try."""
    if not path.exists():
        return {}
    tests = {}
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            bad = case.find("failure") is not None or case.find("error") is not None
            skipped = case.find("skipped") is not None
            verdict = "failed" if bad else "skipped" if skipped else "passed"
            unshown = NOT_SHOWN.search(case.findtext("system-out") or "")
            if unshown and verdict == "passed":
                verdict = unshown.group().lower()
            tests[f"{suite.get('name')}::{case.get('name')}"] = (verdict, float(case.get("time", 0)))
    return tests


def read_steps(path):
    steps = {}
    for line in path.read_text().splitlines():
        name, verdict, seconds = line.split("\t")
        # The tests are counted one by one; their step only counts when it failed as a whole.
        if name != "tests" or verdict == "failed":
            steps[f"step::{name}"] = (verdict, float(seconds))
    return steps


def main():
    steps_path, junit_path, shown_path = map(pathlib.Path, sys.argv[1:])
    tests = read_tests(junit_path)
    steps = read_steps(steps_path)
    if any(verdict == "failed" for verdict, _ in tests.values()):
        steps.pop("step::tests", None)
    everything = tests | steps
    unshown = 0

    print("\nWhat was shown")
    print("| claim | test | seconds |")
    print("|---|---|---|")
    for row in tomllib.loads(shown_path.read_text())["shown"]:
        found = sorted(name for name in everything if any(re.search(p, name) for p in row["tests"]))
        for pattern in row["tests"]:
            if not any(re.search(pattern, name) for name in everything):
                unshown += 1
                print(f"| {row['claim']} | **no test ran**: {pattern} | |")
        for place, name in enumerate(found):
            verdict, seconds = everything[name]
            mark = "" if verdict == "passed" else f" **{verdict}**"
            print(f"| {row['claim'] if place == 0 else ''} | {name}{mark} | {seconds:.1f} |")

    passed = sum(verdict == "passed" for verdict, _ in everything.values())
    failed = sum(verdict == "failed" for verdict, _ in everything.values()) + unshown
    skipped = sum(verdict == "skipped" for verdict, _ in everything.values())
    elsewhere = sum(verdict.startswith("not shown") for verdict, _ in everything.values())
    slowest = sorted(tests.items(), key=lambda item: -item[1][1])[:5]
    if slowest:
        print("\nSlowest: " + ", ".join(f"{name} {seconds:.1f} s" for name, (_, seconds) in slowest))
    for name, (verdict, _) in sorted(everything.items()):
        if verdict == "failed":
            print(f"FAILED {name}")
    print(f"\n{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")
          + (f", {elsewhere} not shown here" if elsewhere else ""))
    return 1 if failed or not passed else 0


sys.exit(main())
