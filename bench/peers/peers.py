#!/usr/bin/env python3
"""What Ladder is compared with, measured on this machine with PyTorch.

    python3 bench/peers/peers.py --json peers.json                      # kernels and the decode loops
    python3 bench/peers/peers.py --json peers.json --only matmul,attention
    python3 bench/peers/peers.py --json peers.json --only shapes --device cpu
    python3 bench/peers/peers.py --json peers.json --only marlin,cutlass
    python3 bench/peers/peers.py --json peers.json --only one_request --models llama-3.1-8b-w4a16
    python3 tools/h200_table.py ...                                     # puts ours and theirs side by side

The file has the field names of Google Benchmark's, so that one script reads both.
"""

import argparse
import datetime
import json
import sys
import time

PARTS = ("matmul", "codes", "attention", "elementwise", "sampling", "shapes", "decode")
PARTS_OF_VLLM = ("marlin", "cutlass", "one_request")  # not by default: vLLM must be installed


def cpu_name():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "")


def main():
    parser = argparse.ArgumentParser(description="Measures the peers of Ladder's kernels and engine.")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file too")
    parser.add_argument("--only", metavar="PART,...", default=",".join(PARTS),
                        help=f"some of {', '.join(PARTS)}; and of vLLM {', '.join(PARTS_OF_VLLM)}")
    parser.add_argument("--models", metavar="FOLDER,...", default="qwen3-0.6b,qwen3-8b",
                        help="shapes of decode and one_request: folders under models/")
    parser.add_argument("--batches", metavar="N,...", default="1,32,256", help="batch sizes of the decode loop")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: the part `shapes` alone")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    for part in chosen:
        if part not in PARTS + PARTS_OF_VLLM:
            parser.error(f"--only {part}: there are {', '.join(PARTS + PARTS_OF_VLLM)}")
    if arguments.device == "cpu" and chosen != ["shapes"]:
        parser.error("--device cpu: expected --only shapes")
    try:
        import torch
    except ImportError:
        sys.exit("peers: needs PyTorch (python3 -m pip install torch)")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("peers: PyTorch finds no GPU")

    import decode_loop
    import kernels
    from measure import Results
    from shapes import shapes
    torch.manual_seed(1)
    results = Results()
    if arguments.device == "cuda":
        results.ceilings()
        print(f"copy bandwidth {results.copy_bandwidth / 1e9:.0f} GB/s, cuBLAS {results.matmul_rate / 1e12:.0f} TFLOP/s")
    seconds = {}
    for part in chosen:
        start = time.time()
        if part == "decode":
            decode_loop.decode_loops(results, arguments.models.split(","),
                                     [int(batch) for batch in arguments.batches.split(",")])
        elif part == "shapes":
            shapes(results, arguments.device)
        elif part == "one_request":
            import vllm_parts
            vllm_parts.one_request(results, arguments.models.split(","))
        elif part in PARTS_OF_VLLM:
            import vllm_parts
            getattr(vllm_parts, part)(results)
        else:
            getattr(kernels, part)(results)
        torch.cuda.empty_cache()
        seconds[part] = round(time.time() - start, 1)
    print("seconds:", ", ".join(f"{part} {value}" for part, value in seconds.items()))
    if arguments.json:
        context = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                   "torch": torch.__version__}
        if arguments.device == "cuda":
            context |= {"gpu": torch.cuda.get_device_name(0), "cuda": torch.version.cuda,
                        "cudnn": torch.backends.cudnn.version(), "copy_bandwidth": results.copy_bandwidth,
                        "matmul_rate": results.matmul_rate}
        else:
            context |= {"cpu": cpu_name(), "threads": torch.get_num_threads()}
        context["seconds"] = seconds
        with open(arguments.json, "w") as file:
            json.dump({"context": context, "benchmarks": results.rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
