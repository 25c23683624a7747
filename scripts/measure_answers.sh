#!/usr/bin/env bash
# Measure what docs/answers.md answers, on a machine with a GPU; each step has a time-out.
#
#     scripts/measure_answers.sh OUT STEP...
#
# Without vLLM: lifetime, points, graphs, chain, cold (the chain where caches are cold), onset. With it: gap1 and gap32
# (what runs between replays, batch 1 and 32), cost-parts (host callbacks, no-op patch, blocks) and cost-kinds
# (blocks, on and off in one server, stores), both with servers side by side; cost-cupti, cost-profiler and
# cost-memcheck, which take the card for themselves; load (200 million events).
# Each step prints its table and exit code, and leaves one small JSON file in OUT, of cost-* in a folder for
# `kvtrace overhead --from`; recordings are kept in SCRATCH. PYTHON names the interpreter with kvtrace and
# vLLM, SEED that of cost-*, so that several calls can be put together, LIMIT the seconds of a step, EVENTS
# how many `load` makes.
set -uo pipefail

out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
scratch=${SCRATCH:-$(mktemp -d)}
mkdir -p "$scratch"
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0 COLUMNS=100
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
cd "$root" || exit

# note LABEL COMMAND...: run it with a time-out, show its end, say how it ended.
note() {
    local label=$1 begin=$SECONDS code=0
    shift
    timeout --signal=INT --kill-after=60 "${LIMIT:-540}" "$@" >"$scratch/$label.out" 2>"$scratch/$label.err" || code=$?
    echo "== $label: exit $code after $((SECONDS - begin)) s"
    tail -n "${SHOWN:-70}" "$scratch/$label.out"
    tail -n 12 "$scratch/$label.err"
}

kvtrace() {
    note "$1" "$python" -m kvtrace_cli "${@:2}"
}

# told LABEL COMMAND...: the same, and what it prints as JSON goes to OUT.
told() {
    SHOWN=0 kvtrace "$@" --json
    cp "$scratch/$1.out" "$out/$1.json"
}

sanitizer() {
    "$python" -c 'from kvtrace_cli.capture.libraries import find_sanitizer_library as find; print(find(None))'
}

request() {
    kvtrace "$1" run --model Qwen3-14B --weights dummy --out "$scratch/run-$1" "${@:2}"
}

# between BATCH: the same requests under both observers, then paired.
between() {
    local at_once=(--max-tokens 128 --repeat "$1" --concurrency "$1" --capture-sizes "1,$1")
    [ "$1" = 1 ] && at_once=(--max-tokens 128)
    request "blocks$1" "${at_once[@]}"
    request "cupti$1" "${at_once[@]}" --observer cupti
    told "gap$1" gap "$scratch/run-blocks$1" "$scratch/run-cupti$1" --allow-unequal
    kvtrace "gap$1-table" gap "$scratch/run-blocks$1" "$scratch/run-cupti$1" --allow-unequal
}

# cost STEP ARMS OPTION...: one start of these arms. `kvtrace overhead --from` puts several together.
cost() {
    local label=$1-${SEED:-1}
    kvtrace "$label" overhead --model Qwen3-14B --starts 1 --arms "$2" --seed "${SEED:-1}" \
        --out "$scratch/$label" "${@:3}"
    mkdir -p "$out/$label"
    cp "$scratch/$label"/overhead.json* "$out/$label/"
}

for step in "$@"; do
    case $step in
    lifetime) told lifetime lifetime ;;
    points) told points lifetime --patch-points ;;
    graphs)
        note graphs "$python" scripts/run_graph_cases.py --program build/graph_cases \
            --injector kvtrace_cli/native/libkvtrace_injector.so --sanitizer "$(sanitizer)" \
            --out "$scratch/graph-cases" --json "$out/graphs.json"
        ;;
    chain) note chain "$python" scripts/measure_callback_chain.py --scratch "$scratch" --out "$out/chain.json" ;;
    cold)
        note cold "$python" scripts/measure_callback_chain.py --shapes 1x512+128 --nodes 200 \
            --replays 5 --memset-nodes --scratch "$scratch" --out "$out/cold.json"
        ;;
    onset) note onset "$python" scripts/find_drop_onset.py --scratch "$scratch" --out "$out/onset.json" ;;
    gap1) between 1 ;;
    gap32) between 32 ;;
    cost-parts) cost "$step" clean,callbacks,no-op,blocks --rounds 4 ;;
    cost-kinds) cost "$step" clean,blocks,switched,writes --rounds 4 ;;
    cost-cupti) cost "$step" clean,cupti --side-by-side 1 --rounds 3 ;;
    cost-profiler) cost "$step" clean,torch-profiler --side-by-side 1 --rounds 2 --batch 1,8 --tokens 64 ;;
    cost-memcheck)
        cost "$step" clean,memcheck --side-by-side 1 --rounds 1 --batch 1 --tokens 16 --prefill 512
        ;;
    load)
        note load "$python" scripts/sustained_load.py --events "${EVENTS:-200000000}" --out "$scratch/load"
        cp "$scratch/load/load.json" "$out/load.json"
        ;;
    *)
        echo "unknown step $step; see the top of $0" >&2
        exit 2
        ;;
    esac
done
