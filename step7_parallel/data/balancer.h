#pragma once
// Task 7.7: which replica gets the next request.
//
//   request --> Balancer::choose() --> the replica with ...   fewest turns so far, shortest queue, most of the prompt cached
//                   ^
//                   |  one ReplicaLoad for each replica, as of now
//
// A balancer is a policy without threads, clocks or sockets, so the same one runs in front of engines
// (data_parallel_client.h) and in a simulation of a thousand of them (simulation/). It decides once for each request: moving one
// later would cost its KV cache.
//
// The policies are rows of one table, clearest first; tests, benchmarks and `--data-parallel-balancer` go over it.
// vLLM: vllm/v1/engine/core_client.py (DPLBAsyncMPClient), SGLang: cache-aware load balancing of its router.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace ladder {

// What is known of a replica when a request comes. Counts are of sequences, and hold what has been sent to it and not been
// taken yet.
struct ReplicaLoad {
  bool takes_requests = true;  // it lives, and is not being stopped
  int64_t num_waiting = 0;     // for their first step
  int64_t num_running = 0;
  int64_t num_in_flight = 0;  // sent by this door and not ended: exact, where the other two come from afar
  double kv_usage = 0;        // share of the KV blocks that sequences hold, 0 .. 1
};

struct BalancedRequest {
  std::span<const int32_t> prompt_token_ids;
  int64_t num_completions = 1;
};

class Balancer {
 public:
  virtual ~Balancer() = default;

  // The index of a replica that takes requests; the request will be sent there. Error: none does.
  virtual int choose(const BalancedRequest& request, std::span<const ReplicaLoad> replicas) = 0;

  // Its cache is empty: it was started again, or was told to forget its prefixes.
  virtual void forget(int /*replica*/) {}
};

struct BalancerOptions {
  int num_replicas = 1;
  int64_t cache_tokens = 0;  // that the KV cache of one replica holds
  int64_t num_doors = 1;     // that send to the same replicas without knowing of each other
};

struct BalancerRow {
  std::string_view name;  // of --data-parallel-balancer
  std::string_view idea;  // what it looks at, in half a sentence
  std::unique_ptr<Balancer> (*make)(const BalancerOptions& options);
};

// Clearest first.
std::span<const BalancerRow> balancers();
// Error: no row has this name; names those that there are.
std::unique_ptr<Balancer> make_balancer(std::string_view name, const BalancerOptions& options);

}  // namespace ladder
