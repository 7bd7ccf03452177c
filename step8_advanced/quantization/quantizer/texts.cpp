#include "step8_advanced/quantization/quantizer/texts.h"

#include <algorithm>
#include <sstream>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

// One line of a file: a text, or ids.
struct Document {
  std::string text;
  TokenIds ids;
  bool is_text = true;
};

Document parse_document(const Json& object, const std::string& where, int64_t vocab_size) {
  LADDER_CHECK(object.is_object(), "{}: expected an object, found {}", where, json_brief(object));
  Document document;
  for (const char* key : {"text", "prompt"})
    if (const Json* text = json_find(object, key, where)) {
      document.text = json_string(*text, fmt::format("{}: {}", where, key));
      return document;
    }
  const Json* ids = json_find(object, "prompt_token_ids", where);
  LADDER_CHECK(ids != nullptr && ids->is_array(),
               "{}: expected \"text\", \"prompt\" or a list \"prompt_token_ids\"", where);
  document.is_text = false;
  for (const Json& id : *ids)
    document.ids.push_back(
        static_cast<int32_t>(json_int(id, where + ": prompt_token_ids", 0, vocab_size - 1)));
  return document;
}

std::vector<Document> read_documents(const std::filesystem::path& path, int64_t vocab_size,
                                     int64_t max_documents) {
  const std::string content = read_text_file(path);
  if (path.extension() != ".jsonl") {
    // Other bytes would be read as something, and the model judged or calibrated by it.
    const int64_t valid = utf8_valid_prefix(content);
    LADDER_CHECK(valid == std::ssize(content), "{}: expected a text in UTF-8, found another byte at {}",
                 path.string(), valid);
    return {{content, {}, true}};
  }
  std::vector<Document> documents;
  std::istringstream lines(content);
  int64_t number = 1;
  for (std::string line; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (max_documents > 0 && std::ssize(documents) == max_documents) break;
    const std::string where = fmt::format("{}:{}", path.string(), number);
    documents.push_back(parse_document(parse_json(line, where), where, vocab_size));
  }
  return documents;
}

}  // namespace

std::vector<TokenIds> read_texts(const std::filesystem::path& path, const Tokenizer* tokenizer,
                                 int64_t vocab_size, bool joined, int64_t max_documents) {
  std::vector<Document> documents = read_documents(path, vocab_size, max_documents);
  const bool any_text = std::any_of(documents.begin(), documents.end(),
                                    [](const Document& document) { return document.is_text; });
  LADDER_CHECK(!any_text || tokenizer != nullptr,
               "{}: a text needs a tokenizer, and the model's folder has no tokenizer.json: expected "
               "\"prompt_token_ids\"",
               path.string());
  if (joined) {
    Document whole;
    for (const Document& document : documents) {
      LADDER_CHECK(document.is_text, "{}: token ids cannot be joined, expected texts", path.string());
      whole.text += (&document == documents.data() ? "" : "\n\n") + document.text;
    }
    documents = {whole};
  }
  std::vector<TokenIds> texts;
  for (Document& document : documents) {
    if (document.is_text) document.ids = tokenizer->encode(document.text, true);
    // A tokenizer may know more tokens than the model has rows for.
    for (const int32_t id : document.ids)
      LADDER_CHECK(id < vocab_size, "{}: the tokenizer gives the id {}, and the model's vocabulary has {}",
                   path.string(), id, vocab_size);
    texts.push_back(std::move(document.ids));
  }
  LADDER_CHECK(std::any_of(texts.begin(), texts.end(), [](const TokenIds& ids) { return !ids.empty(); }),
               "{}: expected a text, found nothing in it", path.string());
  return texts;
}

std::vector<TextWindow> cut_windows(std::span<const TokenIds> documents, int64_t window) {
  LADDER_CHECK(window >= 2, "a window of {} tokens: expected at least 2, one and what follows it", window);
  std::vector<TextWindow> windows;
  for (size_t document = 0; document < documents.size(); ++document) {
    const TokenIds& ids = documents[document];
    for (int64_t begin = 0; begin + 1 < std::ssize(ids); begin += window) {
      const int64_t end = std::min<int64_t>(begin + window, std::ssize(ids));
      const int64_t cluster = documents.size() == 1 ? std::ssize(windows) : static_cast<int64_t>(document);
      windows.push_back({TokenIds(ids.begin() + begin, ids.begin() + end), cluster});
    }
  }
  return windows;
}

}  // namespace ladder
