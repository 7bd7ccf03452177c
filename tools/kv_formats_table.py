#!/usr/bin/env python3
"""What the formats of the KV cache cost: distance from the exact model, and a needle found or not in texts of growing length.

    tools/kv_formats_table.py [--model DIR] [--needles N] [--out FILE.json]

A needle is a sentence with someone's secret code, planted at a random place of a text of other people's codes and of everyday
sentences, which names of the held-out split make (tools/tinyworld/world.py); the question is for that code, the answer right or
wrong. N needles a length, the same ones for every format, so that beside each share of right answers, with its 95 % interval
(Wilson), stands what the format loses and wins against the exact cache. The distance is that of `ladder eval`: KL divergence
on the 100 held-out stories. Prints Markdown tables; FILE.json gets the numbers and the command.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools/tinyworld"))
import world as w  # noqa: E402

FORMATS = ("auto", "fp8", "int8", "int4")
SENTENCES = (10, 40, 80, 120)  # around the codes
PEOPLE = 8


def needle(world, sentences):
    """(prompt, answer)"""
    people, others = world.people(PEOPLE), world.people(6)
    codes = [str(world.number("code", person.name, 1000, 9999)) for person in people]
    text = [world.filler(others) for _ in range(sentences)]
    for person, code in zip(people, codes):
        text.insert(world.rng.randint(0, len(text)), f"The secret code of {person.name} is {code}.")
    return w.story_prompt(" ".join(text), f"What is the secret code of {people[0].name}?"), codes[0]


def run(command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def wilson(right, count, z=1.96):
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * (share * (1 - share) / count + spread / (4 * count)) ** 0.5
    return middle - half, middle + half


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/tinyworld")
    parser.add_argument("--needles", type=int, default=100, help="of each length")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    world = w.World(w.HELDOUT, random.Random(1))
    needles = [(sentences, *needle(world, sentences)) for sentences in SENTENCES for _ in range(args.needles)]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        prompts = pathlib.Path(folder, "prompts.jsonl")
        prompts.write_text("".join(json.dumps({"prompt": prompt, "max_tokens": 8, "stop": ["\n"]}) + "\n"
                                   for _, prompt, _ in needles))
        for dtype in FORMATS:
            cache = ["--kv-cache-dtype", dtype]
            answers = run(["./ladder", "generate", "--model", args.model, "--prompts", prompts, "--temperature", 0,
                           "--format", "jsonl", *cache])
            found = [False] * len(needles)
            for answer in answers:
                found[answer["index"]] = answer["outputs"][0]["text"].strip() == needles[answer["index"]][2]
            summary = run(["./ladder", "eval", "--model", args.model, "--base", args.model, "--dtype", "f32", "--data",
                           "models/tinyworld/eval/text.jsonl", "--format", "jsonl", *cache])[-1]["summary"]
            results.append({"kv_cache_dtype": dtype, "found": found, "eval": summary})
            tokens = {answer["index"]: len(answer["prompt_token_ids"]) for answer in answers}

    lengths = []
    for sentences in SENTENCES:
        of_length = [i for i, one in enumerate(needles) if one[0] == sentences]
        lengths.append((sum(tokens[i] for i in of_length) / len(of_length), of_length))
    print("| cache | KLD x 1000 | " + " | ".join(f"found at {mean:.0f} tokens" for mean, _ in lengths) + " |")
    print("|---|---:|" + "---:|" * len(lengths))
    exact = results[0]["found"]
    for result in results:
        found, cells = result["found"], []
        result["lengths"] = []
        for mean, indices in lengths:
            right = sum(found[i] for i in indices)
            low, high = wilson(right, len(indices))
            lost = sum(exact[i] and not found[i] for i in indices)
            won = sum(found[i] and not exact[i] for i in indices)
            result["lengths"].append({"tokens": round(mean), "needles": len(indices), "found": right, "lost": lost,
                                      "won": won})
            cells.append(f"{100 * right / len(indices):.1f} % ({100 * low:.1f} to {100 * high:.1f}; -{lost} +{won})")
        del result["found"]
        one = result["eval"]
        print(f"| {result['kv_cache_dtype']} | {1000 * one['kl']:.3f} ± {1000 * one['kl_se']:.3f} | " +
              " | ".join(cells) + " |")
    if args.out:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                                cwd=ROOT).stdout.strip()
        args.out.write_text(json.dumps({"command": f"tools/kv_formats_table.py --out {args.out}", "commit": commit,
                                        "needles": args.needles, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
