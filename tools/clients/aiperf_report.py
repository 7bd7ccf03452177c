"""What aiperf measured: python aiperf_report.py DIR REQUESTS TOKENS"""
import json
import pathlib
import sys

wanted, tokens = int(sys.argv[2]), int(sys.argv[3])
file = next(pathlib.Path(sys.argv[1]).rglob("profile_export_aiperf.json"))
report = json.load(open(file))
count, length = report["request_count"]["avg"], report["output_sequence_length"]["avg"]
print(f"requests {count}, tokens of an answer {length}, time to first token {report['time_to_first_token']['avg']:.2f} ms, "
      f"inter-token latency {report['inter_token_latency']['avg']:.3f} ms")
sys.exit(not (count == wanted and length == tokens))
