#!/usr/bin/env bash
# Everything that CI runs, in one go: a failing step does not hide the next one. Ends with a table of what was shown
# and the count. Steps and their seconds go to target/shown/steps.tsv, tests to target/nextest/ci/junit.xml.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/tools/bin:$PATH" CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

out=target/shown
mkdir -p "$out"
: >"$out/steps.tsv"
rm -f target/nextest/ci/junit.xml

step() {
    local name=$1 began=$EPOCHREALTIME verdict=passed
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" || verdict=failed
    printf '%s\t%s\t%s\n' "$name" "$verdict" "$(awk "BEGIN{printf \"%.1f\", $EPOCHREALTIME-$began}")" >>"$out/steps.tsv"
}

scripts/tools.sh test || exit 1
step harness-clis tests/harness-clis/install.sh
step build cargo build --profile ci --workspace --bins --locked
step format scripts/lint.sh format
step clippy scripts/lint.sh clippy
step tests cargo nextest run --cargo-profile ci --profile ci --workspace --locked --no-fail-fast
step doctests cargo test --profile ci --workspace --doc --locked
step docs scripts/lint.sh docs
step deny scripts/lint.sh deny
step book scripts/lint.sh book
step run-once make --no-print-directory run ONCE=1 PROFILE=ci
step install scripts/install-check.sh

exec python3 scripts/shown.py "$out/steps.tsv" target/nextest/ci/junit.xml tests/shown.toml tests/cases.toml
