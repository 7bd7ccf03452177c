#include "cli/kv_store_flags.h"

#include <cstdio>
#include <memory>

#include "cli/flag_values.h"
#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/store/kv_store.h"

namespace ladder {

void KvStoreFlags::add(CLI::App& app) {
  constexpr const char* kGroup = "Prefixes on disk (step8_advanced/disaggregation/store)";
  app.add_option("--kv-store", folder_,
                 "keys and values of full blocks of tokens are written to this folder, and read from it by "
                 "every engine of the same model and layout that has not computed them, after a restart too")
      ->type_name("FOLDER")
      ->group(kGroup);
  app.add_option("--kv-store-max", max_bytes_,
                 "with --kv-store: size of the folder; what was not used for the longest time is removed "
                 "[10GiB]")
      ->type_name("BYTES")
      ->group(kGroup);
}

bool KvStoreFlags::wanted() const {
  LADDER_CHECK(max_bytes_.empty() || !folder_.empty(), "--kv-store-max: expected with --kv-store");
  return !folder_.empty();
}

KvStoreConfig KvStoreFlags::config() const {
  KvStoreConfig config;
  config.folder = folder_;
  if (!max_bytes_.empty()) config.max_bytes = parse_bytes(max_bytes_, "--kv-store-max");
  config.warn = [](const std::string& why) {
    const std::string line =
        fmt::format("ladder: --kv-store: {}; the engine goes on, and tries to store what it computes\n", why);
    std::fputs(line.c_str(), stderr);  // fmt::print would throw where nobody reads it, on another thread
  };
  return config;
}

std::function<MadeKvConnector(const ExecutorOptions&)> KvStoreFlags::maker() const {
  return [config = config()](const ExecutorOptions& options) {
    const KvLayout layout = kv_layout_of(options.spec, options.config);
    const ModelFingerprint model = model_fingerprint(options.model, options.config.load_format);
    try {
      const auto store = std::make_shared<KvStoreConnector>(config, model, layout);
      return MadeKvConnector{store, store};
    } catch (const Error& error) {
      fail("--kv-store: {}", error.what());
    }
  };
}

}  // namespace ladder
