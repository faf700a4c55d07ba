#!/bin/bash
# Packs the GPU kit, and Python packages that it lacks, into bundles .gpu/c00, c01, ... of 52 MiB.
# A transfer holds 64 MiB, and the tree counts uncompressed (about 7 MiB). Takes 15 minutes; 3 if
# .gpu-kit exists.
# usage: benchmarks/gpu_host/bundle.sh [FILE_OR_FOLDER ...]   these are unpacked in /tmp, too
set -euo pipefail
for extra in "$@"; do [ -e "$extra" ] || { echo "$extra does not exist"; exit 2; }; done
cd "$(dirname "$0")/../.."
kit=../shared/gpu-kit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON310:-python3.10}

printf '%s\n' pytest-xdist pytest-cov expecttest psutil optuna ruamel.yaml msgpack requests > "$work/requirements.txt"
[ -d .gpu-kit/b00 ] || "$kit/pack.py" .gpu-kit -r "$work/requirements.txt"

# packages that must not bring their own torch, numpy or protobuf
mkdir "$work/extra"
"$python" -m pip install -q --no-deps --target "$work/extra/packages" onnx ml_dtypes tomli silero_vad ray charset_normalizer
rm -rf "$work/extra/packages/ray/rllib" "$work/extra/packages/ray/dashboard/client"
cp -r "$kit/triton-backend" "$work/extra/"

# one archive each: the host unpacks them at the same time
mkdir "$work/all"
tar -c -C "$work/extra" . | xz -T0 -3 > "$work/all/extra-0.tar.xz"
number=0
for extra in "$@"; do
    number=$((number + 1))
    tar -c -C "$(dirname "$extra")" "$(basename "$extra")" | xz -T0 -3 > "$work/all/extra-$number.tar.xz"
done
cp .gpu-kit/b*/p*.xz "$kit/install.sh" "$work/all/"
rm -rf .gpu
mkdir .gpu
tar -c -C "$work/all" . | split -b 52M -d -a 2 - .gpu/c
ls .gpu | wc -l
