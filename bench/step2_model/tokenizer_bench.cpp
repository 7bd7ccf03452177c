// Encoding and decoding, one thread. Without settings: models/tinyworld's tokenizer on this project's own
// sources, and on random words, which no cache of words helps. tools/tokenizer_compare.py sets another
// tokenizer and other texts:
//   LADDER_TOKENIZER        folder of a tokenizer.json
//   LADDER_TOKENIZER_TEXTS  folder of NAME.jsonl, one text (a JSON string) per line
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "step2_model/json.h"
#include "step2_model/tokenizer/tokenizer.h"

namespace ladder {
namespace {

using Texts = std::vector<std::string>;

std::string setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

Texts own_sources() {
  Texts texts;
  for (const char* folder : {"step1_layers", "step2_model", "tests"})
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(LADDER_SOURCE_DIR) / folder))
      if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h")
        texts.push_back(read_text_file(entry.path()));
  std::sort(texts.begin(), texts.end());
  return texts;
}

Texts random_words() {
  std::mt19937 random(1);
  Texts texts(64);
  for (std::string& text : texts)
    while (text.size() < 8192) {
      for (auto letters = 3 + random() % 10; letters > 0; --letters)
        text.push_back(static_cast<char>('a' + random() % 26));
      text.push_back(' ');
    }
  return texts;
}

int64_t bytes_of(const Texts& texts) {
  int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<int64_t>(text.size());
  return bytes;
}

void encode(benchmark::State& state, const Tokenizer& tokenizer, const Texts& texts) {
  int64_t tokens = 0;
  for (auto _ : state)
    for (const std::string& text : texts)
      tokens += static_cast<int64_t>(tokenizer.encode(text, false).size());
  state.SetBytesProcessed(state.iterations() * bytes_of(texts));
  state.counters["tokens"] = benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

void decode(benchmark::State& state, const Tokenizer& tokenizer, const Texts& texts, bool incremental) {
  std::vector<std::vector<int32_t>> all_ids;
  for (const std::string& text : texts) all_ids.push_back(tokenizer.encode(text, false));
  size_t bytes = 0;
  for (auto _ : state)
    for (const std::vector<int32_t>& ids : all_ids) {
      if (!incremental) {
        bytes += tokenizer.decode(ids).size();
        continue;
      }
      IncrementalDecoder decoder(tokenizer);
      for (const int32_t id : ids) bytes += decoder.push(id).size();
      bytes += decoder.finish().size();
    }
  state.SetBytesProcessed(static_cast<int64_t>(bytes));
}

const bool kRegistered = [] {
  const auto tokenizer = std::make_shared<const Tokenizer>(
      Tokenizer::load(setting("LADDER_TOKENIZER", std::string(LADDER_SOURCE_DIR) + "/models/tinyworld")));
  std::vector<std::pair<std::string, Texts>> corpora;
  if (const std::string folder = setting("LADDER_TOKENIZER_TEXTS", ""); !folder.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".jsonl") continue;
      Texts texts;
      std::istringstream lines(read_text_file(entry.path()));
      for (std::string line; std::getline(lines, line);)
        texts.push_back(json_string(parse_json(line, entry.path().string()), entry.path().string()));
      corpora.emplace_back(entry.path().stem().string(), std::move(texts));
    }
    std::sort(corpora.begin(), corpora.end());
  } else {
    corpora.emplace_back("own_sources", own_sources());
    corpora.emplace_back("random_words", random_words());
  }
  for (const auto& [name, texts] : corpora) {
    benchmark::RegisterBenchmark(("tokenizer_encode/" + name).c_str(), [tokenizer,
                                                                        texts = texts](benchmark::State& s) {
      encode(s, *tokenizer, texts);
    })->Unit(benchmark::kMillisecond);
    for (const bool incremental : {false, true})
      benchmark::RegisterBenchmark(
          ((incremental ? "tokenizer_decode_incremental/" : "tokenizer_decode/") + name).c_str(),
          [tokenizer, texts = texts, incremental](benchmark::State& s) {
            decode(s, *tokenizer, texts, incremental);
          })
          ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace ladder
