#!/bin/bash
# Packs the GPU kit, and Python packages that it lacks, into bundles .gpu/c00, c01, ... of 52 MiB.
# A transfer holds 64 MiB, and the tree counts uncompressed (about 7 MiB). Takes 10 minutes.
# usage: benchmarks/gpu_host/bundle.sh [FILE_OR_FOLDER ...]   these are unpacked in /tmp, too
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=../shared/gpu-kit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON310:-python3.10}

printf '%s\n' pytest-xdist pytest-cov expecttest psutil optuna ruamel.yaml msgpack requests > "$work/requirements.txt"
"$kit/pack.py" .gpu-kit -r "$work/requirements.txt"

# packages that must not bring their own torch, numpy or protobuf
mkdir "$work/extra"
"$python" -m pip install -q --no-deps --target "$work/extra/packages" onnx ml_dtypes tomli silero_vad ray charset_normalizer
rm -rf "$work/extra/packages/ray/rllib" "$work/extra/packages/ray/dashboard/client"
cp -r "$kit/triton-backend" "$@" "$work/extra/"
tar -c -C "$work/extra" . | xz -T0 -3 > "$work/extras.tar.xz"

mkdir "$work/all"
ln .gpu-kit/b*/p*.xz "$work/all/" 2>/dev/null || cp .gpu-kit/b*/p*.xz "$work/all/"
cp "$kit/install.sh" "$work/extras.tar.xz" "$work/all/"
rm -rf .gpu
mkdir .gpu
tar -c -C "$work/all" . | split -b 52M -d -a 2 - .gpu/c
ls .gpu | wc -l
