#include "step6_engine/server/openai/served_model.h"

#include <algorithm>
#include <chrono>

#include "step2_model/json.h"

namespace ladder {

namespace {

// Of tokenizer_config.json what says how text becomes tokens, and no names of files.
constexpr const char* kTokenizerFields[] = {"tokenizer_class",
                                            "bos_token",
                                            "eos_token",
                                            "pad_token",
                                            "unk_token",
                                            "add_bos_token",
                                            "add_eos_token",
                                            "model_max_length",
                                            "additional_special_tokens",
                                            "added_tokens_decoder",
                                            "chat_template",
                                            "errors",
                                            "add_prefix_space",
                                            "clean_up_tokenization_spaces"};

std::string tokenizer_info_of(const std::filesystem::path& path) {
  OrderedJson info = OrderedJson::object();
  const std::filesystem::path file = path / "tokenizer_config.json";
  if (std::filesystem::exists(file)) {
    const OrderedJson config = parse_ordered_json(read_text_file(file), file.string());
    for (const char* field : kTokenizerFields)
      if (config.is_object() && config.contains(field)) info[field] = config[field];
  }
  if (const std::filesystem::path jinja = path / "chat_template.jinja"; std::filesystem::exists(jinja))
    info["chat_template"] = read_text_file(jinja);
  return info.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// load_chat_template() calls it an error that there is none.
bool has_chat_template(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "chat_template.jinja")) return true;
  const std::filesystem::path file = path / "tokenizer_config.json";
  return std::filesystem::exists(file) &&
         json_find(load_json(file), "chat_template", file.string()) != nullptr;
}

}  // namespace

bool ServedModel::is_called(std::string_view name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

ServedModel make_served_model(const std::filesystem::path& path, const ModelFolder& folder,
                              int64_t max_model_len, std::vector<std::string> names) {
  ServedModel model;
  model.folder = path.string();
  model.names = std::move(names);
  if (model.names.empty()) model.names.push_back(std::filesystem::weakly_canonical(path).filename().string());
  model.tokenizer = folder.tokenizer;
  model.max_model_len = max_model_len;
  model.vocab_size = folder.spec.vocab_size;
  model.default_sampling = folder.default_sampling;
  model.created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  model.tokenizer_info = tokenizer_info_of(path);
  if (model.tokenizer != nullptr && has_chat_template(path)) {
    model.chat_template = std::make_shared<const ChatTemplate>(load_chat_template(path));
    model.turn_end_token_ids = turn_end_token_ids(*model.chat_template, *model.tokenizer);
  }
  return model;
}

}  // namespace ladder
