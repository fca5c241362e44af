#!/usr/bin/env bash
# Puts the binaries, the man page and shell completions under PREFIX, or removes them again.
# Usage: BIN=target/release PREFIX=/usr/local scripts/install.sh install|uninstall
set -euo pipefail
cd "$(dirname "$0")/.."

: "${PREFIX:?}"
root=${DESTDIR:-}$PREFIX
binaries=(tieline tieline-relay)
pages=("$root/share/man/man1/tieline.1" "$root/share/bash-completion/completions/tieline"
    "$root/share/zsh/site-functions/_tieline" "$root/share/fish/vendor_completions.d/tieline.fish")

case "${1:-}" in
install)
    : "${BIN:?}"
    for name in "${binaries[@]}"; do
        # A new file under the name: a running node keeps the old one open.
        install -D -m 0755 "$BIN/$name" "$root/bin/.$name.new"
        mv -f "$root/bin/.$name.new" "$root/bin/$name"
    done
    for page in "${pages[@]}"; do mkdir -p "$(dirname "$page")"; done
    "$root/bin/tieline" man >"${pages[0]}"
    "$root/bin/tieline" completions bash >"${pages[1]}"
    "$root/bin/tieline" completions zsh >"${pages[2]}"
    "$root/bin/tieline" completions fish >"${pages[3]}"
    echo "installed $("$root/bin/tieline" --version) in $root/bin"
    case ":$PATH:" in *":$root/bin:"*) ;; *) echo "add it to PATH: export PATH=\"$root/bin:\$PATH\"" ;; esac
    echo "next: tieline up"
    ;;
uninstall)
    data=${TIELINE_DATA:-${XDG_DATA_HOME:-$HOME/.local/share}/tieline}
    config=${XDG_CONFIG_HOME:-$HOME/.config}/tieline
    if [ "${PURGE:-}" = 1 ] && [ -x "$root/bin/tieline" ] && "$root/bin/tieline" status >/dev/null 2>&1; then
        echo "a node runs on $data: stop it first with: tieline stop" >&2
        exit 1
    fi
    for name in "${binaries[@]}"; do rm -f "$root/bin/$name"; done
    rm -f "${pages[@]}"
    if [ "${PURGE:-}" = 1 ]; then
        rm -rf -- "$data" "$config"
        echo "uninstalled; removed $data and $config"
    else
        echo "uninstalled; your data stays in $data (PURGE=1 removes it)"
    fi
    ;;
*)
    echo "usage: scripts/install.sh install|uninstall" >&2
    exit 2
    ;;
esac
