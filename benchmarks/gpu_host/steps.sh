#!/bin/bash
# On the GPU host: sourced by a list of steps. Each has its GPU, its cores and a time limit, writes
# /tmp/res/NAME.log and a line of /tmp/res/steps.log, and cannot stop the steps after it.
#     step tune 0 0-13 720 python3 -m tests.tuning network resnet50 --out /tmp/res/tune.json
# GPU: an index, or "both". `python3` is the kit's Python 3.10 in the tree of /tmp/src, and
# `torch-python3` the host's own Python with torch and triton (benchmarks.compiled needs it).
mkdir -p /tmp/res
torch_python=/opt/torch/.venv/bin/python3
[ -x $torch_python ] || torch_python=$(command -v python3)
export OUT=${OUT:-/tmp/res}
export TRT_BUILD_TRITONSERVER=/tmp/trtb/tritonserver TRT_BUILD_FLAVOR=tensorrt HOME=/root
export PYTHONPATH=/tmp/src:/tmp/packages
cd /tmp/src

uuid() { nvidia-smi -L | sed -n 's/.*UUID: \(.*\))/\1/p' | sed -n "$(($1 + 1))p"; }

step() { # name, GPU, cores, seconds, command...
    local name=$1 gpu=$2 cores=$3 limit=$4 began status
    shift 4
    case $1 in
    python3) shift; set -- /tmp/rt/py "$@";;
    torch-python3) shift; set -- env PYTHONPATH=/tmp/src "$torch_python" "$@";;
    esac
    began=$(date +%s)
    (
        [ "$gpu" = both ] || export CUDA_VISIBLE_DEVICES=$(uuid "$gpu") TRT_BUILD_CACHE=/tmp/cache-$name
        exec taskset -c "$cores" timeout -s TERM -k 15 "$limit" "$@"
    ) > "/tmp/res/$name.log" 2>&1 < /dev/null
    status=$?
    echo "$(date +%T) rc=$status $(($(date +%s) - began)) s: $name" >> /tmp/res/steps.log
}
