#pragma once
// How a checkpoint wants to be sampled: the generation_config.json of its folder. These are the defaults of
// requests that do not say otherwise. vLLM: ModelConfig.get_diff_sampling_param() in vllm/config/model.py.
#include <filesystem>
#include <string>

#include "step3_sequence/sampling_params.h"

namespace ladder {

// `generation_config`, as vLLM's --generation-config: "auto" reads the model folder's file, where there is
// one; "vllm" reads none and gives SamplingParams as it stands; anything else is a folder that has the file.
// Read are temperature, top_k, top_p, min_p, repetition_penalty and max_new_tokens (max_tokens); what is null
// or absent is not set. Error naming file and field: malformed, of the wrong type or out of range.
SamplingParams default_sampling_params(const std::filesystem::path& model,
                                       const std::string& generation_config = "auto");

}  // namespace ladder
