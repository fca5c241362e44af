#!/bin/sh
# Installs the agent programs that the tests drive into a cache folder, and prints the folder with their commands.
#
#   tests/harness-clis/install.sh            cache: $TIELINE_TEST_CACHE, else target/harness-clis in this tree
#
# The second run needs no network: it sees that the cache was made from the same package.json and stops. No lock file is
# kept, because it would name the registry that this box happens to use; the two versions are pinned exactly instead.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${TIELINE_TEST_CACHE:-$here/../../target/harness-clis}
mkdir -p "$cache"
cache=$(CDPATH='' cd -- "$cache" && pwd)
bin=$cache/node_modules/.bin

# One installer at a time: test runs start side by side.
exec 9>"$cache/lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi

if [ -f "$cache/done" ] && cmp -s "$here/package.json" "$cache/done"; then
    echo "$bin"
    exit 0
fi
if ! command -v npm >/dev/null 2>&1; then
    echo "npm is not installed; install Node.js 20 or newer with npm, then run this again" >&2
    exit 1
fi

echo "installing the agent programs of the tests into $cache (about 800 MB, once)" >&2
rm -f "$cache/done"
cp "$here/package.json" "$cache/package.json"
(cd "$cache" && npm install --no-package-lock --no-audit --no-fund --loglevel=error >&2)
"$bin/claude" --version >&2
"$bin/codex" --version >&2
# Last, so that an install that was cut off is made again.
cp "$here/package.json" "$cache/done.new" && mv "$cache/done.new" "$cache/done"
echo "$bin"
