#!/bin/sh
# Makes the recorded files anew, in this directory: PATH must hold nvcc and cuobjdump of CUDA 13.5,
# and gcc. What cuobjdump lists of each file is kept in expected.txt, sm_100f without its f.
# Options are words on purpose.
# shellcheck disable=SC2046,SC2086
set -eu
cd "$(dirname "$0")"

sass() { for n; do printf -- '-gencode arch=compute_%s,code=sm_%s ' "$n" "$n"; done; }
ptx() { for n; do printf -- '-gencode arch=compute_%s,code=compute_%s ' "$n" "$n"; done; }
fatbin() { name=$1; shift; nvcc --fatbin "$@" -o "$name.fatbin" kernel.cu; }

fatbin many --compress-mode size $(sass 75 80 86 90 100 120) $(ptx 120)
fatbin plain --no-compress $(sass 75) $(ptx 75)
fatbin fast --compress-mode speed $(sass 80) $(ptx 80)
fatbin ptx-only $(ptx 80)
fatbin sass-only --compress-mode size $(sass 120)
fatbin accelerated --compress-mode size $(sass 90a 100a 120a) $(ptx 90a)
fatbin family --compress-mode size $(sass 100f 120f) $(ptx 100f)
fatbin named --compress-mode size -lineinfo $(sass 75) $(ptx 80)
fatbin concatenated --concat $(sass 75 80 86 90 100 120) $(ptx 120)
fatbin concatenated-named --concat -lineinfo $(sass 75 80 90a 100a 120a) $(ptx 80 90a 120)
fatbin lto -rdc=true -gencode arch=compute_80,code=lto_80

small="-Xcompiler -fPIC --compress-mode size"
# Two translation units, two fatbins; the second alone has PTX.
nvcc $small -c $(sass 80 120) -o first.o kernel.cu
nvcc $small -c $(sass 80 120) $(ptx 120) -Dadd=add_too -o second.o kernel.cu
gcc -shared -s -o linked.so first.o second.o
# Code still to be linked beside the linked one.
nvcc $small -rdc=true $(sass 80) $(ptx 80) -c -o first.o kernel.cu
nvcc $small -dlink $(sass 80) -o second.o first.o
gcc -shared -s -o relocatable.so first.o second.o
rm first.o second.o
for file in *.fatbin *.so; do
    printf '%s:' "$file"
    { cuobjdump -all -lelf "$file"; cuobjdump -all -lptx "$file"; } 2>/dev/null |
        sed -n 's/.*\.\(sm_[0-9a-z]*\)\.cubin$/ \1/p; s/.*\.sm_\([0-9a-z]*\)\.ptx$/ compute_\1/p' |
        sort -V | tr -d '\n'
    echo
done >expected.txt
