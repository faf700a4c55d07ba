# Starts the tritonserver of NVIDIA's image with the given flags, as `trt-build serve` does on a host.
# OPTIONAL_FLAGS: flags for releases that have them. CLOSED_PROTOCOLS: requests that no client may send.
# Their key is created here and stored nowhere. CONTROL_TOKEN_FILE: the token for loading models.
set -eu
listed=$(tritonserver --help 2>&1 || true)
case $listed in
    *--model-repository*) ;;
    *) echo "tritonserver --help lists no flags, so the server cannot be closed to clients" >&2; exit 1 ;;
esac
for flag in $OPTIONAL_FLAGS; do
    case $listed in *"${flag%%=*}"*) set -- "$@" "$flag" ;; esac
done
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
for flag in --http-restricted-api --grpc-restricted-protocol; do
    case $listed in *"$flag"*) set -- "$@" "$flag=$CLOSED_PROTOCOLS:$CLOSED_HEADER=$key" ;; esac
done
if [ -n "${CONTROL_TOKEN_FILE:-}" ]; then
    token=$(cat "$CONTROL_TOKEN_FILE")
    case $token in
        "" | *[,:=]*) echo "the control token is empty or has one of , : =" >&2; exit 1 ;;
    esac
    for flag in --http-restricted-api --grpc-restricted-protocol; do
        set -- "$@" "$flag=model-repository:$CONTROL_HEADER=$token"
    done
fi
exec tritonserver "$@"
