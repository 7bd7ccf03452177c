#include "cli/trace_flags.h"

#include <cstdio>

#include "cli/flag_values.h"
#include "step1_layers/core/error.h"

namespace ladder {

void TraceFlags::add(CLI::App& app) {
  app.add_option(
         "--trace", file_,
         "write what each step of the engine does to this file (read it with `ladder trace`, or with the "
         "server's page)")
      ->type_name("FILE");
  app.add_option("--trace-limit", limit_, "the trace's file grows no larger")
      ->type_name("BYTES")
      ->capture_default_str();
}

std::shared_ptr<TraceWriter> TraceFlags::open() const {
  const int64_t limit = parse_bytes(limit_, "--trace-limit");
  if (file_.empty()) return nullptr;
  try {
    return std::make_shared<TraceWriter>(file_, limit, [](const std::string& why) {
      std::fprintf(stderr, "ladder: --trace: %s\n", why.c_str());
    });
  } catch (const Error& error) {
    throw Error(std::string("--trace: ") + error.what());
  }
}

std::vector<std::string> TraceFlags::arguments() const {
  if (file_.empty()) return {};
  return {"--trace=" + file_, "--trace-limit=" + limit_};
}

void record_if_wanted(Engine& engine, const std::shared_ptr<TraceWriter>& writer) {
  if (writer != nullptr) record_to_file(engine, writer);
}

}  // namespace ladder
