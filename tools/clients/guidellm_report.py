"""What guidellm measured: python guidellm_report.py FILE REQUESTS TOKENS"""
import json
import sys

report = json.load(open(sys.argv[1]))
wanted, tokens = int(sys.argv[2]), int(sys.argv[3])
done = report["benchmarks"][0]["requests"]
good = done["successful"]
print(f"successful {len(good)}, errored {len(done['errored'])}, incomplete {len(done['incomplete'])}")
counts = [request.get("output_tokens") for request in good]
print("output tokens", counts)
sys.exit(not (len(good) == wanted and not done["errored"] and all(count == tokens for count in counts)))
