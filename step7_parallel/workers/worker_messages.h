#pragma once
// What an engine's process and its workers say to each other over their sockets, until every worker is ready and when one
// fails. Steps and answers go through rings (step_ring.h).
//
//   engine                                    worker
//     |  hello                        hello     |     MessageSocket::exchange_hello
//     |  setup                                  |     which rank, of what
//     |               progress, progress, ...   |     while its weights are read
//     |               ready                     |     it runs steps now
//     |               failed                    |     at any time; then it ends
#include <string>

#include "step4_runner/memory.h"
#include "step7_parallel/workers/run_fingerprint.h"
#include "step7_parallel/workers/step_wire_forms.h"

namespace ladder {

enum class WorkerMessage : uint32_t { setup = 1, progress, ready, failed };

struct WorkerSetup {
  int rank = 0;
  RunnerConfig config;  // resolved, the same for all ranks
  RunFingerprint fingerprint;
  bool shows_kv_caches = false;  // shared_kv_caches.h
  bool tells_layers = false;     // told_layers.h
};
struct WorkerReady {
  BatchConfig batch;                   // with the KV blocks that there are
  MemoryPlan memory;                   // of this rank
  std::vector<KvCacheSpec> kv_caches;  // that it shows, one for each of its layers
  std::string gpu_memory;              // where they lie (gpu_kv_caches.h); empty: on the CPU
};
struct WorkerFailed {
  bool users_mistake = false;
  bool follows_from_another = false;  // it was released from a wait because another rank had failed
  std::string text;
};
// `progress` is a ProgressMessage (step6_engine/remote/engine_messages.h).

// Without linear_method: a rank is told the sizes that were settled with it.
LADDER_WIRE_FORM(RunnerConfig) {
  auto& [device, dtype, load_format, linear_method, kv_cache_dtype, batch, kv_memory,
         num_kv_blocks_is_predicted, max_model_len_is_default, gpu_memory_utilization, cuda_graphs,
         async_scheduling, dependent_launch, tensor_parallel_size, pipeline_parallel_size,
         prefill_context_parallel_size, decode_context_parallel_size, kv_interleave_size, stage_ends,
         expert_parallel, expert_replicas, expert_replica, balance_experts, num_redundant_experts,
         naive_pipeline, check_batches, threads, kernels] = value;
  wire(device.type, device.index, dtype, load_format, kv_cache_dtype, batch, kv_memory,
       num_kv_blocks_is_predicted, max_model_len_is_default, gpu_memory_utilization, cuda_graphs,
       async_scheduling, dependent_launch, tensor_parallel_size, pipeline_parallel_size,
       prefill_context_parallel_size, decode_context_parallel_size, kv_interleave_size, stage_ends,
       expert_parallel, expert_replicas, expert_replica, balance_experts, num_redundant_experts,
       naive_pipeline, check_batches, threads, kernels);
  check_enum(device.type, DeviceType::fake);
  check_enum(dtype, DType::f64);
  check_enum(load_format, LoadFormat::dummy);
  check_enum(kv_cache_dtype, KvCacheDType::int4);
}
LADDER_WIRE_FORM(MemoryPlan) {
  auto& [weights, kv, activations, other] = value;
  wire(weights, kv, activations, other);
}
LADDER_WIRE_FORM(RunFingerprint) {
  auto& [program, model] = value;
  wire(program, model);
}
LADDER_WIRE_FORM(WorkerSetup) {
  auto& [rank, config, fingerprint, shows_kv_caches, tells_layers] = value;
  wire(rank, config, fingerprint, shows_kv_caches, tells_layers);
}
LADDER_WIRE_FORM(KvCacheSpec) {
  auto& [kind, dtype, kept_as, num_kv_heads, k_dim, v_dim] = value;
  wire(kind, dtype, kept_as, num_kv_heads, k_dim, v_dim);
  check_enum(kind, KvCacheKind::full);
  check_enum(dtype, DType::f64);
  check_enum(kept_as, KvCacheDType::int4);
}
LADDER_WIRE_FORM(WorkerReady) {
  auto& [batch, memory, kv_caches, gpu_memory] = value;
  wire(batch, memory, kv_caches, gpu_memory);
}
LADDER_WIRE_FORM(WorkerFailed) {
  auto& [users_mistake, follows_from_another, text] = value;
  wire(users_mistake, follows_from_another, text);
}

}  // namespace ladder
