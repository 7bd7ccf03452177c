#!/usr/bin/env python3
"""What every format and method costs a model: quantizes it by each recipe of the list, evaluates, and prints a table.

    tools/quantization_table.py [--model DIR] [--out FILE.json]

The model is models/tinyworld; calibration are 128 stories that world.py makes of its training split, evaluation the 100 held-out
stories of eval/text.jsonl. FILE.json gets what `ladder eval` and the quantizer's report say, with the command and each row's commit; with
--only it keeps the rows that are not measured anew.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def group(bits, size=None, symmetric=True):
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    weights |= {"strategy": "channel"} if size is None else {"strategy": "group", "group_size": size}
    return {"weights": weights}


NO_CALIBRATION = [("W8 g128", "W8A16"), ("W8A8", "W8A8"), ("FP8_DYNAMIC", "FP8_DYNAMIC"), ("FP8_BLOCK", "FP8_BLOCK"),
                  ("NVFP4A16", "NVFP4A16"), ("MXFP4A16", "MXFP4A16"), ("MXFP8A16", "MXFP8A16")]
INTEGERS = [("W4 channel", group(4)), ("W4 g128", group(4, 128)), ("W4 g128 asym", group(4, 128, False)),
            ("W4 g32", group(4, 32)), ("W3 g128", group(3, 128))]


def recipes():
    """(name, stages)"""
    for name, scheme in NO_CALIBRATION:
        yield f"RTN {name}", [{"method": "rtn", "scheme": scheme}]
    yield "RTN FP8 (static)", [{"method": "rtn", "scheme": "FP8"}]
    for name, scheme in INTEGERS:
        yield f"RTN {name}", [{"method": "rtn", "scheme": scheme}]
        yield f"GPTQ {name}", [{"method": "gptq", "scheme": scheme}]
        if name in ("W4 channel", "W4 g128"):
            yield f"GPTQ {name}, no order", [{"method": "gptq", "scheme": scheme, "actorder": "none"}]
        yield f"AWQ {name}", [{"method": "awq", "scheme": scheme}]
    for name in ("magnitude", "Wanda", "SparseGPT"):
        yield f"2:4 {name}", [{"method": name.lower()}]
    w4 = group(4, 128)
    yield "2:4 SparseGPT, then RTN W4 g128", [{"method": "sparsegpt"}, {"method": "rtn", "scheme": w4}]
    yield "2:4 SparseGPT, then GPTQ W4 g128", [{"method": "sparsegpt"}, {"method": "gptq", "scheme": w4}]
    yield "2:4 SparseGPT and W4 g128 jointly", [{"method": "sparsegpt", "scheme": w4}]
    yield "2:4 SparseGPT and W4 g128 jointly, no order", [{"method": "sparsegpt", "scheme": w4, "actorder": "none"}]


def is_calibrated(stages):
    return any(stage["method"] not in ("rtn", "magnitude") or stage.get("scheme") == "FP8" for stage in stages)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/tinyworld")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--only", help="recipes whose name has this in it")
    args = parser.parse_args()
    # With --only: the rows of the file that are not measured again.
    results = json.loads(args.out.read_text())["results"] if args.only and args.out and args.out.exists() else []
    commit = run(["git", "rev-parse", "--short", "HEAD"]).strip()
    print("| recipe | bytes | perplexity | delta NLL x 1000 | KLD x 1000 | same top | seconds |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        stories = folder / "stories.jsonl"
        stories.write_text(run([sys.executable, "tools/tinyworld/world.py", "--stories", "128", "--seed", "1"]))
        for name, stages in recipes():
            if args.only and args.only not in name:
                continue
            recipe, out = folder / "recipe.json", folder / name.replace(" ", "_")
            recipe.write_text(json.dumps({"stages": stages}))
            command = ["./ladder", "quantize", "--model", args.model, "--output", out, "--recipe", recipe]
            if is_calibrated(stages):
                command += ["--calibration", stories, "--num-samples", "128"]
            start = time.monotonic()
            run(command)
            seconds = time.monotonic() - start
            evaluation = run(["./ladder", "eval", "--model", out, "--base", args.model, "--dtype", "f32", "--data",
                              "models/tinyworld/eval/text.jsonl", "--format", "jsonl"])
            summary = json.loads(evaluation.splitlines()[-1])["summary"]
            report = json.loads((out / "quantize_report.json").read_text())
            results = [result for result in results if result["name"] != name]
            results.append({"name": name, "commit": commit, "stages": stages, "seconds": round(seconds, 2),
                            "eval": {k: v for k, v in summary.items() if k not in ("model", "base", "data")},
                            "bytes": report["bytes_after"]})
            print(f"| {name} | {report['bytes_after']:,} | {summary['perplexity']:.4f} | "
                  f"{1000 * summary['delta_nll']:.2f} ± {1000 * summary['delta_nll_se']:.2f} | "
                  f"{1000 * summary['kl']:.2f} ± {1000 * summary['kl_se']:.2f} | {100 * summary['same_top']:.1f} % | "
                  f"{seconds:.1f} |", flush=True)
            if args.out:
                args.out.write_text(json.dumps({"command": f"tools/quantization_table.py --out {args.out}",
                                                "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
