#!/usr/bin/env bash
# Shows the main job on this box: a home and a resident, two processes with two data folders, on loopback only. A mention
# posted at the home runs on the resident and its output streams back. Nothing is left behind at the end.
# Usage: BIN=target/release [ONCE=1] scripts/run.sh
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$(cd "${BIN:-target/release}" && pwd)
dir=$(mktemp -d "${TMPDIR:-/tmp}/tieline-run.XXXXXX")
pids=()

# Everything that runs here is told to end, and killed when it has not after ten seconds; then the folder goes.
clean_up() {
    local status=$? pid tries=200
    trap '' EXIT INT TERM HUP
    # Ctrl-C may end a command before this shell hears of it.
    [ "$status" != 130 ] || printf '\nStopping both nodes and removing %s\n' "$dir"
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do
        while kill -0 "$pid" 2>/dev/null && [ $((tries -= 1)) -gt 0 ]; do sleep 0.05; done
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The nodes of this show must not meet your own.
export PATH=$bin:$PATH XDG_CONFIG_HOME=$dir/config
unset TIELINE_SOCKET TIELINE_CHANNEL TIELINE_MEMBER TIELINE_TOKEN TIELINE_API TIELINE_LISTEN TIELINE_BOOTSTRAP
home() { TIELINE_DATA=$dir/home tieline "$@"; }
lab() { TIELINE_DATA=$dir/lab tieline "$@"; }

fail() {
    printf '\nFAILED: %s\n' "$1" >&2
    for log in "$dir"/*.log; do
        [ ! -s "$log" ] || printf -- '---- %s\n%s\n' "${log##*/}" "$(tail -n 20 "$log")" >&2
    done
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
runs() { kill -0 "$1" 2>/dev/null; }

up() { # name, which is also the folder
    # A plain command, so that its process is the one to end: a function would put a shell in between.
    TIELINE_DATA=$dir/$1 tieline up --name "$1" --api 127.0.0.1:0 --listen /ip4/127.0.0.1/tcp/0 --no-mdns \
        --ready-file "$dir/$1.ready" >"$dir/$1.log" 2>&1 &
    local pid=$!
    pids+=("$pid")
    until_true "$1 to answer" eval "[ -e '$dir/$1.ready' ] || ! runs $pid"
    [ -e "$dir/$1.ready" ] || fail "$1 did not start"
}

echo "1. The home: writes the channel's log."
up home
home_pid=${pids[0]}
home channel create lobby >"$dir/create.log" 2>&1 || fail "the channel was not made"

echo "2. The resident 'lab': paired by link and six digits, runs members."
mkdir -p "$dir/work"
mkfifo "$dir/digits"
TIELINE_DATA=$dir/home tieline pair --role member --json <"$dir/digits" >"$dir/pair.log" 2>&1 &
pids+=($!)
exec 3>"$dir/digits"
until_true "the pairing link" has '"link"' "$dir/pair.log"
field link <"$dir/pair.log" >"$dir/link"
TIELINE_DATA=$dir/lab tieline join - --name lab --resident --harness scripted --cwd "$dir/work" --json \
    <"$dir/link" >"$dir/join.log" 2>&1 &
joining=$!
pids+=("$joining")
until_true "the six digits" has '"digits":' "$dir/join.log"
until_true "the claim" has '"claim"' "$dir/pair.log"
field digits <"$dir/join.log" >&3
exec 3>&-
wait "$joining" || fail "the resident was not enrolled"
up lab

echo "3. A member 'bot' that lives on the resident."
until_true "the link between the two" eval "home status --json 2>/dev/null | grep -q '\"state\":\"up\"'"
home member add lobby bot --harness scripted --on lab --cwd "$dir/work" >"$dir/member.log" 2>&1 ||
    fail "the member was not added"

echo "4. A post at the home, and what streams back from the resident:"
echo
TIELINE_DATA=$dir/home tieline tail lobby --follow --events > >(tee "$dir/tail.log") 2>"$dir/tail-errors.log" &
pids+=($!)
tailing=$!
home post lobby '@bot hello from the other box' --wait --timeout 60 >"$dir/post.log" 2>&1 || fail "no answer"
# The stream is another process: wait until it, too, has shown the end.
until_true "the streamed answer" has '✓ completed' "$dir/tail.log"
kill "$tailing" 2>/dev/null || true
echo

if [ "${ONCE:-}" = 1 ]; then
    home channel verify lobby || fail "the channel does not verify"
    exit 0
fi
cat <<NEXT
Both nodes run until Ctrl-C, which removes them and their folder. In another terminal:

  export PATH=$bin:\$PATH TIELINE_DATA=$dir/home
  tieline post lobby '@bot again' --wait     ask again
  tieline tail lobby --follow --events       watch the channel
  tieline status                             nodes, links, members
  tieline channel verify lobby               check every hash and signature
  less $dir/home/channels/*/log/*.jsonl      the log itself

The page's API: $(field api <"$dir/home.ready")
NEXT
# Ends when either node does: `tieline stop` typed elsewhere is an end too.
lab_pid=${pids[3]}
while runs "$home_pid" && runs "$lab_pid"; do wait -n "$home_pid" "$lab_pid" 2>/dev/null || true; done
echo "A node has stopped."
