#!/bin/bash
# Records what one GPU says and does, in two halves of at most five minutes, without a network.
#
#   OUT=DIR tests/gpu/record.sh 1     what the driver says, load, number formats, NCCL, faults
#   OUT=DIR tests/gpu/record.sh 2     the whole suite, full load with the counters after it, and JAX
#
# PYTHON names the Python that has PyTorch (and JAX); PRETEND=1 runs everything on the CPU with a
# pretended GPU. Each step has a limit, and the later steps run whatever became of it. A half leaves
# at most eight files of 16 MiB. Nothing of the GPU is configured.
set -u
half=${1:-}
case $half in
1 | 2) ;;
*)
    echo "usage: OUT=DIR $0 1|2" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/../.." || exit 2
out=$(mkdir -p "${OUT:-gpu-record}" && cd "${OUT:-gpu-record}" && pwd) || exit 2
python=${PYTHON:-python3}
probe=("$python" -m tests.gpu.probes ${PRETEND:+--pretend})
suite=("${probe[@]}" verify)
most=$((16 << 20)) # bytes of a file
export PYTHONUNBUFFERED=1
printf 'step\tlimit s\ttook s\texit\n' >"$out/$half-steps.tsv"

# step NAME SECONDS FILE COMMAND...: both streams go to the end of FILE; 124 and 137: it was stopped.
step() {
    local name=$1 limit=$2 file=$out/$half-$3 began=$SECONDS code=0
    shift 3
    printf '\n== %s\n' "$name" >>"$file"
    timeout --kill-after=5 "$limit" "$@" >>"$file" 2>&1 </dev/null || code=$?
    printf '%s\t%s\t%s\t%s\n' "$name" "$limit" $((SECONDS - began)) "$code" | tee -a "$out/$half-steps.tsv"
}

# What the machine says of its GPUs; a command that is not there says so.
# shellcheck disable=SC2016 # it is expanded by the shell that runs it
machine='
for words in "nvidia-smi" "nvidia-smi -q" "nvidia-smi -q -d ROW_REMAPPER,ECC,POWER,CLOCK,PERFORMANCE" \
    "nvidia-smi topo -m" "nvidia-smi nvlink -s" "nvidia-smi nvlink -e" "nvidia-smi nvlink -R" "nvidia-smi vgpu" "lspci -d 10de: -nnvv" \
    "uname -a" "cat /etc/os-release" "cat /proc/driver/nvidia/version" "cat /proc/driver/nvidia/params" \
    "df -h /dev/shm" "ulimit -a" "lscpu"; do
    printf "\n\$ %s\n" "$words"
    timeout 10 sh -c "$words" 2>&1
done
printf "\nnodes\n"
ls -lR /dev/nvidia* /dev/dri /dev/infiniband 2>&1
printf "\nsysfs of 10de\n"
for device in /sys/bus/pci/devices/*; do
    [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
    echo "$device"
    printf "  driver %s\n" "$(basename "$(readlink "$device/driver")")"
    for name in class device current_link_speed current_link_width max_link_speed max_link_width numa_node aer_dev_fatal; do
        printf "  %s %s\n" "$name" "$(tr "\n" " " <"$device/$name" 2>&1)"
    done
    port=$(dirname "$(readlink -f "$device")")
    for name in max_link_speed max_link_width; do
        printf "  port %s %s\n" "$name" "$(tr "\n" " " <"$port/$name" 2>&1)"
    done
done
printf "\nthe kernel log, where it can be read\n"
dmesg 2>&1 | grep -iE "nvrm|xid|nvidia|AER|mce|denied|not permitted" | tail -200
'

beside() { # the quick suite while another process holds memory and computes
    "${probe[@]}" hold &
    local holder=$! code=0
    sleep 8
    timeout 30 "${suite[@]}" --level quick --report "$out/1-busy.json"
    code=$?
    kill "$holder"
    wait "$holder" 2>/dev/null
    return $code
}

if [ "$half" = 1 ]; then
    step machine 25 machine.txt bash -c "$machine"
    step recording 20 log.txt "${suite[@]}" --only health --record-device "$out/1-machine.json"
    step quick 30 log.txt "${suite[@]}" --level quick --report "$out/1-quick.json"
    step load 40 probes.txt "${probe[@]}" load
    step formats 45 probes.txt "${probe[@]}" formats
    step collective 35 nccl.txt env NCCL_DEBUG=INFO "${probe[@]}" collective
    step faults 45 probes.txt "${probe[@]}" faults
    step soak 20 probes.txt "${probe[@]}" soak
    export -f beside
    export out
    step busy 40 log.txt bash -c "$(declare -p probe suite); beside"
else
    # apart, since a run that is stopped leaves no report
    step numerics 105 log.txt "${suite[@]}" --level full --only numerics,training --report "$out/2-numerics.json"
    step speed 70 log.txt "${suite[@]}" --level full --only speed,memory,collectives --report "$out/2-speed.json"
    step convolutions 35 probes.txt "${probe[@]}" convolutions
    step burn 30 log.txt "${suite[@]}" --only health --burn 0.2 --report "$out/2-burn.json"
    step jax 30 log.txt "${suite[@]}" --framework jax --level standard --only numerics --report "$out/2-jax.json"
    step jax-without-tf32 30 log.txt env NVIDIA_TF32_OVERRIDE=0 "${suite[@]}" \
        --framework jax --level standard --only numerics --report "$out/2-jax-without-tf32.json"
fi
find "$out" -maxdepth 1 -type f -name "$half-*" -size "+${most}c" -exec truncate --size="$most" {} +
find "$out" -maxdepth 1 -type f -name "$half-*" -printf '%s bytes  %f\n'
