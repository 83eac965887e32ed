#!/bin/sh
# Run a command where loopback is the only network, where nothing can be written but a new temporary
# folder (TMPDIR, HOME) and the folder of results, and where whatever it starts ends with it. Where
# the system does not allow such a place (Linux namespaces), the command runs as it is.
set -eu
export TMPDIR="$(mktemp -d "${TMPDIR:-/tmp}/silos.XXXXXX")"
export HOME="$TMPDIR/home" HYPOTHESIS_STORAGE_DIRECTORY="$TMPDIR/hypothesis"
export PYTHONDONTWRITEBYTECODE=1
mkdir -p "$HOME" "$FEDERATION_RESULTS"
export FEDERATION_RESULTS="$(cd "$FEDERATION_RESULTS" && pwd)"
trap 'rm -rf "$TMPDIR"' EXIT
if ! unshare -rnmpf --mount-proc true 2>/dev/null; then
    echo "note: no namespaces here; the tests share the network and the files of this machine" >&2
    "$@"
    exit
fi
export FEDERATION_ALONE=1
unshare -rnmpf --kill-child --mount-proc sh -eu -c '
    ip link set lo up
    for open in "$TMPDIR" "$FEDERATION_RESULTS"; do mount --bind "$open" "$open"; done
    cat /proc/self/mounts | while read -r _ place kind options _; do
        case "$kind:$place" in
            proc:*|sysfs:*|devpts:*|mqueue:*|cgroup*|*:/dev|*:/dev/shm|*:"$TMPDIR"|*:"$FEDERATION_RESULTS") ;;
            *) mount -o remount,bind,ro "$place" 2>/dev/null || true ;;
        esac
    done
    mount -t tmpfs tmpfs /dev/shm
    exec "$@"' sh "$@"
