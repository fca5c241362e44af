#!/usr/bin/env bash
# The checks that need no test runner. With a name it runs that one, else all of them.
# Usage: scripts/lint.sh [format|clippy|docs|deny|book]
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/target/tools/bin:$PATH"

format() { cargo fmt --all --check; }
clippy() { cargo clippy --profile ci --workspace --all-targets --locked -- -D warnings; }
# Module pages are for those who work on the code: they name what is private too.
docs() { RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' cargo doc --profile ci --workspace --no-deps --document-private-items --locked; }
# The advisory database is fetched by people and left out here: the rest works offline.
deny() { cargo deny --workspace --all-features check --hide-inclusion-graph bans licenses sources; }
book() {
    mdbook build -d "$PWD/target/book" docs
    python3 scripts/links.py README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md web docs
}

for check in "${@:-format clippy docs deny book}"; do
    for name in $check; do "$name"; done
done
