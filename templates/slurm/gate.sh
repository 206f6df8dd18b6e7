#!/bin/sh
# Keeps jobs off a node that does not pass `provision gate`. One file for two uses in slurm.conf:
#
#   Prolog=/etc/slurm/gate.sh               # before a job starts: a record answers, or a quick test
#   PrologFlags=Alloc                       # when it is allocated, not when its first step starts
#   HealthCheckProgram=/etc/slurm/gate.sh   # regularly: drains a node whose last test failed
#   HealthCheckInterval=300
#
# /etc/slurm/gate.conf says which image is tested, and how provision is called:
#
#   IMAGE=registry.example/team/torch:cu128
#   PROVISION="/opt/gpu-provision/run provision"
#   OPTIONS="--max-age 12h"
#   UNDECIDED=start                         # or drain: if the gate cannot decide
#
# Exit codes of `provision gate`: 0 open, 1 closed: the node is at fault, others: it cannot decide. A
# program that does not even start may end with 1, too, so its line has to say "closed". Slurm drains
# the node and requeues the job if a Prolog fails, so what is wrong with the image or its start never
# ends it: that would drain every node. Slurm ends a HealthCheckProgram after 60 s, so nothing is
# tested there.
set -u
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
HOME=${HOME:-/root}
export PATH HOME
IMAGE="" PROVISION="" OPTIONS="" UNDECIDED=start
conf=${GATE_CONF:-/etc/slurm/gate.conf}
# shellcheck source=/dev/null
[ ! -r "$conf" ] || . "$conf"
if [ -z "$IMAGE" ] || [ -z "$PROVISION" ]; then
    echo "gate.sh: $conf has to set IMAGE and PROVISION; nothing was tested" >&2
    exit 0
fi

drain() {
    reason=$(printf '%s' "gpu-provision: $1" | tr -d '"\n' | cut -c1-200)
    scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN Reason="$reason"
}

if [ -z "${SLURM_JOB_ID:-}" ]; then # the health check
    # shellcheck disable=SC2086 # these are words
    said=$($PROVISION gate --no-test $OPTIONS "$IMAGE")
    case $?:$said in
    1:closed*) drain "$said" ;;
    esac
    exit 0
fi
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0 # the job has no GPU
# shellcheck disable=SC2086
said=$($PROVISION gate $OPTIONS "$IMAGE")
case $?:$said in
0:*) exit 0 ;;
1:closed*) ;;
*:"undecided: image at fault:"* | *:"undecided: configuration at fault:"*) exit 0 ;;
*) [ "$UNDECIDED" = drain ] || exit 0 ;;
esac
drain "${said:-undecided, see the log of slurmd}"
exit 1 # the job goes back into the queue
