#!/usr/bin/env python3
"""Run tests/gpu/graph_cases under the injector, each case in its own process and directory.

    python3 scripts/run_graph_cases.py --program build/graph_cases --injector LIB --sanitizer LIB --out DIR

Needs a GPU, and of Python packages only cffi. DIR/<case>/ gets raw/ and result.json with what the
program says really ran; judge them with `kvtrace reconcile`-like checks on any machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.dumps import abi

TARGETS = (b"probe_target", b"probe_target_b", b"probe_target_graph_only")


def write_config(path: Path, raw: Path, sanitizer: Path, options: dict[str, int]) -> None:
    """Write the injector's config for one case."""
    ffi = abi.ffi()
    config = ffi.new(f"{abi.CONFIG_STRUCT} *")
    config.magic = abi.constant("KVTRACE_CONFIG_MAGIC")
    config.abi_version = abi.constant("KVTRACE_ABI_VERSION")
    config.struct_size = abi.size_of(abi.CONFIG_STRUCT)
    config.ring_events = options.get("ring_events", 1 << 20)
    config.launch_records = options.get("launch_records", 1 << 16)
    config.flags = options.get("flags", 0)
    config.bind_mode = options.get("bind_mode", 0)
    config.drain_interval_us = 1000
    config.target_count = len(TARGETS)
    config.output_dir = str(raw).encode()
    config.sanitizer_library = str(sanitizer).encode()
    for i, name in enumerate(TARGETS):
        config.targets[i] = name
    path.write_bytes(bytes(ffi.buffer(config)))


def run_case(args: argparse.Namespace, case: str, label: str, options: dict[str, int],
             environment: dict[str, str]) -> dict[str, object]:
    """Run one case; return what it printed and how it ended."""
    directory = args.out.resolve() / label
    raw = directory / "raw"
    raw.mkdir(parents=True)
    write_config(raw / "kvtrace.config", raw, args.sanitizer.resolve(), options)
    injector = str(args.injector.resolve())
    child = {**os.environ, "KVTRACE_CONFIG": str(raw / "kvtrace.config")}
    child.update({k: v.replace("INJECTOR", injector) for k, v in environment.items()})
    begin = time.monotonic()
    try:
        done = subprocess.run([str(args.program.resolve()), case], env=child, capture_output=True,
                              text=True, timeout=args.timeout, check=False)
        status, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as hung:
        status, out, err = "hang", str(hung.stdout or ""), str(hung.stderr or "")
    result = {"case": case, "label": label, "options": options, "environment": environment,
              "status": status, "stdout": out.strip(), "stderr": err.strip()[-2000:],
              "seconds": round(time.monotonic() - begin, 2)}
    (directory / "result.json").write_text(json.dumps(result, indent=1))
    return result


def plan(cases: list[str]) -> list[tuple[str, str, dict[str, int], dict[str, str]]]:
    """Return (case, label, config options, environment) of every run."""
    injection = {"CUDA_INJECTION64_PATH": "INJECTOR"}
    no_stamps = abi.constant("KVTRACE_CONFIG_NO_STAMPS")
    one_shot = abi.constant("KVTRACE_CONFIG_ONE_SHOT")
    runs = [(case, case, {}, injection) for case in cases]
    runs += [
        ("target_last", "preload_only", {}, {"LD_PRELOAD": "INJECTOR"}),
        ("target_last", "preload_and_injection", {}, {**injection, "LD_PRELOAD": "INJECTOR"}),
        ("target_last", "eager_loading", {}, {**injection, "CUDA_MODULE_LOADING": "EAGER"}),
        ("graph_only", "eager_graph_only", {}, {**injection, "CUDA_MODULE_LOADING": "EAGER"}),
        ("target_last", "no_stamps", {"flags": no_stamps}, injection),
        ("neighbour_last", "target_only_bound", {"bind_mode": 1}, injection),
        ("other_module", "target_only_other_module", {"bind_mode": 1}, injection),
        ("many_blocks", "one_shot", {"ring_events": 4096, "launch_records": 256, "flags": one_shot},
         injection),
        ("many_replays", "tiny_ring", {"ring_events": 4096}, injection),
        ("slow_blocks", "wrapping_ring", {"ring_events": 65536}, injection),
    ]
    return runs


def main() -> None:
    """Run the plan and print one line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--injector", type=Path, required=True)
    parser.add_argument("--sanitizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=20, help="seconds for each case")
    parser.add_argument("--only", nargs="*", help="labels to run")
    args = parser.parse_args()
    listed = subprocess.run([str(args.program.resolve())], capture_output=True, text=True, check=False)
    for case, label, options, environment in plan(listed.stderr.split()):
        if not args.only or label in args.only:
            result = run_case(args, case, label, options, environment)
            print(label, result["status"], result["seconds"], result["stdout"], result["stderr"][-200:],
                  flush=True)


if __name__ == "__main__":
    main()
