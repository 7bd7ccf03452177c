"""lm-eval's local-completions against the server: python lm_eval_check.py URL/v1 MODEL_DIR LADDER OUT_DIR

Its log likelihoods must equal those of `ladder score`; and a task of its own runs through its command line.
"""
import json
import pathlib
import subprocess
import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

url, model, ladder, out = sys.argv[1:]
out = pathlib.Path(out)
out.mkdir(parents=True, exist_ok=True)

PAIRS = [
    ("The home of Nora is", " Northfield."),
    ("Question: Which river runs through Birchbrook?\nAnswer:", " Ember"),
    ("Question: Which river runs through Birchbrook?\nAnswer:", " Willow"),
    ("10 + 51 =", " 61"),
    ("10 + 51 =", " 62"),
    ("Text: nickel torch palace\nAgain:", " nickel torch palace"),
]


def of_ladder(context_ids, ids):
    """The sum over the continuation, by `ladder score`."""
    text = json.dumps({"prompt_token_ids": context_ids + ids}) + "\n"
    run = subprocess.run([ladder, "score", "--model", model, "--input", "-", "--format", "jsonl", "--kv-memory", "64MiB"],
                         input=text, capture_output=True, text=True, check=True)
    return sum(json.loads(run.stdout.splitlines()[0])["logprobs"][len(context_ids):])


status = 0
for backend in ("huggingface", "remote"):
    where = {"tokenizer": model} if backend == "huggingface" else {}
    api = LocalCompletionsAPI(model="tinyworld", base_url=f"{url}/completions", tokenizer_backend=backend, batch_size=3,
                              num_concurrent=2, max_length=2048, **where)
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(PAIRS)]
    for (context, continuation), (value, greedy) in zip(PAIRS, api.loglikelihood(requests, disable_tqdm=True)):
        context_ids = api.tok_encode(context, add_special_tokens=False)
        ids = api.tok_encode(context + continuation, add_special_tokens=False)[len(context_ids):]
        expected = of_ladder(context_ids, ids)
        equal = abs(value - expected) <= 1e-4 * max(1.0, abs(expected))
        status |= not equal
        print(f"{'ok' if equal else 'FAILED':7} {backend:11} {continuation!r:24} lm-eval {value:.6f}, ladder score {expected:.6f}, greedy {greedy}")

# The command line, with a task from a local file: multiple choice (log likelihoods) and generation.
lines = [json.loads(line) for line in open(pathlib.Path(model) / "eval" / "towns.jsonl")][:8]
choices = sorted({line["answer"] for line in lines})
with open(out / "towns.jsonl", "w") as data:
    for line in lines:
        data.write(json.dumps({"prompt": line["prompt"], "answer": line["answer"], "choices": choices,
                               "label": choices.index(line["answer"])}) + "\n")
common = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {out / 'towns.jsonl'}\ntest_split: test\n"
(out / "towns_choice.yaml").write_text(
    common + "task: towns_choice\noutput_type: multiple_choice\ndoc_to_text: '{{prompt}}'\ndoc_to_target: label\n"
    "doc_to_choice: choices\nmetric_list:\n  - metric: acc\n")
(out / "towns_generate.yaml").write_text(
    common + "task: towns_generate\noutput_type: generate_until\ndoc_to_text: '{{prompt}}'\ndoc_to_target: '{{answer}}'\n"
    "filter_list:\n  - name: strip\n    filter:\n      - function: remove_whitespace\n      - function: take_first\n"
    "generation_kwargs:\n  until: ['\\n']\n  max_gen_toks: 8\n"
    "metric_list:\n  - metric: exact_match\n    ignore_punctuation: true\n")
run = subprocess.run([str(pathlib.Path(sys.executable).parent / "lm_eval"), "--model", "local-completions",
                      "--model_args", f"model=tinyworld,base_url={url}/completions,tokenizer={model},num_concurrent=2,max_length=2048",
                      "--tasks", "towns_choice,towns_generate", "--include_path", str(out), "--output_path", str(out / "results")],
                     capture_output=True, text=True)
print(run.stdout[-1500:])
if run.returncode != 0:
    print(run.stderr[-3000:])
    status = 1
sys.exit(status)
