#!/usr/bin/env bash
# Shows the main job on this box: a home and a resident, two processes with two data folders, on loopback only. A mention
# posted at the home runs on the resident and its output streams back. Everything is removed at the end.
# Usage: BIN=target/release [ONCE=1] scripts/run.sh
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$(cd "${BIN:-target/release}" && pwd)
dir=$(mktemp -d "${TMPDIR:-/tmp}/tieline-run.XXXXXX")
pids=()

clean_up() {
    trap - EXIT INT TERM
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The nodes of this show must not meet your own.
export PATH=$bin:$PATH XDG_CONFIG_HOME=$dir/config
unset TIELINE_SOCKET TIELINE_CHANNEL TIELINE_MEMBER TIELINE_TOKEN TIELINE_API
home() { TIELINE_DATA=$dir/home tieline "$@"; }
lab() { TIELINE_DATA=$dir/lab tieline "$@"; }

fail() {
    printf '\n%s\n' "$1" >&2
    for log in "$dir"/*.log; do [ -s "$log" ] && printf -- '---- %s\n%s\n' "${log##*/}" "$(tail -n 20 "$log")" >&2; done
    exit 1
}
# Waits for a fact: until the command succeeds, a minute at most.
until_true() {
    local what=$1 tries=1200
    shift
    until "$@"; do
        [ $((tries -= 1)) -gt 0 ] || fail "waited a minute for $what"
        sleep 0.05
    done
}
# The text of a field in JSON lines that have it. Values here hold no quotes.
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" | head -n 1; }
has() { grep -q "$1" "$2" 2>/dev/null; }

up() { # name, folder
    TIELINE_DATA=$dir/$1 tieline up --api 127.0.0.1:0 --listen /ip4/127.0.0.1/tcp/0 --no-mdns \
        --ready-file "$dir/$1.ready" >"$dir/$1.log" 2>&1 &
    pids+=($!)
    local pid=$!
    until_true "$1 to answer" eval "[ -e '$dir/$1.ready' ] || ! kill -0 $pid 2>/dev/null"
    [ -e "$dir/$1.ready" ] || fail "$1 ended"
}

echo "1. The home: writes the channel's log."
up home
home channel create lobby >/dev/null

echo "2. The resident 'lab': paired by link and six digits, runs members."
mkdir -p "$dir/work"
mkfifo "$dir/digits"
home pair --role member --json <"$dir/digits" >"$dir/pair.log" 2>&1 &
pids+=($!)
exec 3>"$dir/digits"
until_true "the pairing link" has '"link"' "$dir/pair.log"
field link <"$dir/pair.log" |
    lab join - --name lab --resident --harness scripted --cwd "$dir/work" --json >"$dir/join.log" 2>&1 &
joining=$!
pids+=("$joining")
until_true "the six digits" has '"digits":' "$dir/join.log"
until_true "the claim" has '"claim"' "$dir/pair.log"
field digits <"$dir/join.log" >&3
exec 3>&-
wait "$joining" || fail "the resident was not enrolled"
up lab

echo "3. A member 'bot' that lives on the resident."
until_true "the link between the two" eval "home status --json | grep -q '\"state\":\"up\"'"
home member add lobby bot --harness scripted --on lab --cwd "$dir/work" >/dev/null

echo "4. A post at the home, and what streams back from the resident:"
echo
home tail lobby --follow --events &
pids+=($!)
home post lobby '@bot hello from the other box' --wait --timeout 60 >"$dir/post.log" 2>&1 || fail "no answer: $(cat "$dir/post.log")"
# The stream is a process of its own: let it print what the waiting post has already seen.
sleep 0.3
echo

if [ "${ONCE:-}" = 1 ]; then
    home channel verify lobby
    exit 0
fi
kill "${pids[-1]}" 2>/dev/null || true
cat <<NEXT
Both nodes run until Ctrl-C. In another terminal:

  export PATH=$bin:\$PATH TIELINE_DATA=$dir/home
  tieline post lobby '@bot again' --wait     ask again
  tieline tail lobby --follow --events       watch the channel
  tieline status                             nodes, links, members
  tieline channel verify lobby               check every hash and signature
  less $dir/home/channels/*/log/*.jsonl      the log itself

The page's API: $(field api <"$dir/home.ready")
NEXT
wait "${pids[0]}"
