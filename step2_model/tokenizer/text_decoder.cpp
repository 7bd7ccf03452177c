#include "step2_model/tokenizer/text_decoder.h"

#include <algorithm>
#include <charconv>

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

// The text without up to `most` times `character` at its start; how many those were is added to `taken`.
std::string_view without_start(std::string_view text, std::string_view character, int64_t most,
                               int64_t& taken) {
  for (int64_t i = 0; i < most && text.starts_with(character); ++i, ++taken)
    text.remove_prefix(character.size());
  return text;
}

}  // namespace

TextDecoder TextDecoder::parse(const Json& value, std::string_view what) {
  TextDecoder result;
  if (json_string(json_at(value, "type", what), fmt::format("{}.type", what)) == "Sequence") {
    const Json& stages = json_at(value, "decoders", what);
    LADDER_CHECK(stages.is_array() && stages.size() <= 64, "{}.decoders: expected an array of at most 64",
                 what);
    for (size_t i = 0; i < stages.size(); ++i)
      result.add_stage(stages[i], fmt::format("{}.decoders[{}]", what, i));
  } else {
    result.add_stage(value, what);
  }
  return result;
}

void TextDecoder::add_stage(const Json& value, std::string_view what) {
  const std::string& type = json_string(json_at(value, "type", what), fmt::format("{}.type", what));
  LADDER_CHECK(type != "ByteLevel", "{}.type: ByteLevel, but there is no ByteLevel in pre_tokenizer", what);
  auto& stages = byte_fallback_ ? after_ : before_;
  LADDER_CHECK(!fused_ || type == "Fuse" || (type == "Strip" && strip_.start == 0),
               "{}.type: behind Fuse one Strip is supported, found {}", what, json_brief(type));
  if (type == "Replace") {
    const Replacement replacement = Replacement::parse(value, what);
    growth_ *= replacement.growth();
    LADDER_CHECK(growth_ <= kMaxGrowth, "{}: the replacements can make a text more than {} times as long",
                 what, kMaxGrowth);
    stages.emplace_back(replacement);
  } else if (type == "Metaspace") {
    stages.emplace_back(Metaspace::parse(value, what));
  } else if (type == "ByteFallback") {
    LADDER_CHECK(!byte_fallback_, "{}: ByteFallback occurs twice", what);
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Strip") {
    Strip strip;
    strip.character = json_string(json_at(value, "content", what), fmt::format("{}.content", what));
    LADDER_CHECK(!strip.character.empty() &&
                     utf8_decode(strip.character.data()).length == static_cast<int>(strip.character.size()),
                 "{}.content: expected one character, found {}", what, json_brief(strip.character));
    strip.start = json_int(json_at(value, "start", what), fmt::format("{}.start", what), 0, 1 << 20);
    LADDER_CHECK(json_int(json_at(value, "stop", what), fmt::format("{}.stop", what)) == 0,
                 "{}.stop: only 0 is supported", what);
    if (fused_)
      strip_ = strip;
    else
      stages.emplace_back(strip);
  } else {
    fail(
        "{}.type: Replace, Metaspace, ByteFallback, Fuse, Strip and a Sequence of them are supported, found {}",
        what, json_brief(type));
  }
}

std::string TextDecoder::apply(const std::vector<Stage>& stages, std::string_view text, bool first) {
  std::string result(text);
  for (const Stage& stage : stages) {
    int64_t taken = 0;
    if (const auto* replacement = std::get_if<Replacement>(&stage))
      result = replacement->apply(result);
    else if (const auto* metaspace = std::get_if<Metaspace>(&stage))
      result = metaspace->unmark(result, first);
    else if (const auto& strip = std::get<Strip>(stage); true)
      result = std::string(without_start(result, strip.character, strip.start, taken));
  }
  return result;
}

int TextDecoder::byte_of(std::string_view token) const {
  if (!byte_fallback_ || token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = -1;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 && byte >= 0 ? byte : -1;
}

std::string TextDecoder::bytes_of(std::string_view written) const {
  const std::string token = apply(before_, written, false);
  const int byte = byte_of(token);
  return byte >= 0 ? std::string(1, static_cast<char>(byte)) : apply(after_, token, false);
}

// >>> task 2.5.fallback: byte tokens and other tokens to text: runs of bytes, and the start of the text
void TextDecoder::push(State& state, std::string_view written, std::string& text) const {
  const std::string token = apply(before_, written, !state.token_seen);
  state.token_seen = true;
  if (const int byte = byte_of(token); byte >= 0) {
    state.bytes.push_back(static_cast<char>(byte));
    return;
  }
  end_run(state, text);
  append_unit(state, token, text);
}

void TextDecoder::finish(State& state, std::string& text) const {
  end_run(state, text);
}

void TextDecoder::end_run(State& state, std::string& text) const {
  const std::string run = std::move(state.bytes);
  state.bytes.clear();
  if (run.empty()) return;
  if (utf8_valid_prefix(run) == static_cast<int64_t>(run.size())) {
    append_unit(state, run, text);
  } else {
    for (size_t i = 0; i < run.size(); ++i) append_unit(state, "\xef\xbf\xbd", text);
  }
}

void TextDecoder::append_unit(State& state, std::string_view unit, std::string& text) const {
  const std::string decoded = apply(after_, unit, !state.unit_seen);
  state.unit_seen = true;
  std::string_view rest = decoded;
  if (state.stripped >= 0) {
    rest = without_start(rest, strip_.character, strip_.start - state.stripped, state.stripped);
    if (!rest.empty()) state.stripped = -1;
  }
  text.append(rest);
}
// <<< task 2.5.fallback

}  // namespace ladder
