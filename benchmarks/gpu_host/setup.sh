#!/bin/bash
# On the GPU host, after all bundles are in /tmp/in: unpack and install. Takes 25 s.
# usage: setup.sh NUMBER_OF_BUNDLES
set -eu
cd /tmp/in
found=$(ls c* | wc -l)
[ "$found" = "$1" ] || { echo "$found of $1 bundles arrived"; exit 3; }
mkdir -p /tmp/unpacked /tmp/gpu-kit
cat c* | tar -x -C /tmp/unpacked
rm -f c*
cd /tmp/unpacked
pids=""
for part in p*.xz; do
    xz -dc "$part" > "/tmp/gpu-kit/${part%.xz}" &
    pids="$pids $!"
done
for extra in extra-*.tar.xz; do
    xz -dc "$extra" | tar -x -C /tmp &
    pids="$pids $!"
done
for pid in $pids; do wait "$pid"; done  # a bare wait would also wait for other children
rm -rf /tmp/rt
timeout 150 bash install.sh
bash /tmp/triton-backend/setup.sh
