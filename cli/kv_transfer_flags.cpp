#include "cli/kv_transfer_flags.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>

#include "cli/flag_values.h"
#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/connector/connector.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"

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

// The flag whose value is to blame, before what a listener says of it.
void listen_at_flag(const std::function<void()>& listen) {
  try {
    listen();
  } catch (const Error& error) {
    fail("--kv-listen: {}", error.what());
  }
}

}  // namespace

bool is_a_free_port(std::string_view address) {
  const std::string_view place = address.substr(0, address.find('?'));
  return std::ranges::any_of(std::array{"tcp://", "ucx://", "nccl://"}, [&](std::string_view transport) {
    return place.starts_with(transport) && (place.substr(transport.size()) == "0" || place.ends_with(":0"));
  });
}

bool KvTransferFlags::Flag::fits(KvTransferRole role) const {
  return (of_producers && role != KvTransferRole::consumer) ||
         (of_consumers && role != KvTransferRole::producer);
}

void KvTransferFlags::add(CLI::App& app) {
  app.add_option(
         "--kv-role", role_,
         "producer: computes prompts and keeps them for other engines to read; consumer: reads them; or both")
      ->check(CLI::IsMember({"producer", "consumer", "both"}))
      ->type_name("ROLE")
      ->group(kGroup);
  const auto add_value = [&](const char* name, auto& value, const char* type, bool of_producers,
                             bool of_consumers, const char* help) {
    CLI::Option* option = app.add_option(name, value, help)->type_name(type)->group(kGroup);
    flags_.push_back({option, of_producers, of_consumers});
    return option;
  };
  add_value(
      "--kv-listen", listen_, "ADDRESS", true, false,
      "where a producer's readers reach it [tcp://127.0.0.1:0, a free port]; tcp://HOST:PORT?streams=4 over "
      "so many connections; ucx://HOST:PORT by what UCX finds; shm://NAME and file:///FOLDER are for readers "
      "on this machine; cuda://NAME from GPU to GPU of this machine, which --disaggregate takes unasked; "
      "nccl://HOST:PORT from GPU to GPU by NCCL, between machines too");
  add_value("--kv-compression", compression_, "METHOD", true, false,
            "what a producer sends is shortened on the way: none, or zstd, for a slow link [none]")
      ->check(CLI::IsMember({"none", "zstd"}));
  CLI::Option* layers =
      app.add_flag("--kv-layer-by-layer", layer_by_layer_,
                   "a producer sends what a layer has computed while it computes the next one, to a consumer "
                   "that was told of the prompt at the same time")
          ->group(kGroup);
  flags_.push_back({layers, true, false});
  add_value("--kv-lease", lease_, "SECONDS", true, false,
            "seconds for which a producer keeps a prompt of whose reader it hears nothing")
      ->check(in_range(0.01, 86400))
      ->capture_default_str();
  add_value("--kv-max-held", max_held_, "BYTES", true, false,
            "a producer that keeps so much for readers begins no further prompt [no limit]");
  add_value("--kv-recompute-threshold", recompute_threshold_, "N", false, true,
            "a consumer computes fewer tokens itself")
      ->check(whole_in_range(0, 1 << 30))
      ->capture_default_str();
  add_value(
      "--kv-loaders", num_loaders_, "N", false, true,
      "prompts that a consumer loads at a time, each by a thread of its own; at least as many as there are "
      "producers, where it is told of a prompt before that is computed")
      ->check(whole_in_range(1, 64))
      ->capture_default_str();
  add_value(
      "--kv-load-failure-policy", load_failure_policy_, "POLICY", false, true,
      "what becomes of a consumer's request whose prompt does not come: recompute it here, or fail with "
      "an error [recompute]")
      ->check(CLI::IsMember({"recompute", "fail"}));
  add_value("--kv-load-timeout", load_timeout_, "SECONDS", true, true,
            "seconds until a consumer waits no longer for a prompt, or a producer for its reader")
      ->check(in_range(0.01, 86400))
      ->capture_default_str();
}

KvTransferConfig KvTransferFlags::values(KvTransferRole role) const {
  KvTransferConfig config;
  config.role = role;
  if (!listen_.empty()) config.listen = listen_;
  config.layer_by_layer = layer_by_layer_;
  config.compress = compression_ == "zstd";
  LADDER_CHECK(
      !config.compress || !(config.listen.starts_with("cuda://") || config.listen.starts_with("nccl://")),
      "--kv-compression zstd: what goes from GPU to GPU is not shortened, expected another --kv-listen "
      "than {}",
      config.listen);
  config.lease = milliseconds(lease_);
  config.load_timeout = milliseconds(load_timeout_);
  if (!max_held_.empty()) config.max_held_bytes = parse_bytes(max_held_, "--kv-max-held");
  config.recompute_threshold = recompute_threshold_;
  config.num_loaders = num_loaders_;
  if (load_failure_policy_ == "fail") config.load_failure_policy = KvLoadFailurePolicy::fail;
  return config;
}

KvTransferConfig KvTransferFlags::config() const {
  const KvTransferRole role = role_ == "producer"   ? KvTransferRole::producer
                              : role_ == "consumer" ? KvTransferRole::consumer
                                                    : KvTransferRole::both;
  for (const Flag& flag : flags_)
    LADDER_CHECK(flag.option->count() == 0 || (wanted() && flag.fits(role)),
                 "{}: expected with --kv-role {}{}both", flag.option->get_name(),
                 flag.of_producers ? "producer or " : "", flag.of_consumers ? "consumer or " : "");
  return values(role);
}

void KvTransferFlags::expect_for_instances(int num_producers) const {
  LADDER_CHECK(
      !wanted(),
      "--kv-role {}: --disaggregate gives each of its servers its own, expected only one of the flags",
      role_);
  const KvTransferConfig config = values(KvTransferRole::producer);
  LADDER_CHECK(
      num_producers == 1 || is_a_free_port(config.listen),
      "--kv-listen {}: each of {} prefill servers listens at a place of its own, expected a free port: "
      "tcp://HOST:0",
      config.listen, num_producers);
  // So that nobody waits for models to be loaded, to hear that it cannot be.
  listen_at_flag([&] { listen_for_kv(config.listen); });
}

std::vector<std::string> KvTransferFlags::with_role(std::vector<std::string> words,
                                                    KvTransferRole role) const {
  std::erase_if(words, [&](const std::string& word) {
    return std::ranges::any_of(flags_, [&](const Flag& flag) {
      return !flag.fits(role) && word.substr(0, word.find('=')) == flag.option->get_name();
    });
  });
  words.push_back(role == KvTransferRole::producer ? "--kv-role=producer" : "--kv-role=consumer");
  return words;
}

std::function<MadeKvConnector(const ExecutorOptions&)> KvTransferFlags::maker() const {
  return [config = config()](const ExecutorOptions& options) {
    const KvLayout layout = kv_layout_of(options.spec, options.config);
    const ModelFingerprint model = model_fingerprint(options.model, options.config.load_format);
    std::shared_ptr<KvTransferConnector> connector;
    listen_at_flag([&] {
      connector.reset(new KvTransferConnector(config, model, layout), [layout](KvTransferConnector* ending) {
        const std::unique_ptr<KvTransferConnector> owned(ending);
        report_compression(owned->compression(), layout);
      });
    });
    // What is not noticed else: with a producer of another model, say, everything is computed here and all answers are right.
    connector->on_failed_load(
        [](const std::string& line) { std::fputs(("ladder: " + line + "\n").c_str(), stderr); });
    if (config.produces())
      fmt::print(stderr, "ladder: other engines read keys and values at {} ({}; lease {:g} s)\n",
                 connector->address(), layout_text(layout),
                 std::chrono::duration<double>(config.lease).count());
    return MadeKvConnector{connector, connector};
  };
}

}  // namespace ladder
