#pragma once
// Task 3.1: one sequence of tokens on its way through the engine: a prompt and what was generated so far.
//
// There is no prefill phase and no decode phase. A sequence has tokens, and some of them are computed:
//
//   tokens()             [ p p p p p p p p p | o o o ]        p prompt, o output
//   num_computed_tokens   ------------------------^            their K and V are in the cache
//
// A step lets it catch up. When the last token is computed, the model's answer is the next token. Where steps
// are submitted before the previous ones are collected, tokens that are being sampled are placeholders: they
// count as tokens to be computed, but their ids are not in output_token_ids yet.
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "step3_sequence/kv_transfer.h"
#include "step3_sequence/prefix/prefix_index.h"
#include "step3_sequence/sampling_params.h"
#include "step3_sequence/scheduler_output.h"
#include "step3_sequence/step_phase.h"

namespace ladder {

// waiting_for_kv: its blocks are being filled from outside (step5_scheduler/kv_connector.h).
enum class SequenceStatus : uint8_t { waiting, waiting_for_kv, running, preempted, finished };

// error: no token could be drawn from its logits (kInvalidToken).
enum class FinishReason : uint8_t { none, stop, length, abort, error };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", ...; "" for none

// The fields that every step reads come first, and together: with hundreds of sequences the cache lines they
// lie in are most of what a step costs.
struct Sequence {
  SequenceId id = 0;
  int64_t arrival = 0;  // order of arrival, unique
  int64_t num_prompt_tokens = 0;
  int64_t num_placeholders = 0;     // tokens that submitted steps are sampling
  int64_t num_computed_tokens = 0;  // in the cache once the submitted steps are done; moves when scheduled
  int64_t num_preemptions = 0;
  int64_t num_cached_tokens = 0;     // tokens that were in the cache already when it was first admitted
  int64_t num_steps_in_flight = 0;   // submitted and not collected steps that compute this sequence
  int64_t last_scheduled_step = -1;  // the latest of them
  SequenceStatus status = SequenceStatus::waiting;
  FinishReason finish_reason = FinishReason::none;
  StepPhase lane = StepPhase::any;  // of its latest step: all of its steps in flight are there
  int64_t num_known_blocks =
      0;  // of its table, that the runner of its lane was given; 0: that one keeps no state for it

  std::shared_ptr<const std::vector<int32_t>> prompt_token_ids;  // of all completions of its request
  std::vector<int32_t> output_token_ids;
  std::vector<int32_t> block_table;  // blocks that it holds a reference on
  PrefixKey prefix;
  SamplingParams
      sampling;  // `seed` is set, and its own where n > 1; `max_tokens` is set and fits max_model_len

  std::shared_ptr<const KvTransferParams> kv_transfer;  // of all completions of its request; null: none

  SequenceId first_sibling = 0;          // the id of completion 0 of the same request: its own where n is 1
  int64_t completion_index = 0;          // 0..n-1
  std::optional<int32_t> stop_token_id;  // of sampling.stop_token_ids, if one has ended it
  int64_t num_prompt_logprobs = 0;       // prompt positions whose logprobs were delivered

  TokenView tokens() const { return {*prompt_token_ids, output_token_ids}; }
  int64_t num_tokens() const { return num_prompt_tokens + num_output_tokens(); }
  int64_t num_output_tokens() const { return std::ssize(output_token_ids); }
  // What is left to compute before the next token can be sampled (or, with placeholders, is sampled).
  int64_t num_uncomputed_tokens() const { return num_tokens() + num_placeholders - num_computed_tokens; }
  bool finished() const { return status == SequenceStatus::finished; }
};

// The n sequences of one request: completion i has the id and arrival first_id + i, samples with seed + i, and
// is otherwise like the others, whose first_sibling is first_id. Prompt log probabilities, where asked for, come
// with completion 0 alone. The prompt and its names (PrefixKey::prompt_hashes, empty yet) exist once for all;
// each key has the salt and the number of prompt tokens. Ids and parameters must be valid, see validate_prompt
// and validate_sampling_params. Error: `sampling.seed` or `sampling.max_tokens` is not set.
std::vector<std::unique_ptr<Sequence>> make_sequences(std::vector<int32_t> prompt_token_ids,
                                                      const SamplingParams& sampling, SequenceId first_id);

// Error, naming the id: an empty prompt, an id outside 0 .. vocab_size - 1.
void validate_prompt(const std::vector<int32_t>& prompt_token_ids, int64_t vocab_size);

// Appends a sampled token and says whether it ends the sequence. stop: it is one of eos_token_ids, unless
// ignore_eos, or of stop_token_ids; in the second case, if it is no end token that counts, stop_token_id is set.
// Neither ends a sequence whose output, this token included, has fewer than min_tokens. length: the output has
// max_tokens, and it is no stop. The token stays in the output in any case.
FinishReason append_token(Sequence& sequence, int32_t token_id, const std::vector<int32_t>& eos_token_ids);

}  // namespace ladder
