#pragma once
// The wire form of each type of engine_messages.h, for both directions: see process/wire.h. Every field is named, so
// that none which is added later is forgotten.
#include <string>
#include <string_view>

#include "step6_engine/process/wire.h"
#include "step6_engine/remote/engine_messages.h"

namespace ladder {

LADDER_WIRE_FORM(TokenLogprob) {
  auto& [token_id, logprob] = value;
  wire(token_id, logprob);
}
LADDER_WIRE_FORM(PositionLogprobs) {
  auto& [chosen, top, selected] = value;
  wire(chosen, top, selected);
}

LADDER_WIRE_FORM(SamplingParams) {
  auto& [max_tokens, min_tokens, temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
         frequency_penalty, seed, n, logit_bias, allowed_token_ids, bad_words, bad_words_token_ids, stop,
         stop_token_ids, include_stop_str_in_output, skip_special_tokens, ignore_eos, all_stop_token_ids,
         logprobs, prompt_logprobs, logprob_token_ids, priority, cache_salt] = value;
  wire(max_tokens, min_tokens, temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
       frequency_penalty, seed, n, logit_bias, allowed_token_ids, bad_words, bad_words_token_ids, stop,
       stop_token_ids, include_stop_str_in_output, skip_special_tokens, ignore_eos, all_stop_token_ids,
       logprobs, prompt_logprobs, logprob_token_ids, priority, cache_salt);
}
LADDER_WIRE_FORM(KvTransferParams) {
  auto& [do_remote_decode, do_remote_prefill, remote_engine_id, remote_request_id, remote_address,
         remote_num_tokens] = value;
  wire(do_remote_decode, do_remote_prefill, remote_engine_id, remote_request_id, remote_address,
       remote_num_tokens);
}
LADDER_WIRE_FORM(Request) {
  auto& [request_id, prompt, prompt_token_ids, sampling, kv_transfer, output_only] = value;
  wire(request_id, prompt, prompt_token_ids, sampling, kv_transfer, output_only);
}

LADDER_WIRE_FORM(CompletionUpdate) {
  auto& [request_id, completion, token_ids, text, logprobs, finish_reason, stop_reason] = value;
  wire(completion, token_ids, text, logprobs, finish_reason, stop_reason);
  check_enum(finish_reason, FinishReason::error);
}
LADDER_WIRE_FORM(CompletionOutput) {
  auto& [token_ids, text, logprobs, finish_reason, stop_reason, error] = value;
  wire(token_ids, text, logprobs, finish_reason, stop_reason, error);
  check_enum(finish_reason, FinishReason::error);
}
LADDER_WIRE_FORM(RequestMetrics) {
  auto& [num_prompt_tokens, num_output_tokens, num_cached_tokens, num_preemptions, queue_seconds,
         time_to_first_token, inter_token_latency_mean, inter_token_latency_max, end_to_end_seconds] = value;
  wire(num_prompt_tokens, num_output_tokens, num_cached_tokens, num_preemptions, queue_seconds,
       time_to_first_token, inter_token_latency_mean, inter_token_latency_max, end_to_end_seconds);
}
LADDER_WIRE_FORM(RequestOutput) {
  auto& [request_id, prompt_token_ids, completions, prompt_logprobs, metrics, kv_transfer] = value;
  wire(completions, prompt_logprobs, metrics, kv_transfer);
}

LADDER_WIRE_FORM(KvTransferStats) {
  auto& [num_loads, num_failed_loads, num_loaded_tokens, num_missed_tokens, num_loaded_bytes, load_seconds,
         num_sent_bytes, num_lapsed, num_uncompressed_bytes, num_compressed_bytes, compress_seconds,
         num_stored_blocks, num_stored_bytes, num_unstored_blocks, num_store_bytes] = value;
  wire(num_loads, num_failed_loads, num_loaded_tokens, num_missed_tokens, num_loaded_bytes, load_seconds,
       num_sent_bytes, num_lapsed, num_uncompressed_bytes, num_compressed_bytes, compress_seconds,
       num_stored_blocks, num_stored_bytes, num_unstored_blocks, num_store_bytes);
}
LADDER_WIRE_FORM(SchedulerStats) {
  auto& [num_waiting, num_running, num_blocks, num_used_blocks, num_cached_blocks, num_live_tokens,
         num_preemptions, num_prefix_queried_tokens, num_prefix_hit_tokens, num_external_tokens,
         num_waiting_for_kv, num_held_blocks, kv_transfer] = value;
  wire(num_waiting, num_running, num_blocks, num_used_blocks, num_cached_blocks, num_live_tokens,
       num_preemptions, num_prefix_queried_tokens, num_prefix_hit_tokens, num_external_tokens,
       num_waiting_for_kv, num_held_blocks, kv_transfer);
}
template <class Wire, class T>
requires IsHistogram<std::remove_const_t<T>>
void wire_fields(Wire& wire, T& value) {
  auto& [counts, sum] = value;
  wire(counts, sum);
}
LADDER_WIRE_FORM(ServingMetrics) {
  auto& [time_to_first_token, inter_token_latency, end_to_end, queue, prefill, decode, inference,
         request_time_per_output_token, request_prompt_tokens, request_generation_tokens,
         request_max_generation_tokens, request_n, request_max_tokens, step_tokens, num_prompt_tokens,
         num_generation_tokens, num_completions_ended] = value;
  wire(time_to_first_token, inter_token_latency, end_to_end, queue, prefill, decode, inference,
       request_time_per_output_token, request_prompt_tokens, request_generation_tokens,
       request_max_generation_tokens, request_n, request_max_tokens, step_tokens, num_prompt_tokens,
       num_generation_tokens, num_completions_ended);
}
LADDER_WIRE_FORM(EngineMetrics) {
  auto& [num_steps, num_tokens, num_requests_finished, num_requests_aborted, num_requests_failed,
         num_prompt_tokens, num_output_tokens, num_cached_tokens, num_preemptions, peak_running,
         peak_kv_blocks, step_seconds, execute_seconds, communicate_seconds, stage_wait_seconds,
         kv_used_share_sum, kv_used_steps, num_prefill_steps, num_decode_steps, prefill_execute_seconds,
         decode_execute_seconds, serving] = value;
  wire(num_steps, num_tokens, num_requests_finished, num_requests_aborted, num_requests_failed,
       num_prompt_tokens, num_output_tokens, num_cached_tokens, num_preemptions, peak_running, peak_kv_blocks,
       step_seconds, execute_seconds, communicate_seconds, stage_wait_seconds, kv_used_share_sum,
       kv_used_steps, num_prefill_steps, num_decode_steps, prefill_execute_seconds, decode_execute_seconds,
       serving);
}
LADDER_WIRE_FORM(QueuedWork) {
  auto& [num_sequences, num_tokens] = value;
  wire(num_sequences, num_tokens);
}
// The exception itself stays where it was thrown.
LADDER_WIRE_FORM(EngineStats) {
  auto& [scheduler, metrics, queued, num_requests, paused, stopped, queue_full, error, num_replicas,
         num_live_replicas, exception] = value;
  wire(scheduler, metrics, queued, num_requests, paused, stopped, queue_full, error, num_replicas,
       num_live_replicas);
}

LADDER_WIRE_FORM(BatchConfig) {
  auto& [max_num_seqs, max_num_batched_tokens, max_model_len, block_size, num_kv_blocks] = value;
  wire(max_num_seqs, max_num_batched_tokens, max_model_len, block_size, num_kv_blocks);
}
LADDER_WIRE_FORM(SchedulerConfig) {
  auto& [batch, vocab_size, eos_token_ids, max_logprobs, policy, enable_prefix_caching, prefix_cache_seed,
         enable_chunked_prefill, max_num_partial_prefills, max_long_partial_prefills,
         long_prefill_token_threshold, watermark, pipeline_depth, phase_lanes, num_mixed_step_tokens,
         has_kv_connector, static_batching, recompute_everything] = value;
  wire(batch, vocab_size, eos_token_ids, max_logprobs, policy, enable_prefix_caching, prefix_cache_seed,
       enable_chunked_prefill, max_num_partial_prefills, max_long_partial_prefills,
       long_prefill_token_threshold, watermark, pipeline_depth, phase_lanes, num_mixed_step_tokens,
       has_kv_connector, static_batching, recompute_everything);
  check_enum(policy, SchedulingPolicy::priority);
}

LADDER_WIRE_FORM(ProgressMessage) {
  auto& [done, total] = value;
  wire(done, total);
}
LADDER_WIRE_FORM(FailedMessage) {
  auto& [users_mistake, text] = value;
  wire(users_mistake, text);
}
LADDER_WIRE_FORM(UpdateMessage) {
  auto& [number, update] = value;
  wire(number, update);
}
LADDER_WIRE_FORM(OutputMessage) {
  auto& [number, output] = value;
  wire(number, output);
}
LADDER_WIRE_FORM(TraceSlice) {
  auto& [lines, next, restarted] = value;
  wire(lines, next, restarted);
}
LADDER_WIRE_FORM(ReplyMessage) {
  auto& [number, result, unavailable, queue_full, error, trace, replicas] = value;
  wire(number, result, unavailable, queue_full, error, trace, replicas);
}
LADDER_WIRE_FORM(TurnMessage) {
  auto& [stats, taken, updates, outputs, replies] = value;
  wire(stats, taken, updates, outputs, replies);
}
LADDER_WIRE_FORM(SubmitMessage) {
  auto& [number, request, wants_reply] = value;
  wire(number, request, wants_reply);
}
LADDER_WIRE_FORM(AbortMessage) {
  auto& [number] = value;
  wire(number);
}
LADDER_WIRE_FORM(CallMessage) {
  auto& [number, call, drain_milliseconds, trace_position, max_records] = value;
  wire(number, call, drain_milliseconds, trace_position, max_records);
  check_enum(call, EngineCall::stop);
}

}  // namespace ladder
