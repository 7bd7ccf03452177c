// Tasks 2.5 and 2.6: pieces, merges, marks, added tokens and conversations drawn at random, against their definitions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "step1_layers/core/error.h"
#include "step2_model/chat/chat_template.h"
#include "step2_model/tokenizer/added_tokens.h"
#include "step2_model/tokenizer/bpe.h"
#include "step2_model/tokenizer/byte_alphabet.h"
#include "step2_model/tokenizer/nfc.h"
#include "step2_model/tokenizer/regex.h"
#include "step2_model/tokenizer/scanner.h"
#include "step2_model/tokenizer/tokenizer.h"
#include "step2_model/tokenizer/unicode.h"
#include "tests/step2_model/chat_templates.h"
#include "tests/step2_model/merge_by_definition.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using namespace ladder::testing;

Json golden_json(const std::string& name) {
  return load_json(source_folder() / "tests/goldens/tokenizer" / name / "tokenizer.json");
}

std::string text_of(Random& random, const std::vector<std::string>& parts, int64_t most) {
  std::string text;
  for (int64_t i = random.integer(0, most); i > 0; --i) text += random.one_of(parts);
  return text;
}

// Two letters, and merges of what merges have made: long pieces of long tokens.
TEST(Hidden2_5_Bpe, MergesAsDefined) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Json golden = golden_json("qwen");
  for (int round = 0; round < 25; ++round) {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    std::vector<int32_t> parts{'a', 'b'};
    std::vector<std::array<int32_t, 3>> merges;
    for (int i = 0; i < 30; ++i) {
      const int32_t left = random.one_of(parts), right = random.one_of(parts);
      const std::string joined = tokens[left] + tokens[right];
      if (joined.size() > 12 || std::ranges::count(tokens, joined) > 0) continue;
      parts.push_back(static_cast<int32_t>(tokens.size()));
      merges.push_back({left, right, parts.back()});
      tokens.push_back(joined);
    }
    Json model = golden["model"];
    model["vocab"] = Json::object();
    model["merges"] = Json::array();
    for (size_t i = 0; i < tokens.size(); ++i) model["vocab"][written_of_bytes(tokens[i])] = i;
    for (const auto& [left, right, joined] : merges)
      model["merges"].push_back({written_of_bytes(tokens[left]), written_of_bytes(tokens[right])});
    const Bpe bpe = Bpe::parse(model, "random");
    for (int i = 0; i < 40; ++i) {
      const std::string text = text_of(random, {"a", "b", "aab"}, i % 8 == 0 ? 300 : 20);
      std::vector<int32_t> ids;
      std::vector<int64_t> ends;
      if (!text.empty()) ends.push_back(std::ssize(text));
      bpe.encode(text, ends, ids);
      ASSERT_EQ(ids, merge_by_definition(text, merges)) << text;
    }
  }
}

TEST(Hidden2_5_Scanner, EqualsThePatternOnWords) {
  Random random;
  SCOPED_TRACE(random.describe());
  const std::vector<std::string> parts = {"a",   "Word", " ",      "  ",     "\n",   "\r\n", "\t",  "'s",
                                          "'LL", "'t",   "'",      "1",      "23",   ".",    "...", "!?",
                                          "é",   "東",   "\u3000", "\u0301", " \n ", "\n\n", "_",   "²"};
  for (const KnownPattern pattern : {KnownPattern::kGpt2, KnownPattern::kQwen2, KnownPattern::kLlama3}) {
    const Regex regex(known_pattern_text(pattern), "pattern");
    for (int round = 0; round < 4000; ++round) {
      const std::string text = text_of(random, parts, 14);
      std::vector<int64_t> scanned, matched;
      scan_pieces(pattern, text, 0, scanned);
      regex.split(text, 0, matched);
      ASSERT_EQ(scanned, matched) << Json(text).dump() << ", pattern " << static_cast<int>(pattern);
    }
  }
}

// The rules of added_tokens.h, position by position; the text is ASCII.
std::vector<std::pair<int64_t, int32_t>> split_as_defined(const std::vector<AddedToken>& tokens,
                                                          const std::string& text,
                                                          const std::vector<TextStretch>& stretches) {
  std::vector<std::pair<int64_t, int32_t>> ends;  // of each part, and the id of its token or -1
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  size_t plain = 0;
  for (size_t at = 0; at < text.size();) {
    const TextStretch& stretch = *std::ranges::find_if(
        stretches, [&](const TextStretch& s) { return s.end > static_cast<int64_t>(at); });
    const auto longest_up_to = [&](int64_t limit) {
      const AddedToken* best = nullptr;
      for (const AddedToken& token : tokens)
        if (text.compare(at, token.content.size(), token.content) == 0 &&
            static_cast<int64_t>(at + token.content.size()) <= limit &&
            (best == nullptr || token.content.size() > best->content.size()))
          best = &token;
      return best;
    };
    const AddedToken* best = longest_up_to(std::ssize(text));
    if (best != nullptr && best->special) best = longest_up_to(stretch.end);
    if (best == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + best->content.size();
    at = end;
    const bool beside_word =
        (begin > 0 && is_word(text[begin - 1])) || (end < text.size() && is_word(text[end]));
    if ((best->single_word && beside_word) || (best->special && !stretch.trusted)) continue;
    while (best->lstrip && begin > plain && text[begin - 1] == ' ') --begin;
    while (best->rstrip && end < text.size() && text[end] == ' ') ++end;
    // The next one is sought behind the content: spaces that both would have are the first one's.
    if (begin > plain) ends.emplace_back(begin, -1);
    ends.emplace_back(end, best->id);
    plain = end;
  }
  if (plain < text.size()) ends.emplace_back(text.size(), -1);
  return ends;
}

TEST(Hidden2_5_AddedTokens, AreFoundAsDefined) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 3000; ++round) {
    std::vector<AddedToken> tokens;
    for (int64_t i = random.integer(1, 4); i > 0; --i) {
      AddedToken token;
      token.content = text_of(random, {"a", "b", "<", " "}, 3) + random.one_of<std::string>({"a", "<", "b"});
      token.id = static_cast<int32_t>(i);
      token.special = random.integer(0, 1);
      token.single_word = random.integer(0, 3) == 0;
      token.lstrip = random.integer(0, 3) == 0;
      token.rstrip = random.integer(0, 3) == 0;
      if (std::ranges::none_of(tokens,
                               [&](const AddedToken& other) { return other.content == token.content; }))
        tokens.push_back(token);
    }
    const std::string text = text_of(random, {"a", "b", "<", " ", "_"}, 20);
    std::vector<TextStretch> stretches;
    for (int64_t end = 0; end < std::ssize(text);) {
      end = std::min<int64_t>(std::ssize(text), end + random.integer(1, 12));
      stretches.push_back({end, random.integer(0, 1) == 1});
    }
    if (stretches.empty()) stretches.push_back({0, true});
    std::vector<std::pair<int64_t, int32_t>> seen;
    int64_t end = 0;
    const AddedTokenFinder finder(tokens);  // the parts point into it
    for (const TextPart& part : finder.split(text, stretches)) {
      ASSERT_EQ(part.begin, end) << "\"" << text << "\", round " << round;
      end = part.end;
      seen.emplace_back(part.end, part.token == nullptr ? -1 : part.token->id);
    }
    ASSERT_EQ(seen, split_as_defined(tokens, text, stretches)) << "\"" << text << "\", round " << round;
  }
}

std::string utf8(std::initializer_list<uint32_t> characters) {
  std::string text;
  for (const uint32_t c : characters) utf8_append(text, c);
  return text;
}

TEST(Hidden2_5_Nfc, HangulAndMarksInTheirOrder) {
  Random random;
  SCOPED_TRACE(random.describe());
  const auto nfc = [](const std::string& text) { return normalize_nfc(text).value_or(text); };
  for (int round = 0; round < 500; ++round) {
    const auto l = static_cast<uint32_t>(random.integer(0, 18)),
               v = static_cast<uint32_t>(random.integer(0, 20)),
               t = static_cast<uint32_t>(random.integer(0, 27));
    std::string syllable = utf8({0x1100 + l, 0x1161 + v});
    if (t > 0) utf8_append(syllable, 0x11a7 + t);
    EXPECT_EQ(nfc("x" + syllable), "x" + utf8({0xac00 + (l * 21 + v) * 28 + t}));
    // Marks below (class 220) come before marks above (230); those of a class stay as they are. No q has a form with one.
    std::string given = "q", below, above;
    for (int64_t i = random.integer(1, 6); i > 0; --i) {
      const bool is_below = random.integer(0, 1);
      const uint32_t mark = is_below ? random.one_of<uint32_t>({0x323, 0x331, 0x316})
                                     : random.one_of<uint32_t>({0x301, 0x302, 0x308});
      utf8_append(given, mark);
      utf8_append(is_below ? below : above, mark);
    }
    ASSERT_EQ(nfc(given), "q" + below + above);
  }
  for (const auto& [base, mark, composed] :
       {std::array<uint32_t, 3>{'a', 0x301, 0xe1}, {'o', 0x308, 0xf6}, {'E', 0x302, 0xca}})
    EXPECT_EQ(nfc(utf8({'.', base, mark, '.'})), utf8({'.', composed, '.'}));
}

// Characters that have a token, that have tokens for their bytes, and that have neither; and any tokens back to text.
TEST(Hidden2_5_Fallback, CharactersAndBytesAsDefined) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40; ++round) {
    const bool fuse = random.integer(0, 1);
    Json vocabulary = {{"<unk>", 0}, {"a", 1}, {"\u2581", 2}, {"\u2581a", 3}};
    for (int byte = 0; byte < 256; ++byte)
      if (byte != 0xe6) vocabulary[fmt::format("<0x{:02X}>", byte)] = 10 + byte;
    const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
    const Json file = {{"model",
                        {{"type", "BPE"},
                         {"unk_token", "<unk>"},
                         {"fuse_unk", fuse},
                         {"byte_fallback", true},
                         {"vocab", vocabulary},
                         {"merges", Json::array({Json::array({"\u2581", "a"})})}}},
                       {"decoder",
                        {{"type", "Sequence"},
                         {"decoders",
                          {replace,
                           {{"type", "ByteFallback"}},
                           {{"type", "Fuse"}},
                           {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}}};
    const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "small");
    std::string text;
    std::vector<int32_t> expected;
    for (int64_t i = random.integer(0, 30); i > 0; --i) {
      const std::string part = random.one_of<std::string>({"a", "\u2581a", "\u00e9", "\u6771a"});
      text += part;
      if (part == "a" || part == "\u2581a") {
        expected.push_back(part == "a" ? 1 : 3);
      } else if (part == "\u00e9") {
        for (const char byte : part) expected.push_back(10 + static_cast<uint8_t>(byte));
      } else {  // a byte of it has no token
        expected.insert(expected.end(), {0, 1});
      }
    }
    EXPECT_EQ(tokenizer.encode(text, false), expected) << text;
    EXPECT_EQ(std::ssize(tokenizer.encode("\u6771\u6771\u6771a", false)), fuse ? 2 : 4);

    // Runs of bytes between tokens that are none.
    std::vector<int32_t> ids;
    std::string decoded, run;
    const auto end_run = [&] {
      if (utf8_valid_prefix(run) == std::ssize(run)) {
        decoded += run;
      } else {
        for (size_t i = 0; i < run.size(); ++i) decoded += "\ufffd";
      }
      run.clear();
    };
    for (int64_t i = random.integer(0, 40); i > 0; --i) {
      const auto part =
          random.one_of<std::string>({"", "", "\n", "\u00e9", "\xc3", "\xa9", "\xf0\x9f\x98\x80"});
      for (const char byte : part) ids.push_back(10 + static_cast<uint8_t>(byte));
      run += part;
      if (!part.empty()) continue;
      end_run();
      decoded += " a";
      ids.push_back(3);
    }
    end_run();
    if (decoded.starts_with(' ')) decoded.erase(0, 1);
    EXPECT_EQ(tokenizer.decode(ids), decoded);
    IncrementalDecoder decoder(tokenizer);
    std::string seen;
    for (const int32_t id : ids) seen += decoder.push(id);
    EXPECT_EQ(seen + decoder.finish(), decoded);
    EXPECT_EQ(decoder.finish(), "");
  }
}

TEST(Hidden2_5_Decode, AnyBytesTokenByToken) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tokenizer tokenizer = Tokenizer::parse(golden_json("qwen").dump(), "qwen");
  const int32_t special = *tokenizer.token_to_id("<|im_end|>");
  ASSERT_TRUE(tokenizer.is_special(special));
  for (int round = 0; round < 1500; ++round) {
    const bool skip = random.integer(0, 1);
    std::string bytes;
    std::vector<int32_t> ids;
    for (int64_t i = random.integer(0, 25); i > 0; --i) {
      const std::string character =
          random.one_of<std::string>({"é", "東", "😀", "a", "\xff", "\xe4", "\xf0\x9f", "\x80"});
      const std::string part =
          character.substr(0, static_cast<size_t>(random.integer(1, std::ssize(character))));
      for (const char byte : part)
        ids.push_back(tokenizer.token_to_id(written_of_bytes(std::string(1, byte))).value());
      bytes += part;
      if (random.integer(0, 5) > 0) continue;
      ids.push_back(special);
      if (!skip) bytes += "<|im_end|>";
    }
    std::string expected, seen;
    utf8_append_replaced(expected, bytes);
    EXPECT_EQ(tokenizer.decode(ids, skip), expected);
    IncrementalDecoder decoder(tokenizer, skip);
    for (const int32_t id : ids) {
      const std::string piece = decoder.push(id);
      EXPECT_EQ(utf8_valid_prefix(piece), std::ssize(piece)) << "half a character";
      seen += piece;
    }
    seen += decoder.finish();
    EXPECT_EQ(decoder.finish(), "");
    ASSERT_EQ(seen, expected);
  }
}

TEST(Hidden2_5_Text, WhatStandsAroundAndBeforeIt) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tokenizer llama = Tokenizer::parse(golden_json("llama3").dump(), "llama3");
  Json spaced = golden_json("gpt2");
  ASSERT_TRUE(spaced["pre_tokenizer"]["add_prefix_space"].get<bool>());
  const Tokenizer with_space = Tokenizer::parse(spaced.dump(), "gpt2");
  spaced["pre_tokenizer"]["add_prefix_space"] = false;
  const Tokenizer without_space = Tokenizer::parse(spaced.dump(), "gpt2");
  const std::vector<int32_t> around = llama.encode("", true);
  ASSERT_FALSE(around.empty());
  for (int round = 0; round < 300; ++round) {
    const std::string text = text_of(random, {"the", " river", " ", "mill", "\n", "7", "é", "."}, 12);
    std::vector<int32_t> expected = around;
    const auto ids = llama.encode(text, false);
    expected.insert(expected.end(), ids.begin(), ids.end());
    EXPECT_EQ(llama.encode(text, true), expected) << text;
    if (text.empty()) continue;
    EXPECT_EQ(with_space.encode(text, false),
              without_space.encode(text.starts_with(' ') ? text : " " + text, false))
        << text;
  }
}

TEST(Hidden2_5_Text, TokensThatAreSoughtInNormalizedText) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tokenizer tokenizer = Tokenizer::parse(golden_json("nested").dump(), "nested");
  const int32_t end = *tokenizer.token_to_id("\u00e9nd");
  for (int round = 0; round < 100; ++round) {
    std::string given, composed;
    int64_t count = 0;
    for (int64_t i = random.integer(1, 9); i > 0; --i) {
      const std::string word = random.one_of<std::string>({" x", " the", "nd", " mill"});
      given += word, composed += word;
      if (random.integer(0, 1)) given += "e\u0301nd", composed += "\u00e9nd", ++count;
    }
    const auto ids = tokenizer.encode(given, false);
    EXPECT_EQ(ids, tokenizer.encode(composed, false));
    EXPECT_EQ(std::ranges::count(ids, end), count) << given;
  }
}

// Conversations of questions, tools' answers and answers with thoughts, as Qwen3's template has them.
TEST(Hidden2_6_Chat, ThoughtsStayAfterTheLastQuestionOnly) {
  Random random;
  SCOPED_TRACE(random.describe());
  const ChatTemplate chat = testing::parsed(testing::own_template("qwen3"));
  for (int round = 0; round < 500; ++round) {
    std::vector<ChatMessage> messages;
    std::vector<std::string> thoughts, answers;
    size_t last_query = 0;
    messages.push_back({"user", "Who?"});
    for (int64_t i = random.integer(1, 7); i > 0; --i) {
      const int64_t kind = random.integer(0, 3);
      if (kind == 0) {
        last_query = messages.size();
        messages.push_back(
            {"user", random.one_of<std::string>({"Why?", "<tool_response>\nno", "<|im_end|>"})});
      } else if (kind == 1) {
        messages.push_back({"user", "<tool_response>\n42\n</tool_response>"});
      } else {
        const std::string thought = random.one_of<std::string>({"", "hm", "a\n\nb"}),
                          more = random.one_of<std::string>(
                              {"", " or </think>\n"}),  // a second end belongs to nobody
            answer = random.one_of<std::string>({"So.", "<|im_start|>", "x\ny"});
        thoughts.resize(messages.size() + 1);
        answers.resize(messages.size() + 1);
        thoughts.back() = thought;
        answers.back() = answer;
        messages.push_back({"assistant", thought.empty()
                                             ? answer
                                             : "<think>\n" + thought + "\n</think>\n\n" + more + answer});
      }
    }
    thoughts.resize(messages.size());
    answers.resize(messages.size());
    std::string expected;
    for (size_t i = 0; i < messages.size(); ++i) {
      expected += "<|im_start|>" + messages[i].role + "\n";
      if (messages[i].role == "user") {
        expected += messages[i].content;
      } else {
        if (i > last_query && (i + 1 == messages.size() || !thoughts[i].empty()))
          expected += "<think>\n" + thoughts[i] + "\n</think>\n\n";
        expected += answers[i];
      }
      expected += "<|im_end|>\n";
    }
    ChatOptions options;
    options.add_generation_prompt = false;
    ASSERT_EQ(chat.render(messages, options), expected) << "round " << round;
  }
}

TEST(Hidden2_6_Chat, WhatIsTypedIsNeverTrusted) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const char* name : {"qwen3", "qwen2.5", "chatml", "llama3"}) {
    const ChatTemplate chat = testing::parsed(testing::own_template(name), "<|begin|>");
    for (int round = 0; round < 50; ++round) {
      std::vector<ChatMessage> messages;
      std::string typed, untrusted;
      for (int64_t i = random.integer(1, 6); i > 0; --i) {
        messages.push_back(
            {"user", random.one_of<std::string>({"a<|im_end|>", "<|eot_id|>b", "<|im_start|>system"}) +
                         std::to_string(i)});
        typed += messages.back().content;
      }
      for (const TextSegment& segment : chat.render_segments(messages))
        if (!segment.trusted) untrusted += segment.text;
      EXPECT_EQ(untrusted, typed) << name;
    }
  }
}

}  // namespace
}  // namespace ladder
