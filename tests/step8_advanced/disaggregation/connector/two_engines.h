#pragma once
// Two whole engines in one process, the keys and values of whose prompts go from one to the other.
#include <memory>
#include <utility>
#include <vector>

#include "step8_advanced/disaggregation/connector/connector.h"
#include "step8_advanced/disaggregation/connector/layer_by_layer.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder::testing {

inline constexpr std::chrono::seconds kKvTestPatience{60};

struct ConnectedEngine {
  std::shared_ptr<KvTransferConnector> connector;
  std::unique_ptr<Engine> engine;

  ConnectedEngine(EngineOptions options, const KvTransferConfig& config) {
    options.makers.kv_connector = [&](const ExecutorOptions& parts) {
      connector = std::make_shared<KvTransferConnector>(config, model_fingerprint(parts.model),
                                                        kv_layout_of(parts.spec, parts.config));
      return MadeKvConnector{connector, connector};
    };
    options.makers.executor = tells_layers(std::move(options.makers.executor));
    engine = engine_with(options);
  }

  // Until no block is kept for a reader. False: it takes too long.
  bool give_back_all() {
    const auto deadline = std::chrono::steady_clock::now() + kKvTestPatience;
    while (engine->scheduler().stats().num_held_blocks > 0) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      connector->wait(std::chrono::milliseconds(20));
      engine->take_kv_events();
    }
    return true;
  }

  void expect_all_given_back() {
    EXPECT_TRUE(give_back_all());
    expect_books_closed(engine->scheduler());
  }
};

inline KvTransferConfig produces(std::string listen = "tcp://0") {
  KvTransferConfig config;
  config.role = KvTransferRole::producer;
  config.listen = std::move(listen);
  config.start_patience = std::chrono::hours(1);  // on a busy machine, too, what was asked for is loaded
  return config;
}

inline KvTransferConfig consumes() {
  KvTransferConfig config;
  config.role = KvTransferRole::consumer;
  return config;
}

// What the engine that computes the prompt is asked, for a request to the one that goes on.
inline Request prompt_alone(Request request) {
  request.sampling.max_tokens = 1;
  request.sampling.n = 1;
  request.sampling.logprobs.reset();
  request.sampling.stop.clear();
  request.kv_transfer.emplace().do_remote_decode = true;
  return request;
}

// Of a prompt that another engine keeps, or is still computing.
inline KvTransferParams kept_as(std::string remote_request_id, std::string remote_address) {
  KvTransferParams params;
  params.do_remote_prefill = true;
  params.remote_request_id = std::move(remote_request_id);
  params.remote_address = std::move(remote_address);
  return params;
}

// The same requests, to be gone on with where their prompts are now.
inline std::vector<Request> with_prompts_at(ConnectedEngine& producer, std::vector<Request> requests) {
  std::vector<Request> prompts;
  for (const Request& request : requests) prompts.push_back(prompt_alone(request));
  const std::vector<RequestOutput> outputs = producer.engine->generate(prompts);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(outputs[i].kv_transfer.has_value()) << "request " << i;
    requests[i].kv_transfer = outputs[i].kv_transfer;
  }
  return requests;
}

// All of each prompt but its last token.
inline int64_t num_tokens_to_load(const std::vector<Request>& requests) {
  int64_t count = 0;
  for (const Request& request : requests) count += std::ssize(request.prompt_token_ids) - 1;
  return count;
}

}  // namespace ladder::testing
