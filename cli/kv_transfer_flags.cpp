#include "cli/kv_transfer_flags.h"

#include <cstdio>
#include <memory>

#include "cli/flag_values.h"
#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/connector/connector.h"

namespace ladder {

namespace {

constexpr const char* kGroup = "Keys and values from one engine to another (step8_advanced/disaggregation)";

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Nothing where nothing was shortened.
void report_compression(const KvBodyCounts& counts, const KvLayout& layout) {
  if (counts.num_bytes == 0) return;
  const std::string line = fmt::format(
      "ladder: keys and values ({}): {:.2f} MB were sent as {:.2f} MB (ratio {:.3f}); zstd took {:.2f} s, "
      "{:.2f} GB/s\n",
      layout_text(layout), static_cast<double>(counts.num_bytes) / 1e6,
      static_cast<double>(counts.num_packed_bytes) / 1e6,
      static_cast<double>(counts.num_bytes) / static_cast<double>(counts.num_packed_bytes),
      counts.pack_seconds, static_cast<double>(counts.num_bytes) / counts.pack_seconds / 1e9);
  std::fputs(line.c_str(), stderr);  // fmt::print would throw where nobody reads it, at the connector's end
}

}  // namespace

void KvTransferFlags::add(CLI::App& app) {
  app.add_option(
         "--kv-role", role_,
         "producer: computes prompts and keeps them for other engines to read; consumer: reads them; or both")
      ->check(CLI::IsMember({"producer", "consumer", "both"}))
      ->type_name("ROLE")
      ->group(kGroup);
  app.add_option(
         "--kv-listen", listen_,
         "where a producer's readers reach it [tcp://127.0.0.1:0, a free port]; tcp://HOST:PORT?streams=4 over "
         "so many connections; ucx://HOST:PORT by what UCX finds; shm://NAME and file:///FOLDER are for readers "
         "on this machine")
      ->type_name("ADDRESS")
      ->group(kGroup);
  app.add_option("--kv-compression", compression_,
                 "what a producer sends is shortened on the way: none, or zstd, for a slow link [none]")
      ->check(CLI::IsMember({"none", "zstd"}))
      ->type_name("METHOD")
      ->group(kGroup);
  app.add_flag(
         "--kv-layer-by-layer", layer_by_layer_,
         "a producer sends what a layer has computed while it computes the next one, to a consumer that was told of "
         "the prompt at the same time")
      ->group(kGroup);
  lease_option_ =
      app.add_option("--kv-lease", lease_,
                     "seconds for which a producer keeps a prompt of whose reader it hears nothing")
          ->check(in_range(0.01, 86400))
          ->type_name("SECONDS")
          ->capture_default_str()
          ->group(kGroup);
  app.add_option("--kv-max-held", max_held_,
                 "a producer that keeps so much for readers begins no further prompt [no limit]")
      ->type_name("BYTES")
      ->group(kGroup);
  recompute_option_ = app.add_option("--kv-recompute-threshold", recompute_threshold_,
                                     "a consumer computes fewer tokens itself")
                          ->check(whole_in_range(0, 1 << 30))
                          ->type_name("N")
                          ->capture_default_str()
                          ->group(kGroup);
  app.add_option(
         "--kv-load-failure-policy", load_failure_policy_,
         "what becomes of a consumer's request whose prompt does not come: recompute it here, or fail with "
         "an error [recompute]")
      ->check(CLI::IsMember({"recompute", "fail"}))
      ->type_name("POLICY")
      ->group(kGroup);
  load_timeout_option_ =
      app.add_option("--kv-load-timeout", load_timeout_,
                     "seconds until a consumer waits no longer for a prompt, or a producer for its reader")
          ->check(in_range(0.01, 86400))
          ->type_name("SECONDS")
          ->capture_default_str()
          ->group(kGroup);
}

KvTransferConfig KvTransferFlags::config() const {
  KvTransferConfig config;
  config.role = role_ == "producer"   ? KvTransferRole::producer
                : role_ == "consumer" ? KvTransferRole::consumer
                                      : KvTransferRole::both;
  const auto expect = [&](bool given, bool fits, const char* flag, const char* roles) {
    LADDER_CHECK(!given || (wanted() && fits), "{}: expected with --kv-role {}", flag, roles);
  };
  expect(!listen_.empty(), config.produces(), "--kv-listen", "producer or both");
  expect(!compression_.empty(), config.produces(), "--kv-compression", "producer or both");
  expect(layer_by_layer_, config.produces(), "--kv-layer-by-layer", "producer or both");
  expect(lease_option_->count() > 0, config.produces(), "--kv-lease", "producer or both");
  expect(!max_held_.empty(), config.produces(), "--kv-max-held", "producer or both");
  expect(recompute_option_->count() > 0, config.consumes(), "--kv-recompute-threshold", "consumer or both");
  expect(!load_failure_policy_.empty(), config.consumes(), "--kv-load-failure-policy", "consumer or both");
  expect(load_timeout_option_->count() > 0, true, "--kv-load-timeout", "producer, consumer or both");
  if (!listen_.empty()) config.listen = listen_;
  config.layer_by_layer = layer_by_layer_;
  config.compress = compression_ == "zstd";
  config.lease = milliseconds(lease_);
  config.load_timeout = milliseconds(load_timeout_);
  if (!max_held_.empty()) config.max_held_bytes = parse_bytes(max_held_, "--kv-max-held");
  config.recompute_threshold = recompute_threshold_;
  if (load_failure_policy_ == "fail") config.load_failure_policy = KvLoadFailurePolicy::fail;
  return config;
}

std::function<MadeKvConnector(const ExecutorOptions&)> KvTransferFlags::maker() const {
  return [config = config()](const ExecutorOptions& options) {
    const KvLayout layout = kv_layout_of(options.spec, options.config);
    const std::shared_ptr<KvTransferConnector> connector(
        new KvTransferConnector(config, model_fingerprint(options.model, options.config.load_format), layout),
        [layout](KvTransferConnector* ending) {
          const std::unique_ptr<KvTransferConnector> owned(ending);
          report_compression(owned->compression(), layout);
        });
    if (config.produces())
      fmt::print(stderr, "ladder: other engines read keys and values at {} ({}; lease {:g} s)\n",
                 connector->address(), layout_text(layout),
                 std::chrono::duration<double>(config.lease).count());
    return MadeKvConnector{connector, connector};
  };
}

}  // namespace ladder
