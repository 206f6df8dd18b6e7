#!/bin/sh
# Writes what `provision gate` says of this node to /run/gpu-provision/gate, one line for others to read:
#
#   SECONDS CODE ANSWER     # when, since 1970; the exit code; "open: ...", "closed: ..." or "undecided: ..."
#
# gpu-gate.timer starts it, or cron as root. /etc/gpu-provision/gate.conf says which image is asked for, and how:
#
#   IMAGE=oci:/shared/images:pytorch2.14.1-cu130
#   PROVISION="/opt/gpu-provision/run provision"
#   OPTIONS="--no-test --max-age 24h"       # without --no-test it runs the suite if no record answers
set -u
conf=${GATE_CONF:-/etc/gpu-provision/gate.conf}
answer=${ANSWER:-/run/gpu-provision/gate}
# shellcheck source=/dev/null
[ ! -r "$conf" ] || . "$conf"
if [ -z "${IMAGE:-}" ] || [ -z "${PROVISION:-}" ]; then
    echo "gpu-gate.sh: $conf has to set IMAGE and PROVISION; nothing was asked" >&2
    exit 2
fi
umask 022
mkdir -p "${answer%/*}"
# shellcheck disable=SC2086 # these are words
said=$($PROVISION gate ${OPTIONS:-} "$IMAGE")
code=$?
said=$(printf '%s' "${said:-the gate ended with exit code $code, see journalctl -u gpu-gate}" | head -n 1)
# a reader finds the old answer or the whole new one
printf '%s %s %s\n' "$(date +%s)" "$code" "$said" >"$answer.new" && mv "$answer.new" "$answer"
