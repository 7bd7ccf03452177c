#!/usr/bin/env python3
"""Runs the benchmarks of the CPU on a quiet machine and records them under bench/results/cpu/.

    ./ladder bench step1 --benchmark_list_tests >/dev/null     # builds
    python3 tools/record_benchmarks.py [name ...]              # all of them: about fifteen minutes

One file per measurement: the command, the commit, the processor, the load before and after, and every repetition.
Numbers of a machine that does other things meanwhile are not worth keeping: the script waits for a load below 0.7.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = "build/release"
OUT = ROOT / "bench/results/cpu"

# name: Google Benchmark arguments, the binary first
GOOGLE = {
    "step1_matmul": ["bench_step1", "--benchmark_filter=ceiling|matmul/.*(qkv|gate_up|down|lm_head)", "3"],
    "step1_elementwise": ["bench_step1", "--benchmark_filter=^(silu|gelu|rms_norm|fused|embedding|rotary|qk_norm|store).*/rows:", "3"],
    "step1_attention": ["bench_step1", "--benchmark_filter=attention", "3"],
    "step1_sampling": ["bench_step1", "--benchmark_filter=^(argmax|softmax|log_softmax|top|mask|sample|apply)", "3"],
    "step2_decoder": ["bench_step2", "--benchmark_filter=ceiling|decoder", "5"],
    "step3_sequence": ["bench_step3", "--benchmark_filter=.", "10"],
    "step4_runner": ["bench_step4", "--benchmark_filter=.", "5"],
    "step5_scheduler": ["bench_step5", "--benchmark_filter=.", "10"],
    "step6_engine": ["bench_step6", "--benchmark_filter=.", "5"],
    "step7_parallel": ["bench_step7", "--benchmark_filter=.", "5"],
    "step7_context": ["bench_step7", "--benchmark_filter=ContextAttention|DecodeContext", "3"],
    "step8_kv_ring": ["bench_step8", "--benchmark_filter=kv_ring", "3"],
    "step8_kv_layer_by_layer": ["bench_step8", "--benchmark_filter=kv_layer_by_layer", "1"],
    "step8_quantized_matmul": ["bench_step8", "--benchmark_filter=matmul/.*(/m:1/|(avx2|avx512|onednn|vnni)/)", "3"],
}
# name: arguments of the program, which writes its own JSON
PROGRAM = {
    "progression": ["bench", "progression"],
    "latency_tinyworld": ["bench", "latency", "--model", "models/tinyworld"],
    "latency_qwen3-0.6b": ["bench", "latency", "--model", "models/qwen3-0.6b", "--load-format", "dummy",
                           "--kv-memory", "512MiB"],
    "throughput_tinyworld": ["bench", "throughput", "--model", "models/tinyworld"],
}
DROPPED = ("executable", "host_name", "library_build_type", "cpu_scaling_enabled")


def wait_for_quiet():
    deadline = time.time() + 120
    while os.getloadavg()[0] > 0.7 and time.time() < deadline:
        time.sleep(5)
    return os.getloadavg()[0]


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def record(name):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    load = wait_for_quiet()
    file = OUT / f"{name}.json"
    environment = os.environ | {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}
    if name in PROGRAM:
        command = [f"{BUILD}/ladder", *PROGRAM[name], "--json", str(file.relative_to(ROOT))]
    else:
        binary, filter_argument, repetitions = GOOGLE[name]
        command = [f"{BUILD}/bench/{binary}", filter_argument, f"--benchmark_repetitions={repetitions}",
                   "--benchmark_min_time=0.1", f"--benchmark_out={file.relative_to(ROOT)}",
                   "--benchmark_out_format=json"]
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    result = json.loads(file.read_text())
    context = {key: value for key, value in result.get("context", {}).items() if key not in DROPPED}
    context |= {"command": " ".join(command), "commit": commit.strip(), "processor": processor(),
                "load_before": round(load, 2), "load_after": round(os.getloadavg()[0], 2)}
    if "benchmarks" in result:
        # A build with CUDA has the rungs of a GPU too; tools/gpu_check.sh records those.
        rows = [row for row in result["benchmarks"]
                if row.get("run_type") != "aggregate" and not re.search("/cuda:|_of_gpu", row["name"])]
        keep_out = {"family_index", "per_family_instance_index", "run_name", "run_type", "threads"}
        result["benchmarks"] = [{key: value for key, value in row.items() if key not in keep_out} for row in rows]
    result["context"] = context
    file.write_text(json.dumps(result, indent=1) + "\n")


def main():
    every = [*GOOGLE, *PROGRAM]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", default=every, help=f"some of {', '.join(every)}")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in every]:
        sys.exit(f"no measurement is called {unknown[0]}; there are {', '.join(every)}")
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names:
        record(name)


if __name__ == "__main__":
    main()
