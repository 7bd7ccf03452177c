#!/usr/bin/env python3
"""What every format and method costs a model: its perplexity, its distance from the dense model, the answers that it gets wrong.

    tools/quantization_table.py --out FILE.json [--only TEXT]     quantizes, judges, and prints the table
    tools/quantization_table.py --from FILE.json [--cache]        prints it again

The model is models/tinyworld; calibration are 128 stories that world.py makes of its training split, or 128 of the documents that it
was trained on, tasks among them ("all texts"). A row is a recipe of `ladder quantize`, of the model itself or of one with outlier
channels (tools/inject_outliers.py), or a format of the KV cache. It is judged, in
f32, by `ladder eval` on the 100 held-out stories of eval/text.jsonl, and by its greedy answers to the first items of each task of
eval/ (tools/tinyworld/evaluate.py has all of them; ITEMS says how many here).

Formats of the cache look for needles too: a needle is a sentence with someone's secret code, planted at a random place of a text of
other people's codes and of everyday sentences, which names of the held-out split make; the question is for that code. 50 needles a
length, the same ones for every format.

Intervals are of 95 %. Of shares of answers they are Wilson's, of means over stories (perplexity, divergence) 1.96 standard errors
between stories. "-2 +1" counts the answers that were right in the dense model alone, and in this one alone.

FILE.json has all of it, a digit for each answer, with the commit of each row; it is written after every row. With --only it keeps the
rows that are not measured anew.
"""
import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools/tinyworld"))
import evaluate  # noqa: E402
import world as w  # noqa: E402

MODEL = "models/tinyworld"
DENSE = "dense"
ITEMS = {"addition": 100, "chat": 100, "copy": 50, "json": 50, "qa": 50, "recall": 20, "towns": 48, "two_steps": 100}
CACHES = ("fp8", "int8", "int4")
ALL_TEXTS = ", all texts"  # ends the name of a row that is calibrated with them
SENTENCES = (10, 40, 80, 120)  # around the codes
PEOPLE = 8
NEEDLES = 50  # of each length


def group(bits, size=None, symmetric=True):
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    weights |= {"strategy": "channel"} if size is None else {"strategy": "group", "group_size": size}
    return {"weights": weights}


STATIC = group(8) | {"input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor",
                                           "dynamic": False}}
NO_CALIBRATION = [("W8 g128", "W8A16"), ("W8A8", "W8A8"), ("FP8_DYNAMIC", "FP8_DYNAMIC"), ("FP8_BLOCK", "FP8_BLOCK"),
                  ("NVFP4A16", "NVFP4A16"), ("MXFP4A16", "MXFP4A16"), ("MXFP8A16", "MXFP8A16")]
INTEGERS = [("W4 channel", group(4)), ("W4 g128", group(4, 128)), ("W4 g128 asym", group(4, 128, False)),
            ("W4 g32", group(4, 32)), ("W3 g128", group(3, 128))]
# What a norm feeds; the others have no norm in front that could take the other half of a scale.
NORM_FED = ["re:.*(q|k|v|gate|up)_proj"]


def recipes():
    """(name, stages)"""
    for name, scheme in NO_CALIBRATION:
        yield f"RTN {name}", [{"method": "rtn", "scheme": scheme}]
    yield "GPTQ W8A8", [{"method": "gptq", "scheme": "W8A8"}]
    yield "SmoothQuant W8A8", [{"method": "smoothquant"}, {"method": "rtn", "scheme": "W8A8"}]
    yield "RTN FP8 (static)", [{"method": "rtn", "scheme": "FP8"}]
    yield "RTN W8A8 (static)", [{"method": "rtn", "scheme": STATIC}]
    yield "SmoothQuant W8A8 (static)", [{"method": "smoothquant"}, {"method": "rtn", "scheme": STATIC}]
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
    yield "GPTQ W3 g128" + ALL_TEXTS, [{"method": "gptq", "scheme": group(3, 128)}]
    yield "2:4 Wanda" + ALL_TEXTS, [{"method": "wanda"}]
    yield "2:4 SparseGPT" + ALL_TEXTS, [{"method": "sparsegpt"}]
    yield "2:4 SparseGPT and W4 g128 jointly" + ALL_TEXTS, [{"method": "sparsegpt", "scheme": w4}]


def recipes_with_outliers():
    """(name, factor and number of the channels, stages)"""
    static = [{"method": "rtn", "scheme": STATIC, "targets": NORM_FED},
              {"method": "rtn", "scheme": "W8A8", "ignore": NORM_FED}]
    yield "outliers: RTN W8A8 (static)", ("64", "2"), static
    yield "outliers: SmoothQuant W8A8 (static)", ("64", "2"), [{"method": "smoothquant"}, *static]
    for method in ("RTN", "GPTQ", "AWQ"):
        yield (f"outliers: {method} W4 g128 asym", ("8", "8"),
               [{"method": method.lower(), "scheme": group(4, 128, False)}])


def rows():
    """(name, outliers, stages, cache)"""
    yield DENSE, None, None, "auto"
    for name, stages in recipes():
        yield name, None, stages, "auto"
    for name, outliers, stages in recipes_with_outliers():
        yield name, outliers, stages, "auto"
    for cache in CACHES:
        yield f"cache {cache}", None, None, cache


def is_calibrated(stages):
    return any(stage["method"] not in ("rtn", "magnitude") or stage.get("scheme") in ("FP8", STATIC) for stage in stages)


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def needle(world, sentences):
    """(prompt, answer)"""
    people, others = world.people(PEOPLE), world.people(6)
    codes = [str(world.number("code", person.name, 1000, 9999)) for person in people]
    text = [world.filler(others) for _ in range(sentences)]
    for person, code in zip(people, codes):
        text.insert(world.rng.randint(0, len(text)), f"The secret code of {person.name} is {code}.")
    return w.story_prompt(" ".join(text), f"What is the secret code of {people[0].name}?"), codes[0]


def needles():
    """Of each length a task of its own: name -> items."""
    world = w.World(w.HELDOUT, random.Random(1))
    tasks = {}
    for sentences in SENTENCES:
        made = [needle(world, sentences) for _ in range(NEEDLES)]
        tasks[f"needle {sentences}"] = [{"prompt": prompt, "answer": answer, "max_tokens": 8, "stop": ["\n"]}
                                        for prompt, answer in made]
    return tasks


def write_calibration(folder):
    """name -> file, of 128 texts each"""
    world = w.World(w.TRAIN, random.Random(1))
    documents = "".join(json.dumps({"text": w.document(world)}) + "\n" for _ in range(128))
    stories = run([sys.executable, "tools/tinyworld/world.py", "--stories", "128", "--seed", "1"])
    files = {}
    for name, lines in (("stories", stories), ("all texts", documents)):
        files[name] = pathlib.Path(folder, f"{name.replace(' ', '_')}.jsonl")
        files[name].write_text(lines)
    return files


class Judge:
    """What there is to say of one model."""

    def __init__(self, ladder):
        self.ladder = ladder
        items = w.read_items(ROOT / MODEL / "eval")
        self.tasks = {task: items[task][:count] for task, count in ITEMS.items()}
        self.needles = needles()

    def answers(self, model, options, tasks):
        """task -> "1101...", whether each answer is right"""
        flat = [(task, item) for task, items in tasks.items() for item in items]
        texts = evaluate.answers_of(self.ladder, ROOT / model, [item for _, item in flat], options)
        right = {task: "" for task in tasks}
        for (task, item), text in zip(flat, texts):
            right[task] += str(int(w.is_right(task, text, item["answer"])))
        return right

    def judge(self, model, cache, is_of_cache):
        options = ["--dtype", "f32", "--kv-cache-dtype", cache]
        summary = json.loads(run([self.ladder, "eval", "--model", model, "--base", MODEL, "--data", MODEL + "/eval/text.jsonl",
                                  "--format", "jsonl", *options]).splitlines()[-1])["summary"]
        tasks = self.tasks | (self.needles if is_of_cache else {})
        return {"eval": {key: value for key, value in summary.items() if key not in ("model", "base", "data")},
                "right": self.answers(model, options, tasks)}


def quantized(ladder, model, folder, calibration, outliers, stages, options=(), samples=128):
    """(the folder, what the report says, seconds)"""
    recipe, out = folder / "recipe.json", folder / "quantized"
    if outliers:
        dense, model = model, folder / "with_outliers"
        run([sys.executable, "tools/inject_outliers.py", dense, model, "--factor", outliers[0], "--count", outliers[1]])
    recipe.write_text(json.dumps({"stages": stages}))
    command = [ladder, "quantize", "--model", model, "--output", out, "--recipe", recipe, *options]
    if is_calibrated(stages):
        command += ["--calibration", calibration, "--num-samples", samples]
    start = time.monotonic()
    run(command)
    return out, json.loads((out / "quantize_report.json").read_text()), time.monotonic() - start


def measured(judge, calibration, name, outliers, stages, cache):
    row = {"name": name, "commit": run(["git", "rev-parse", "--short", "HEAD"]).strip()}
    if stages is None:
        return row | judge.judge(MODEL, cache, True)
    texts = calibration["all texts" if name.endswith(ALL_TEXTS) else "stories"]
    with tempfile.TemporaryDirectory() as folder:
        out, report, seconds = quantized(judge.ladder, MODEL, pathlib.Path(folder), texts, outliers, stages)
        row |= {"outliers": outliers} if outliers else {}
        row |= {"stages": stages, "seconds": round(seconds, 2), "bytes": report["bytes_after"]}
        return row | judge.judge(out, cache, False)


def wilson(right, count, z=1.96):
    """The interval, in percent."""
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return 100 * (middle - half), 100 * (middle + half)


def share(right):
    """The share of right answers and its interval: "85 (77 to 91)"."""
    low, high = wilson(right.count("1"), len(right))
    return f"{100 * right.count('1') / len(right):.0f} ({low:.0f} to {high:.0f})"


def changed(right, dense):
    lost = sum(one == "0" and base == "1" for one, base in zip(right, dense, strict=True))
    won = sum(one == "1" and base == "0" for one, base in zip(right, dense, strict=True))
    return f"-{lost} +{won}"


def distance(summary):
    return f"{1000 * summary['kl']:.2f} ± {1960 * summary['kl_se']:.2f}"


def print_table(results):
    """Every row; cells of what was not measured are empty. A column for each task that some row does not answer as well as all others."""
    dense = next((result["right"] for result in results if result["name"] == DENSE), {})
    total = sum(ITEMS.values())
    counts = {task: {result["right"][task].count("1") for result in results if "right" in result} for task in ITEMS}
    tasks = [task for task in ITEMS if len(counts[task]) > 1]
    columns = " | ".join(f"{task.replace('_', ' ')}, {ITEMS[task]}" for task in tasks)
    print("| | MB | perplexity | ... against dense, % | KLD x 1000 | same top, % | "
          f"right of {total}, % | against dense | {columns} |")
    print("|---|" + "---:|" * (7 + len(tasks)))
    for result in results:
        one, right = result["eval"], result.get("right")
        cells = [result["name"], f"{result['bytes'] / 1e6:.1f}" if "bytes" in result else "",
                 f"{one['perplexity']:.4f}", f"{100 * math.expm1(one['delta_nll']):+.2f} ± {196 * one['delta_nll_se']:.2f}",
                 distance(one), f"{100 * one['same_top']:.1f}"]
        if right:
            answers, base = ("".join(tasks[task] for task in ITEMS) for tasks in (right, dense or right))
            low, high = wilson(answers.count("1"), total)
            cells += [f"{100 * answers.count('1') / total:.1f} ({low:.1f} to {high:.1f})",
                      changed(answers, base) if dense else ""]
            cells += [share(right[task]) for task in tasks]
        print("| " + " | ".join(cells + [""] * (8 + len(tasks) - len(cells))) + " |")
    alike = [f"{task} {count} of {ITEMS[task]}" for task in ITEMS if task not in tasks for count in counts[task]]
    if alike:
        print(f"\nThe same in every row: {', '.join(alike)}.")


def print_cache(results):
    """Needles in the formats of the cache; cells of what was not measured are empty."""
    results = [result for result in results if result["name"] in (DENSE, *(f"cache {cache}" for cache in CACHES))]
    lengths = [f"needle {sentences}" for sentences in SENTENCES]
    print("| cache | KLD x 1000 | " + " | ".join(f"found, {length.split()[1]} sentences" for length in lengths) + " |")
    print("|---|" + "---:|" * (1 + len(lengths)))
    for result in results:
        right, exact = result.get("right"), results[0]["right"]
        cells = [f"{share(right[length])}, {changed(right[length], exact[length])}" if right else "" for length in lengths]
        name = "exact" if result["name"] == DENSE else result["name"].removeprefix("cache ")
        print(f"| {name} | {distance(result['eval'])} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    files = parser.add_mutually_exclusive_group(required=True)
    files.add_argument("--out", type=pathlib.Path, metavar="FILE.json", help="measures")
    files.add_argument("--from", type=pathlib.Path, metavar="FILE.json", dest="source", help="prints what was measured")
    parser.add_argument("--only", metavar="TEXT", help="the row of this name, or those whose name has it in it")
    parser.add_argument("--cache", action="store_true", help="print the table of needles")
    parser.add_argument("--ladder", default=ROOT / "ladder", help="the binary, or the script that builds and calls it")
    args = parser.parse_args()
    results = {}
    if args.source or (args.only and args.out.exists()):
        read = json.loads((args.source or args.out).read_text())["results"]
        results = {result["name"]: result for result in read}
    if args.out:
        with tempfile.TemporaryDirectory() as folder:
            calibration, judge = write_calibration(folder), Judge(args.ladder)
            names = [name for name, *_ in rows()]
            wanted = [args.only] if args.only in names else [name for name in names if (args.only or "") in name]
            for name, *how in rows():
                if name not in wanted:
                    continue
                results[name] = measured(judge, calibration, name, *how)
                print(f"{name}: {distance(results[name]['eval'])}", file=sys.stderr, flush=True)
                in_order = sorted(results.values(), key=lambda result: names.index(result["name"]))
                args.out.write_text(json.dumps({"command": f"tools/quantization_table.py --out {args.out}",
                                                "items": ITEMS, "results": in_order}, indent=1) + "\n")
        results = {result["name"]: result for result in in_order}
    (print_cache if args.cache else print_table)(list(results.values()))


if __name__ == "__main__":
    main()
