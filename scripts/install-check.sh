#!/usr/bin/env bash
# Installs into a temporary prefix, uses what is there, removes it, and checks that only the data stayed.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export PREFIX=$dir/prefix BIN=target/ci HOME=$dir/home XDG_DATA_HOME=$dir/home/data XDG_CONFIG_HOME=$dir/home/config
unset TIELINE_DATA
mkdir -p "$HOME" "$XDG_DATA_HOME/tieline"
echo kept >"$XDG_DATA_HOME/tieline/kept"

scripts/install.sh install
"$PREFIX/bin/tieline" --version
"$PREFIX/bin/tieline-relay" --version
grep -qi '^\.TH tieline' "$PREFIX/share/man/man1/tieline.1"
bash -n "$PREFIX/share/bash-completion/completions/tieline"
scripts/install.sh install >/dev/null # over itself
scripts/install.sh uninstall
[ -z "$(find "$PREFIX" -type f)" ]
[ "$(cat "$XDG_DATA_HOME/tieline/kept")" = kept ]
PURGE=1 scripts/install.sh uninstall
[ ! -e "$XDG_DATA_HOME/tieline" ]
echo "installed, used and removed; data stayed until it was purged"
