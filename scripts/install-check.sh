#!/usr/bin/env bash
# `make install` into a temporary prefix, a node and an answered post with what was installed, `make uninstall`; and checks
# that only the data stayed, until it was purged.
set -euo pipefail
cd "$(dirname "$0")/.."

# Cargo's own folders stay where they are; everything else of a person is a new one.
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}
dir=$(mktemp -d)
pid=
clean_up() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    rm -rf "$dir"
}
trap clean_up EXIT
export HOME=$dir/home XDG_DATA_HOME=$dir/home/data XDG_CONFIG_HOME=$dir/home/config
prefix=$dir/prefix
unset TIELINE_DATA TIELINE_API TIELINE_LISTEN
mkdir -p "$HOME"
make() { command make --no-print-directory PROFILE=ci PREFIX="$prefix" "$@"; }
fail() {
    echo "FAILED: $1" >&2
    [ ! -e "$dir/log" ] || tail -n 20 "$dir/log" >&2
    exit 1
}

make install
export PATH=$prefix/bin:$PATH
[ "$(command -v tieline)" = "$prefix/bin/tieline" ] || fail "tieline is not the installed one"
tieline-relay --version
grep -qi '^\.TH tieline' "$prefix/share/man/man1/tieline.1" || fail "no man page"
bash -n "$prefix/share/bash-completion/completions/tieline"

tieline up --api 127.0.0.1:0 --listen /ip4/127.0.0.1/tcp/0 --no-mdns --ready-file "$dir/ready" >"$dir/log" 2>&1 &
pid=$!
until [ -e "$dir/ready" ]; do
    kill -0 "$pid" 2>/dev/null || fail "the installed node ended"
    sleep 0.05
done
tieline channel create lobby
tieline member add lobby echo --harness scripted
tieline post lobby '@echo script:text(installed and at work)' --wait --timeout 60 | tee "$dir/answer"
grep -q 'installed and at work' "$dir/answer" || fail "no answer"

make install >/dev/null # over itself, while it runs
tieline status >/dev/null || fail "the running node did not outlive a new install"
! make uninstall PURGE=1 2>"$dir/refused" || fail "data of a running node was purged"
grep -q 'tieline stop' "$dir/refused" || fail "a refused purge does not say what to type"
tieline stop
wait "$pid" || fail "the installed node did not stop in order"
pid=

make uninstall
hash -r
[ -z "$(find "$prefix" -type f)" ] || fail "files stayed: $(find "$prefix" -type f)"
[ -d "$XDG_DATA_HOME/tieline/channels" ] || fail "the data is gone"
make uninstall PURGE=1
[ ! -e "$XDG_DATA_HOME/tieline" ] || fail "the data stayed"
echo "installed, used and removed; data stayed until it was purged"
