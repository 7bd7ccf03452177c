// ladder tokenize: texts to token ids and back, one JSON object per line.
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step2_model/tokenizer/tokenizer.h"

namespace ladder {

namespace {

struct TokenizeFlags {
  std::string model;
  bool decode = false;
};

void expect_only(const Json& object, const std::string& field, const std::string& where) {
  json_at(object, field, where);
  for (const auto& [key, value] : object.items())
    LADDER_CHECK(key == field, "{}: unknown field {}; expected \"{}\" alone", where, json_brief(key), field);
}

std::string encode_line(const Tokenizer& tokenizer, const Json& object, const std::string& where) {
  expect_only(object, "text", where);
  const std::string& text = json_string(object["text"], where + ": text");
  return fmt::format("{{\"ids\":{}}}\n", json_list(tokenizer.encode(text, true)));
}

std::string decode_line(const Tokenizer& tokenizer, const Json& object, const std::string& where) {
  expect_only(object, "ids", where);
  const Json& list = object["ids"];
  LADDER_CHECK(list.is_array(), "{}: ids: expected a list of token ids, found {}", where, json_brief(list));
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.size(); ++i)
    ids.push_back(static_cast<int32_t>(
        json_int(list[i], fmt::format("{}: ids[{}]", where, i), 0, tokenizer.vocab_size() - 1)));
  return fmt::format("{{\"text\":{}}}\n", json_string_literal(tokenizer.decode(ids, false)));
}

void run_tokenize(const TokenizeFlags& flags) {
  const std::filesystem::path folder = flags.model;
  LADDER_CHECK(std::filesystem::is_directory(folder), "--model {}: there is no such folder", flags.model);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("standard input, line {}", number);
    const Json object = parse_json(line, where);
    write_out(flags.decode ? decode_line(tokenizer, object, where) : encode_line(tokenizer, object, where));
  }
}

}  // namespace

RunCommand add_tokenize_command(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  app.footer(
      "Reads {\"text\": \"...\"} lines from standard input and writes {\"ids\": [...]} lines; with --decode "
      "the "
      "other way round.");
  app.add_option("--model", flags->model, "folder with a tokenizer.json; nothing else need be there")
      ->required()
      ->type_name("DIR");
  app.add_flag("--decode", flags->decode, "{\"ids\"} to {\"text\"}, special tokens kept");
  return [flags] { run_tokenize(*flags); };
}

}  // namespace ladder
