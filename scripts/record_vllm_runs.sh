#!/usr/bin/env bash
# Record the runs that tests/data and docs/measurements.md are made from, on a machine with a GPU.
#
#     scripts/record_vllm_runs.sh OUT STEP...
#
# Steps: fa3, fa2 (the request with FlashAttention 3 and 2), tiny (a ring and a table too small),
# kill (the engine is killed in the middle of a long request), itl (five requests of 128 tokens,
# with and without recording in turn), nostamps (the same, recorded without launch stamps), token (the
# 8-token request with its stores), mixed and shared (16 requests at once with their stores; shared:
# prefix caching), faults (six small servers: none and each seeded fault), pairs (the 8-token request
# with its stores again, and with one change each: FlashAttention 2, capture size 8, no graphs, the V1
# model runner, 9 tokens), and on a machine with two GPUs tp2 (the 8-token request on two tensor ranks),
# dp2 (three unequal requests for two replicas) and tp2-shift (two tensor ranks of a small server, one
# with the seeded fault rank-shift), or all three: ranks. Each prints its table and its exit code.
# PYTHON names the interpreter with vLLM; ROUNDS how often `itl` alternates (default 2); SHARE the part of
# the card's memory that a server of `pairs` or `ranks` may take, so that several can run side by side.
set -uo pipefail

out=$1
shift
python=${PYTHON:-python3}
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 COLUMNS=80
mkdir -p "$out"

# note LABEL COMMAND...: run it with a time-out, keep its output, say how it ended.
note() {
    local label=$1 begin=$SECONDS code=0
    shift
    timeout --signal=INT --kill-after=60 "${LIMIT:-240}" "$@" >"$out/$label.out" 2>"$out/$label.err" || code=$?
    echo "== $label: exit $code after $((SECONDS - begin)) s"
    tail -n 40 "$out/$label.out"
    tail -n 12 "$out/$label.err"
}

trace() {
    "$python" -m kvtrace_cli run --model Qwen3-14B --weights dummy "$@"
}

request() {
    note "$1" "$python" -m kvtrace_cli run --model Qwen3-14B --weights dummy --out "$out/$1" "${@:2}"
}

# Wait until the measured request is on its way, then kill the process that owns the GPU.
kill_engine() {
    trace --out "$out/kill" --max-tokens 900 >"$out/kill.out" 2>"$out/kill.err" &
    local run=$! code=0 engine
    for _ in $(seq 240); do
        sleep 1
        engine=$(pgrep -f 'VLLM::EngineCore' | head -n 1)
        # The measured request has begun when the warm-up's line is there.
        if [ -n "$engine" ] && grep -q warmup "$out/kill/requests.jsonl" 2>/dev/null; then
            sleep 3
            kill -KILL "$engine"
            break
        fi
    done
    wait "$run" || code=$?
    echo "== kill: exit $code; $(ls "$out/kill")"
    tail -n 25 "$out/kill.out" "$out/kill.err"
    note kill-reconcile "$python" -m kvtrace_cli reconcile --allow-incomplete "$out/kill"
    pgrep -fa 'VLLM|vllm.entrypoints' && echo "left behind"
}

itl() {
    local round
    for round in $(seq "${ROUNDS:-2}"); do
        request "clean-$round" --no-trace --stream --repeat 5 --max-tokens 128
        request "traced-$round" --stream --repeat 5 --max-tokens 128
    done
}

gpu_tests=$(cd "$(dirname "$0")/../tests/gpu" && pwd)

audited() {
    request "$@" --record writes
    note "$1-audit" "$python" -m kvtrace_cli audit "$out/$1"
}

# Sizes without 1 and 2: batches are padded. 512 batched tokens: long prompts come in chunks.
crowd() {
    audited "$1" --requests "$gpu_tests/$2" --concurrency 16 --capture-sizes 4,8,16 "${@:3}"
}

# Three unequal requests.
few=(--requests "$gpu_tests/fault_requests.jsonl" --concurrency 3 --capture-sizes "4,8,64,96"
    --max-num-batched-tokens 96)

# Four layers of the same geometry are enough to be wrong in, and start faster.
fault() {
    local -x KVTRACE_TEST_FAULT=${1#none} PYTHONPATH=$gpu_tests/seeded_faults:$PYTHONPATH
    request "fault-$1" --record writes "${few[@]}" -- --hf-overrides '{"num_hidden_layers":4}'
    note "fault-$1-audit" "$python" -m kvtrace_cli audit "$out/fault-$1"
}

# ranks LABEL SIZES OPTION... -- ARGUMENT...: a server of several ranks, with its stores, and its audit. NVLink
# multicast stays off in whatever could use it: on a shared host it can put GPUs out of service.
ranks() {
    local -x NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
    local -x VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0
    local LIMIT=${LIMIT:-400} unfused='"pass_config":{"fuse_allreduce_rms":false}'
    [ -n "${SHARE:-}" ] && set -- "$@" --gpu-memory-utilization "$SHARE"
    request "$1" --record writes --capture-sizes "$2" "${@:3}" --compilation-config \
        "{\"cudagraph_mode\":\"FULL_AND_PIECEWISE\",\"cudagraph_capture_sizes\":[$2],$unfused}"
    LIMIT=120 note "$1-audit" "$python" -m kvtrace_cli audit "$out/$1"
}

rank_step() {
    case $1 in
    tp2) ranks tp2 1,2,4,8 -- --tensor-parallel-size 2 ;;
    dp2) ranks dp2 4,8,64,96 "${few[@]}" -- --data-parallel-size 2 ;;
    tp2-shift)
        local -x KVTRACE_TEST_FAULT=rank-shift PYTHONPATH=$gpu_tests/seeded_faults:$PYTHONPATH
        ranks tp2-shift 4,8,64,96 "${few[@]}" -- --tensor-parallel-size 2 \
            --hf-overrides '{"num_hidden_layers":4}'
        ;;
    esac
}

# One change each against `base`; `again` has none.
pair() {
    local changes=() engine=()
    [ -n "${SHARE:-}" ] && engine=(--gpu-memory-utilization "$SHARE")
    case $1 in
    fa2) local LIMIT=400 && changes=(--flash-attention 2) ;;
    sizes8) changes=(--capture-sizes 8) ;;
    eager) engine+=(--enforce-eager) ;;
    v1) local -x VLLM_USE_V2_MODEL_RUNNER=0 ;;
    nine) changes=(--max-tokens 9) ;;
    esac
    request "pair-$1" --record writes "${changes[@]}" -- "${engine[@]}"
}

for step in "$@"; do
    case $step in
    fa3) request fa3 --flash-attention 3 ;;
    fa2) LIMIT=400 request fa2 --flash-attention 2 ;;
    tiny) request tiny --ring-events 4096 --launch-records 256 --one-shot --prompt-tokens 256 ;;
    kill) kill_engine ;;
    itl) itl ;;
    token) audited token ;;
    mixed) crowd mixed mixed_requests.jsonl ;;
    shared) crowd shared shared_prefix_requests.jsonl --prefix-caching ;;
    faults)
        for name in none dummy-slot-zero stale-padding-slots padding-last-slot freed-block-reused \
            block-size-mixup; do
            fault "$name"
        done
        ;;
    fault-*) fault "${step#fault-}" ;;
    pairs)
        for name in base again sizes8 eager v1 nine fa2; do
            pair "$name"
        done
        ;;
    tp2 | dp2 | tp2-shift) rank_step "$step" ;;
    ranks)
        for name in tp2 dp2 tp2-shift; do
            rank_step "$name"
        done
        ;;
    pair-*) pair "${step#pair-}" ;;
    nostamps) request nostamps --no-stamps --stream --repeat 5 --max-tokens 128 ;;
    traced) request traced --stream --repeat 5 --max-tokens 128 ;;
    *)
        echo "unknown step: $step" >&2
        exit 2
        ;;
    esac
done
