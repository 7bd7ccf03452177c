#!/usr/bin/env python3
"""What a GPU run reached, from the raw results in one folder: the table of what must be reached, and ours beside the
peers'.

    python3 tools/h200_table.py bench/results/h200 [--table must|kernels|engine|progression] [--markdown]

It reads step1_layers.json (bench_step1), the two peers_*.json (bench/peers/peers.py) and the files of `ladder bench`
under the names that tools/gpu_check.sh gives them. A row whose file is missing says so, and the exit status is 1.
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_results import read_results  # noqa: E402
from ladder_table import as_markdown, as_text, plain  # noqa: E402

MODELS = Path(__file__).resolve().parent.parent / "models"
LARGE = 64e6  # bytes of tensors or of weights that count as large
MISSING = "not measured"
SHOWN = 6  # of the values that a row sums up, the worst
FEW_ROWS = (1, 2, 4, 8, 16)
SMALL_WEIGHTS = ("0.6b_gate_up", "0.6b_down", "0.6b_o", "0.6b_qkv")
LARGE_WEIGHTS = ("8b_gate_up", "8b_down", "0.6b_lm_head")


def read(file):
    """What a JSON file holds; {}: there is none."""
    try:
        return json.loads(file.read_text()) if file.exists() else {}
    except ValueError:  # a run that was stopped leaves half a file
        print(f"h200_table: {file}: not JSON, left out", file=sys.stderr)
        return {}


class Folder:
    """The results of one run."""

    def __init__(self, path):
        self.path = Path(path)
        # Each by its name: other measurements of the same problems may lie beside them.
        names = ("step1_layers", "peers_kernels", "peers_engine")
        files = [file for name in names if "benchmarks" in read(file := self.path / f"{name}.json")]
        self.results = read_results(*files) if files else None

    def taken(self, op, problem):
        """The rung that serves a problem in the engine; None: not measured.

        Of matrix products the fastest, as the table of measured kernels says (make_kernel_table.py); of everything else
        the last that takes the problem.
        """
        rungs = [rung for rung in (self.results.ladders(op, "cuda").get(problem, []) if self.results else ())
                 if rung.seconds]
        if op == "matmul":
            return min(rungs, key=lambda rung: rung.seconds, default=None)
        return rungs[-1] if rungs else None

    def peer(self, op, problem, variant):
        rungs = self.results.ladders(op, "peer").get(problem, []) if self.results else []
        return next((rung for rung in rungs if rung.variant == variant and rung.seconds), None)

    def engine(self, name):
        """The runs that `ladder bench` recorded under this name."""
        return read(self.path / f"{name}.json").get("results", [])

    def matmul_rate(self):
        machines = self.results.machines if self.results else {}
        return next((machines[device].matmul_rate for device in ("cuda", "peer")
                     if device in machines and machines[device].matmul_rate), 0.0)


def median_of(runs, key):
    return statistics.median(run[key] for run in runs)


def share(value):
    return f"{value:.2f}"


def worst_of(values, must, aim, unit):
    """Cells of a row whose worst value counts."""
    if not values:
        return [must, aim, MISSING, ""]
    ascending = sorted(values, key=values.get)
    detail = ", ".join(f"{name} {share(values[name])}" for name in ascending[:SHOWN])
    return [must, aim, f"{share(values[ascending[0]])} {unit}",
            detail + (f", ... {share(values[ascending[-1]])}" if len(ascending) > SHOWN else "")]


def worst_of_bandwidth(rungs, must, aim):
    """The same for rungs that move memory: of a copy of as many bytes, and what the worst is of a copy of 4 GiB."""
    cells = worst_of({name: rung.of_bandwidth for name, rung in rungs.items()}, must, aim, "B")
    if large := {name: rung.of_large_copy for name, rung in rungs.items() if rung.of_large_copy}:
        worst = min(large, key=large.get)
        cells[2] += f" ({share(large[worst])} of a 4 GiB copy)"
        cells[3] += f"; of a 4 GiB copy at worst {worst} {share(large[worst])}"
    return cells


def elementwise(folder):
    worst = {}
    for op in ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding", "store_kv", "qk_norm_rope_store",
               "embedding"):
        for problem in folder.results.ladders(op, "cuda") if folder.results else ():
            rung = folder.taken(op, problem)
            if rung and rung.bytes_per_second * rung.seconds >= LARGE:
                if op not in worst or rung.of_bandwidth < worst[op].of_bandwidth:
                    worst[op] = rung
    return ["norm, activation, RoPE, KV store, embedding, 64 MB and more", *worst_of_bandwidth(worst, "0.90 B", "0.95 B")]


def large_products(folder):
    found = {f"{weight} M={m}": rung for weight in LARGE_WEIGHTS for m in FEW_ROWS
             if (rung := folder.taken("matmul", f"{weight}/m:{m}"))}
    return ["matrix product M = 1..16, weights of 64 MB and more", *worst_of_bandwidth(found, "0.90 B", "0.93 B")]


def small_products(folder):
    values = {}
    for weight in SMALL_WEIGHTS:
        for m in FEW_ROWS:
            problem = f"{weight}/m:{m}"
            ours, theirs = folder.taken("matmul", problem), folder.peer("matmul", problem, "cublas")
            if ours and theirs:
                values[f"{weight} M={m}"] = theirs.seconds / ours.seconds
    cells = worst_of(values, "1.2 x cuBLAS", "2 x cuBLAS at 4 MB and less", "x cuBLAS")
    if values:
        mean = math.exp(statistics.fmean(math.log(value) for value in values.values()))
        cells[2] += f" (mean {share(mean)})"
    return ["... weights of Qwen3-0.6B's layers, 4 to 12 MB", *cells]


def decode_attention(folder):
    names = ("32x4k", "8x16k")
    found = {name: rung for name in names if (rung := folder.taken("paged_attention", f"decode/{name}"))}
    measured = " / ".join(share(found[name].of_bandwidth) + " B" if name in found else MISSING for name in names)
    large = " / ".join(share(rung.of_large_copy) for rung in found.values() if rung.of_large_copy)
    return ["decode attention, 32 sequences x 4k / 8 x 16k, page 16", "0.85 B / 0.85 B", "0.93 B / 0.97 B",
            measured, f"of a 4 GiB copy: {large}" if large else ""]


def skewed_lengths(folder):
    skewed, balanced = (folder.taken("paged_attention", f"decode/{name}") for name in ("skewed", "balanced"))
    row = ["skewed lengths (one 64k and 63 x 512) against balanced", "within 25 %", "within 10 %"]
    if not (skewed and balanced):
        return [*row, MISSING, ""]
    more = 100 * (skewed.seconds / balanced.seconds - 1)
    return [*row, f"{more:+.0f} %", f"{plain(skewed.seconds * 1e6)} us, {plain(balanced.seconds * 1e6)} us"]


def prefill_attention(folder):
    values = {}
    for length in (2048, 4096, 8192, 16384):
        theirs = folder.peer("paged_attention", f"prefill/{length}", "sdpa_cudnn")
        for blocks in ("", "/in_order"):
            ours = folder.taken("paged_attention", f"prefill/{length}{blocks}")
            if ours and theirs:
                values[f"{length}{blocks.replace('/in_order', ' contiguous')}"] = theirs.seconds / ours.seconds
    return ["prefill attention, causal, 128, 2k..16k, contiguous and page 16",
            *worst_of(values, "0.55 x cuDNN SDPA", "0.65", "x cuDNN")]


def sampling(folder):
    rung = folder.taken("draw", "top_k_top_p/rows:128")
    return ["sampling top-k + top-p, batch 128, 151,936 words", "120 us", "45 us",
            f"{plain(rung.seconds * 1e6)} us" if rung else MISSING, rung.variant if rung else ""]


def latency(folder, model, must, aim, what):
    runs = folder.engine(f"latency_{model}")
    row = [what, must, aim]
    if not runs:
        return [*row, MISSING, ""]
    rate = 1 / median_of(runs, "inter_token_latency_mean")
    return [*row, f"{rate:.0f} tok/s, {share(median_of(runs, 'of_streaming_limit'))} of the limit", ""]


def throughput(folder):
    runs = folder.engine("throughput_qwen3-0.6b")
    row = ["the common workload (bench throughput), Qwen3-0.6B shape", "18,000 tok/s", "0.75 of the limit"]
    if not runs:
        return [*row, MISSING, ""]
    return [*row, f"{median_of(runs, 'output_tokens_per_second'):,.0f} tok/s, "
            f"{share(median_of(runs, 'of_streaming_limit'))} of the limit", ""]


def replay(folder):
    runs = folder.engine("graph_replay_qwen3-0.6b")
    row = ["engine step against replaying the same graphs, batch 256", "0.95", "0.99"]
    if not runs:
        return [*row, MISSING, ""]
    alone, step = median_of(runs, "replay_seconds"), median_of(runs, "step_seconds_mean")
    return [*row, share(median_of(runs, "of_replay")), f"{plain(alone * 1e6)} us of {plain(step * 1e6)} us"]


def flops_of_prompt(model, length):
    """Multiplications and additions of one prompt: every product of the layers, causal attention, one row of logits."""
    config = json.loads((MODELS / model / "config.json").read_text())
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    weights = hidden * dim * (2 * heads + 2 * kv_heads) + 3 * hidden * inner
    attention = 4 * heads * dim * length * (length + 1) / 2
    return layers * (2 * weights * length + attention) + 2 * config["vocab_size"] * hidden


def prefill(folder):
    runs, rate = folder.engine("prefill_qwen3-8b"), folder.matmul_rate()
    row = ["prefill of 8k tokens, Qwen3-8B shape", "0.60 G", "0.75 G"]
    if not (runs and rate):
        return [*row, MISSING, ""]
    seconds = median_of(runs, "time_to_first_token_median")
    flops = flops_of_prompt("qwen3-8b", 8192) / seconds
    return [*row, f"{share(flops / rate)} G", f"{plain(seconds * 1e3)} ms, {flops / 1e12:.0f} TFLOP/s"]


def must_table(folder):
    return [["what", "must", "aim", "measured", "detail"],
            elementwise(folder), large_products(folder), small_products(folder), decode_attention(folder),
            skewed_lengths(folder), prefill_attention(folder), sampling(folder),
            latency(folder, "qwen3-0.6b", "1,100 tok/s", "0.45 of the limit",
                    "one request, Qwen3-0.6B shape, decode at short context"),
            latency(folder, "qwen3-8b", "0.80 of the limit", "0.88", "... Qwen3-8B shape"),
            throughput(folder), replay(folder), prefill(folder)]


def kernel_peers(folder):
    """Ours beside each peer of the same problem. ratio: their time over ours."""
    rows = [["problem", "ours", "us", "peer", "us", "ratio"]]
    for theirs in folder.results.rungs if folder.results else ():
        if theirs.device != "peer" or theirs.op == "decode":
            continue
        ours = folder.taken(theirs.op, theirs.problem)
        if theirs.seconds and ours:
            rows.append([f"{theirs.op}/{theirs.problem}", ours.variant, plain(ours.seconds * 1e6), theirs.variant,
                         plain(theirs.seconds * 1e6), f"{theirs.seconds / ours.seconds:.2f}"])
    return rows


def engine_peers(folder):
    """Decoding at short context, tokens per second of a full batch. ratio: ours over theirs."""
    rows = [["decode", "ours, tok/s", "peer", "tok/s", "ratio"]]
    for theirs in folder.results.rungs if folder.results else ():
        if theirs.op != "decode" or not theirs.seconds:
            continue
        model, batch = theirs.problem.split("/batch:")
        runs = folder.engine(f"latency_{model}" if batch == "1" else f"decode{batch}_{model}")
        rate = int(batch) / median_of(runs, "inter_token_latency_mean") if runs else 0
        peer = theirs.more["tokens_per_second"]
        rows.append([theirs.problem, f"{rate:.0f}" if rate else MISSING, theirs.variant, f"{peer:.0f}",
                     f"{rate / peer:.2f}" if rate else ""])
    return rows


def time_of(seconds):
    return f"{plain(seconds)} s" if seconds >= 1 else f"{plain(seconds * 1e3)} ms"


def progression(folder):
    """What each switch of the engine is worth. gain: over the row above."""
    rows = [["", "tok/s", "gain", "time to first token", "inter-token latency", "longest", "of the limit"]]
    above = None
    for run in folder.engine("progression"):
        rate = run["output_tokens_per_second"]
        rows.append([run["name"], plain(rate), f"{rate / above:.2f}x" if above else "",
                     time_of(run["time_to_first_token_mean"]), time_of(run["inter_token_latency_mean"]),
                     time_of(run["inter_token_latency_max"]), share(run["of_streaming_limit"] or 0)])
        above = rate
    return rows


TABLES = {"must": must_table, "kernels": kernel_peers, "engine": engine_peers, "progression": progression}


def main():
    parser = argparse.ArgumentParser(description="Tables of a GPU run, from its raw results.")
    parser.add_argument("folder", help="where tools/gpu_check.sh wrote them")
    parser.add_argument("--table", choices=TABLES, help="one of them alone")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if not Path(arguments.folder).is_dir():
        sys.exit(f"h200_table: {arguments.folder}: no such folder")
    folder = Folder(arguments.folder)
    tables = [TABLES[name](folder) for name in ([arguments.table] if arguments.table else TABLES)]
    missing = any(MISSING in cell for rows in tables for row in rows for cell in row)
    print("\n\n".join((as_markdown if arguments.markdown else as_text)(rows) for rows in tables if len(rows) > 1))
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
