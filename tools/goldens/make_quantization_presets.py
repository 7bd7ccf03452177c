#!/usr/bin/env python3
"""The quantization_config that compressed-tensors writes for each of its presets.

    tools/goldens/make_quantization_presets.py >tests/goldens/quantization_presets.json

Needs torch and compressed-tensors.
"""
import json

import compressed_tensors
import torch
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES


def config(name):
    made = QuantizationConfig(config_groups={name: ["Linear"]}, ignore=["lm_head"], quantization_status="compressed")
    made.format = infer_module_format(torch.nn.Linear, made.config_groups[name]).value
    return json.loads(made.model_dump_json())


def main():
    print(json.dumps({"oracle": f"compressed-tensors {compressed_tensors.__version__}",
                      "presets": {name: config(name) for name in PRESET_SCHEMES if PRESET_SCHEMES[name]}},
                     separators=(",", ":")).replace('{"config_groups"', '\n{"config_groups"'))


if __name__ == "__main__":
    main()
