// Reading tokenizer.json. Every field is either understood or an error that names it: a tokenizer that almost
// matches its model produces text that is almost right, which is worse than none.
#include <algorithm>

#include "step1_layers/core/error.h"
#include "step2_model/tokenizer/byte_alphabet.h"
#include "step2_model/tokenizer/tokenizer.h"

namespace ladder {
namespace {

constexpr size_t kMaxAddedTokens = 1 << 16;
constexpr size_t kMaxStages = 64;  // of a Sequence

void check_keys(const Json& object, std::initializer_list<std::string_view> known, std::string_view what) {
  for (const auto& [key, value] : object.items())
    LADDER_CHECK(std::find(known.begin(), known.end(), key) != known.end(), "{}: the field {} is not known",
                 what, json_brief(key));
}

const std::string& type_of(const Json& value, std::string_view what) {
  return json_string(json_at(value, "type", what), fmt::format("{}.type", what));
}

const Json& stages_of(const Json& value, const char* key, std::string_view what) {
  const Json& stages = json_at(value, key, what);
  LADDER_CHECK(stages.is_array() && stages.size() <= kMaxStages, "{}.{}: expected an array of at most {}",
               what, key, kMaxStages);
  return stages;
}

// Of a byte-level tokenizer.
void check_decoder(const Json& value, std::string_view what) {
  const std::string& type = type_of(value, what);
  if (type == "Sequence") {
    const Json& stages = stages_of(value, "decoders", what);
    LADDER_CHECK(stages.size() == 1, "{}.decoders: only one ByteLevel is supported", what);
    check_decoder(stages[0], fmt::format("{}.decoders[0]", what));
  } else {
    LADDER_CHECK(type == "ByteLevel",
                 "{}.type: only \"ByteLevel\" is supported together with a ByteLevel pre_tokenizer, found {}",
                 what, json_brief(type));
  }
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  for (const char* other : {"tokenizer.model", "merges.txt"})
    LADDER_CHECK(std::filesystem::exists(path) || !std::filesystem::exists(directory / other),
                 "{}: there is none; transformers makes one from {}: python3 -c \"from transformers import "
                 "AutoTokenizer as T; T.from_pretrained('{}').save_pretrained('{}')\"",
                 path.string(), other, directory.string(), directory.string());
  Tokenizer tokenizer = parse(read_text_file(path), path.string());
  tokenizer.apply(load_tokenizer_config(directory));
  return tokenizer;
}

// add_bos_token and add_eos_token decide, where they are given, about a token at that place, whatever the
// post-processor says. Without a token to add they mean nothing, as in transformers.
void Tokenizer::apply(const TokenizerConfig& config) {
  if (!config.bos_token.empty()) bos_token_id_ = token_to_id(config.bos_token);
  if (!config.eos_token.empty()) eos_token_id_ = token_to_id(config.eos_token);
  if (config.add_bos_token && bos_token_id_) {
    const bool is_there = !prefix_.empty() && prefix_.front() == *bos_token_id_;
    if (*config.add_bos_token && !is_there) prefix_.insert(prefix_.begin(), *bos_token_id_);
    if (!*config.add_bos_token && is_there) prefix_.erase(prefix_.begin());
  }
  if (config.add_eos_token && eos_token_id_) {
    const bool is_there = !suffix_.empty() && suffix_.back() == *eos_token_id_;
    if (*config.add_eos_token && !is_there) suffix_.push_back(*eos_token_id_);
    if (!*config.add_eos_token && is_there) suffix_.pop_back();
  }
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view what, bool fast_scanner) {
  const Json root = parse_json(json, what);
  const auto field = [what](std::string_view name) { return fmt::format("{}: {}", what, name); };
  LADDER_CHECK(root.is_object(), "{}: expected an object, found {}", what, json_brief(root));
  check_keys(root,
             {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"},
             what);
  for (const char* name : {"truncation", "padding"})
    LADDER_CHECK(json_find(root, name, what) == nullptr, "{}: {}: not supported, expected null", what, name);

  const Json& model = json_at(root, "model", what);
  LADDER_CHECK(model.is_object(), "{}: model: expected an object, found {}", what, json_brief(model));
  const Json* type = json_find(model, "type", what);
  LADDER_CHECK(type == nullptr || json_string(*type, field("model.type")) == "BPE",
               "{}: model.type: only \"BPE\" is supported, found {}", what, json_brief(*type));
  check_keys(model,
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"},
             field("model"));
  const Json* cuts = json_find(root, "pre_tokenizer", what);
  PreTokenizer pre_tokenizer =
      PreTokenizer::parse(cuts == nullptr ? Json() : *cuts, field("pre_tokenizer"), fast_scanner);
  const bool byte_level = pre_tokenizer.byte_level();
  Tokenizer tokenizer(
      Bpe::parse(model, field("model"), byte_level ? TokenSpelling::kByteAlphabet : TokenSpelling::kText),
      std::move(pre_tokenizer));
  if (byte_level)
    check_decoder(json_at(root, "decoder", what), field("decoder"));
  else
    tokenizer.text_decoder_ = TextDecoder::parse(json_at(root, "decoder", what), field("decoder"));
  if (const Json* value = json_find(root, "normalizer", what))
    tokenizer.normalizer_ = Normalizer::parse(*value, field("normalizer"));
  const std::optional<Metaspace>& metaspace = tokenizer.pre_tokenizer_.metaspace();
  LADDER_CHECK(
      !metaspace || metaspace->prepend != Metaspace::Prepend::kFirst ||
          !tokenizer.normalizer_.may_move_start(),
      "{}: pre_tokenizer.prepend_scheme: \"first\" is not supported behind a normalizer that replaces several "
      "characters by others, or some by nothing",
      what);
  if (const Json* value = json_find(root, "added_tokens", what))
    tokenizer.parse_added_tokens(*value, field("added_tokens"));
  else
    tokenizer.parse_added_tokens(Json::array(), field("added_tokens"));
  if (const Json* value = json_find(root, "post_processor", what))
    tokenizer.parse_post_processor(*value, field("post_processor"));
  return tokenizer;
}

void Tokenizer::parse_added_tokens(const Json& added, std::string_view what) {
  LADDER_CHECK(added.is_array() && added.size() <= kMaxAddedTokens, "{}: expected an array of at most {}",
               what, kMaxAddedTokens);
  if (text_decoder_) {
    written_ = bpe_.tokens();
    for (int32_t id = 0; id < written_.size(); ++id)
      if (written_.has(id)) tokens_.set(id, text_decoder_->bytes_of(written_.bytes(id)));
  } else {
    tokens_ = bpe_.tokens();
  }
  std::vector<AddedToken> raw, normalized;
  std::vector<std::string> contents;
  for (size_t i = 0; i < added.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", what, i);
    const auto flag = [&](const char* name) {
      const Json* value = json_find(added[i], name, at);
      return value != nullptr && json_bool(*value, fmt::format("{}.{}", at, name));
    };
    AddedToken token;
    token.content = json_string(json_at(added[i], "content", at), fmt::format("{}.content", at));
    token.id = static_cast<int32_t>(
        json_int(json_at(added[i], "id", at), fmt::format("{}.id", at), 0, TokenTable::kMaxTokens - 1));
    token.special = flag("special");
    token.single_word = flag("single_word");
    token.lstrip = flag("lstrip");
    token.rstrip = flag("rstrip");
    token.normalized = flag("normalized");
    LADDER_CHECK(!token.content.empty(), "{}.content: empty", at);
    const std::string shown = json_brief(token.content);
    if (const auto known = bpe_.find_written(token.content)) {
      LADDER_CHECK(*known == token.id, "{}: {} has the id {} in the vocabulary and {} here", at, shown,
                   *known, token.id);
    } else {
      LADDER_CHECK(!tokens_.has(token.id), "{}: {} has the id {} of another token", at, shown, token.id);
      if (text_decoder_) {
        written_.set(token.id, token.content);
        tokens_.set(token.id, text_decoder_->bytes_of(token.content));
      } else {
        tokens_.set(token.id, bytes_of_written(token.content).value_or(token.content));
      }
    }
    LADDER_CHECK(added_ids_.emplace(token.content, token.id).second, "{}: {} occurs twice", at, shown);
    special_.resize(static_cast<size_t>(tokens_.size()));
    special_[static_cast<size_t>(token.id)] = token.special;
    if (token.normalized) {
      token.content = normalizer_.normalize(token.content).value_or(token.content);
      LADDER_CHECK(!token.content.empty(), "{}: {} is empty after normalization", at, shown);
      const bool is_new = std::find(contents.begin(), contents.end(), token.content) == contents.end();
      LADDER_CHECK(is_new, "{}: {} occurs twice after normalization", at, shown);
      contents.push_back(token.content);
      normalized.push_back(std::move(token));
    } else {
      raw.push_back(std::move(token));
    }
  }
  special_.resize(static_cast<size_t>(tokens_.size()));
  raw_added_ = AddedTokenFinder(std::move(raw));
  normalized_added_ = AddedTokenFinder(std::move(normalized));
}

void Tokenizer::parse_post_processor(const Json& value, std::string_view what) {
  const std::string& type = type_of(value, what);
  if (type == "ByteLevel") return;  // concerns offsets, which we do not report
  if (type == "Sequence") {
    const Json& stages = stages_of(value, "processors", what);
    for (size_t i = 0; i < stages.size(); ++i) {
      const std::string stage = fmt::format("{}.processors[{}]", what, i);
      LADDER_CHECK(type_of(stages[i], stage) != "Sequence",
                   "{}: a Sequence within a Sequence is not supported", stage);
      parse_post_processor(stages[i], stage);
    }
    return;
  }
  LADDER_CHECK(type == "TemplateProcessing",
               "{}.type: ByteLevel, TemplateProcessing and Sequence are supported, found {}", what,
               json_brief(type));
  const std::string single_what = fmt::format("{}.single", what);
  const Json& single = json_at(value, "single", what);
  LADDER_CHECK(single.is_array(), "{}: expected an array, found {}", single_what, json_brief(single));
  std::vector<int32_t> before, after;
  bool text_seen = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const std::string piece_what = fmt::format("{}[{}]", single_what, i);
    if (const Json* sequence = json_find(single[i], "Sequence", piece_what)) {
      LADDER_CHECK(!text_seen && json_string(json_at(*sequence, "id", piece_what), piece_what) == "A",
                   "{}: expected the sequence A, once", piece_what);
      text_seen = true;
      continue;
    }
    const std::string& name =
        json_string(json_at(json_at(single[i], "SpecialToken", piece_what), "id", piece_what), piece_what);
    const std::string token_what = fmt::format("{}.special_tokens[{}]", what, json_brief(name));
    const Json& ids =
        json_at(json_at(json_at(value, "special_tokens", what), name, token_what), "ids", token_what);
    LADDER_CHECK(ids.is_array() && ids.size() <= kMaxStages, "{}.ids: expected an array of at most {}",
                 token_what, kMaxStages);
    for (const Json& id : ids) {
      const int64_t number = json_int(id, token_what);
      LADDER_CHECK(tokens_.has(number), "{}.ids: there is no token of id {}", token_what, number);
      (text_seen ? after : before).push_back(static_cast<int32_t>(number));
    }
  }
  LADDER_CHECK(text_seen, "{}: the sequence A is missing", single_what);
  prefix_.insert(prefix_.begin(), before.begin(), before.end());
  suffix_.insert(suffix_.end(), after.begin(), after.end());
}

}  // namespace ladder
