#!/usr/bin/env python3
"""Prints what a test run showed: claim, test, seconds; then the count.

Usage: scripts/shown.py STEPS.tsv JUNIT.xml SHOWN.toml CASES.toml
STEPS.tsv has a line "name, verdict, seconds" for each step of scripts/test.sh; JUNIT.xml is nextest's report. SHOWN.toml
maps claims to tests by regular expressions over "binary::test" (or "step::name"), CASES.toml known faults. Ends with 1 when a test or step failed,
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


def table(title, claims, everything):
    """Prints claims with their tests, and gives how many expressions fit none."""
    unshown = 0
    print(f"\n{title}\n| claim | test | seconds |\n|---|---|---|")
    for claim, patterns in claims:
        for name in sorted(name for name in everything if any(re.search(p, name) for p in patterns)):
            verdict, seconds = everything[name]
            mark = "" if verdict == "passed" else f" **{verdict}**"
            print(f"| {claim} | {name}{mark} | {seconds:.1f} |")
            claim = ""
        for pattern in (p for p in patterns if not any(re.search(p, name) for name in everything)):
            unshown += 1
            print(f"| {claim} | **no test ran**: {pattern} | |")
            claim = ""
    return unshown


def main():
    steps_path, junit_path, shown_path, cases_path = map(pathlib.Path, sys.argv[1:])
    tests = read_tests(junit_path)
    steps = read_steps(steps_path)
    if any(verdict == "failed" for verdict, _ in tests.values()):
        steps.pop("step::tests", None)
    everything = tests | steps
    shown = [(row["claim"], row["tests"]) for row in tomllib.loads(shown_path.read_text())["shown"]]
    cases = [(f"{row['id']}: {row['right']}", row["tests"]) for row in tomllib.loads(cases_path.read_text())["case"]]
    unshown = table("What was shown", shown, everything) + table("Known faults", cases, everything)

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
