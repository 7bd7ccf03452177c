#pragma once
// What travels between judge and worker: the scheduler's outputs and the executor's answers. Of the sampling parameters
// only what a workload sets.
#include <nlohmann/json.hpp>

#include "step3_sequence/batch_config.h"
#include "step4_runner/executor.h"

namespace ladder {

inline void to_json(nlohmann::json& to, const SamplingParams& from) {
  to = {{"max_tokens", *from.max_tokens},
        {"n", from.n},
        {"seed", *from.seed},
        {"stop", from.stop_token_ids},
        {"priority", from.priority}};
}
inline void from_json(const nlohmann::json& from, SamplingParams& to) {
  to.temperature = 0;
  to.max_tokens = from.at("max_tokens").get<int64_t>();
  to.n = from.at("n");
  to.seed = from.at("seed").get<uint64_t>();
  to.priority = from.at("priority");
  to.stop_token_ids = from.at("stop").get<std::vector<int32_t>>();
}

inline void to_json(nlohmann::json& to, const NewSequence& from) {
  to = {{"id", from.id},
        {"prompt_of", from.prompt_of},
        {"token_ids", from.token_ids},
        {"num_prompt_tokens", from.num_prompt_tokens},
        {"sampling", from.sampling},
        {"block_table", from.block_table},
        {"num_computed_tokens", from.num_computed_tokens}};
}
inline void from_json(const nlohmann::json& from, NewSequence& to) {
  from.at("id").get_to(to.id);
  from.at("prompt_of").get_to(to.prompt_of);
  from.at("token_ids").get_to(to.token_ids);
  from.at("num_prompt_tokens").get_to(to.num_prompt_tokens);
  from.at("sampling").get_to(to.sampling);
  from.at("block_table").get_to(to.block_table);
  from.at("num_computed_tokens").get_to(to.num_computed_tokens);
}

inline void to_json(nlohmann::json& to, const ContinuedSequence& from) {
  to = {from.id, from.new_block_ids, from.num_computed_tokens};
}
inline void from_json(const nlohmann::json& from, ContinuedSequence& to) {
  from.at(0).get_to(to.id);
  from.at(1).get_to(to.new_block_ids);
  from.at(2).get_to(to.num_computed_tokens);
}

inline void to_json(nlohmann::json& to, const ScheduledSequence& from) {
  to = {from.id, from.num_tokens};
}
inline void from_json(const nlohmann::json& from, ScheduledSequence& to) {
  from.at(0).get_to(to.id);
  from.at(1).get_to(to.num_tokens);
}

inline void to_json(nlohmann::json& to, const SchedulerOutput& from) {
  to = {{"step", from.step},
        {"scheduled", from.scheduled},
        {"new", from.new_sequences},
        {"continued", from.continued},
        {"finished", from.finished},
        {"preempted", from.preempted},
        {"rows", from.total_num_tokens},
        {"padding", from.num_static_padding_rows}};
}
inline void from_json(const nlohmann::json& from, SchedulerOutput& to) {
  from.at("step").get_to(to.step);
  from.at("scheduled").get_to(to.scheduled);
  from.at("new").get_to(to.new_sequences);
  from.at("continued").get_to(to.continued);
  from.at("finished").get_to(to.finished);
  from.at("preempted").get_to(to.preempted);
  from.at("rows").get_to(to.total_num_tokens);
  from.at("padding").get_to(to.num_static_padding_rows);
}

inline void to_json(nlohmann::json& to, const SequenceStepOutput& from) {
  to = {from.id, from.token_ids};
}
inline void from_json(const nlohmann::json& from, SequenceStepOutput& to) {
  from.at(0).get_to(to.id);
  from.at(1).get_to(to.token_ids);
}

inline void to_json(nlohmann::json& to, const StepOutput& from) {
  to = {{"step", from.step}, {"sequences", from.sequences}};
}
inline void from_json(const nlohmann::json& from, StepOutput& to) {
  from.at("step").get_to(to.step);
  from.at("sequences").get_to(to.sequences);
}

inline void to_json(nlohmann::json& to, const BatchConfig& from) {
  to = {from.max_num_seqs, from.max_num_batched_tokens, from.max_model_len, from.block_size,
        from.num_kv_blocks};
}
inline void from_json(const nlohmann::json& from, BatchConfig& to) {
  from.at(0).get_to(to.max_num_seqs);
  from.at(1).get_to(to.max_num_batched_tokens);
  from.at(2).get_to(to.max_model_len);
  from.at(3).get_to(to.block_size);
  from.at(4).get_to(to.num_kv_blocks);
}

}  // namespace ladder
