// Task 2.5: tokenizer.json of the SentencePiece kind. The oracle is Hugging Face tokenizers: tests/goldens/tokenizer_sp
// has eight of them and what it makes of 3,000 texts (tools/goldens/make_sentencepiece_golden.py), which are drawn here
// and there from the same seeds; a hash of each answer is kept, and the first ones as they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <functional>
#include <random>

#include "step1_layers/core/error.h"
#include "step2_model/tokenizer/tokenizer.h"
#include "step2_model/tokenizer/unicode.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens/tokenizer_sp";

const Json& kinds_json() {
  static const Json json = load_json(kGoldens / "kinds.json");
  return json;
}

// The tokenizer.json of a kind: model.json with its changes, and its other fields.
Json file_of(const std::string& name) {
  const Json& kind = kinds_json()["kinds"][name];
  Json model = load_json(kGoldens / "model.json");
  if (kind.contains("model")) model.update(kind["model"]);
  if (kind.contains("remove"))
    for (const Json& token : kind["remove"]) model["vocab"].erase(token.get<std::string>());
  if (kind.contains("merges_as_strings"))
    for (Json& merge : model["merges"])
      merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  Json file = {
      {"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"model", std::move(model)}};
  for (const char* field : {"normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens"})
    file[field] = kind[field];
  return file;
}

Tokenizer tokenizer_of(const std::string& name) {
  return Tokenizer::parse(file_of(name).dump(), name);
}

// The numbers, texts and lists of ids of tools/goldens/make_sentencepiece_golden.py.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  size_t below(size_t limit) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return (state_ >> 33) % limit;
  }

  std::string text() {
    const Json &fragments = kinds_json()["fragments"], &ranges = kinds_json()["ranges"];
    std::string text;
    const size_t kind = below(20);
    if (kind < 14) {
      const Json& glues = kinds_json()["glues"];
      const std::string glue = glues[below(glues.size())];
      const size_t count = kind > 0 ? 1 + below(12) : 60;
      for (size_t i = 0; i < count; ++i) {
        if (i > 0) text += glue;
        text += fragments[below(fragments.size())].get_ref<const std::string&>();
      }
    } else {
      const Json& range = ranges[below(ranges.size())];
      const uint32_t first = range[0], last = range[1];
      for (size_t count = 1 + below(16); count > 0; --count) {
        const auto c = first + static_cast<uint32_t>(below(last - first + 1));
        if (c < 0xd800 || c >= 0xe000) utf8_append(text, c);
      }
    }
    return text;
  }

  std::vector<int32_t> ids(const std::vector<int32_t>& known) {
    std::vector<int32_t> ids;
    for (size_t count = 1 + below(12); count > 0; --count) {
      const bool byte = below(2) == 1;
      ids.push_back(known[byte ? 3 + below(256) : below(known.size())]);
    }
    return ids;
  }

 private:
  uint64_t state_;
};

std::string hash_of(std::string_view bytes) {
  uint32_t value = 2166136261;
  for (const char byte : bytes) value = (value ^ static_cast<uint8_t>(byte)) * 16777619;
  return fmt::format("{:04x}", (value ^ value >> 16) & 0xffff);
}

std::string hash_of(const std::vector<int32_t>& ids) {
  return hash_of({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
}

std::string decode_step_by_step(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                bool skip_special) {
  IncrementalDecoder decoder(tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_EQ(utf8_valid_prefix(piece), static_cast<int64_t>(piece.size()))
        << "half a character after token " << id;
    text += piece;
  }
  return text + decoder.finish();
}

class Task2_5_SentencePiece : public ::testing::TestWithParam<const char*> {};

TEST_P(Task2_5_SentencePiece, EncodesAndDecodesAsHuggingFace) {
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  const Json& golden = kinds_json()["kinds"][GetParam()]["golden"];
  for (const Json& shown : golden["shown"]) {
    const std::string text = shown["text"];
    const auto ids = shown["ids"].get<std::vector<int32_t>>();
    ASSERT_EQ(tokenizer.encode(text, true), ids) << shown["text"];
    ASSERT_EQ(tokenizer.encode(text, false, false), shown["plain"].get<std::vector<int32_t>>())
        << shown["text"];
    ASSERT_EQ(tokenizer.decode(ids), shown["decoded"].get<std::string>()) << shown["text"];
  }
  const std::string ids_hashes = golden["ids"], text_hashes = golden["decoded"],
                    list_hashes = golden["lists"];
  ASSERT_EQ(ids_hashes.size(), 4u * 3000);
  Draws draws(golden["seed"]);
  for (size_t i = 0; 4 * i < ids_hashes.size(); ++i) {
    const std::string text = draws.text();
    std::vector<int32_t> ids = tokenizer.encode(text, true);
    const std::string decoded = tokenizer.decode(ids);
    ASSERT_EQ(hash_of(decoded), text_hashes.substr(4 * i, 4))
        << "text " << i << ", " << Json(text).dump() << " is decoded as " << Json(decoded).dump();
    ASSERT_EQ(decode_step_by_step(tokenizer, ids, false), decoded);
    ids.push_back(-1);
    for (const int32_t id : tokenizer.encode(text, false, false)) ids.push_back(id);
    ASSERT_EQ(hash_of(ids), ids_hashes.substr(4 * i, 4))
        << "text " << i << ", " << Json(text).dump() << " gives " << Json(ids).dump();
  }
  std::vector<int32_t> known;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.has_token(id)) known.push_back(id);
  for (size_t i = 0; 4 * i < list_hashes.size(); ++i) {
    const std::vector<int32_t> ids = draws.ids(known);
    const std::string whole = tokenizer.decode(ids), skipped = tokenizer.decode(ids, true);
    ASSERT_EQ(hash_of(whole + '\0' + skipped), list_hashes.substr(4 * i, 4))
        << "ids " << Json(ids).dump() << " are decoded as " << Json(whole).dump()
        << ", without special tokens as " << Json(skipped).dump();
    ASSERT_EQ(decode_step_by_step(tokenizer, ids, false), whole);
    ASSERT_EQ(decode_step_by_step(tokenizer, ids, true), skipped);
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, Task2_5_SentencePiece,
                         ::testing::Values("llama2_old", "mistral", "llama2_new", "phi3", "gemma", "words",
                                           "gaps", "gaps_fused"),
                         [](const auto& info) { return std::string(info.param); });

// A model without normalizer and pre-tokenizer: the text is one piece.
Tokenizer small(const std::vector<std::string>& tokens, const std::vector<std::array<std::string, 2>>& merges,
                const Json& changes = Json::object()) {
  Json file = file_of("gemma");
  file["normalizer"] = file["pre_tokenizer"] = nullptr;
  file["decoder"] = {{"type", "Fuse"}};
  file["post_processor"] = nullptr;
  file["added_tokens"] = Json::array();
  Json& model = file["model"];
  model["vocab"] = Json::object();
  for (size_t i = 0; i < tokens.size(); ++i) model["vocab"][tokens[i]] = i;
  model["merges"] = Json::array();
  for (const auto& merge : merges) model["merges"].push_back(merge);
  model["unk_token"] = nullptr;
  model.update(changes);
  return Tokenizer::parse(file.dump(), "small");
}

std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
  return tokens;
}

// Texts of one piece are cut where no merge can go across: the answer is that of merging the whole, on vocabularies
// that join spaces to words, words to spaces, bytes to characters.
TEST(Task2_5_Characters, EqualTheDefinitionOnRandomVocabularies) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const std::vector<std::string> characters = {"\u2581", "a", "b", "\u00e9", "\u4eca", "\U0001f642"};
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> tokens = byte_tokens();
    const size_t known = 3 + random() % 4;  // the last characters may have no token
    for (size_t i = 0; i < std::min(known, characters.size()); ++i) tokens.push_back(characters[i]);
    std::vector<std::array<std::string, 2>> merges;
    const size_t first = round % 3 == 0 ? 0xe0 : 256;  // every third joins byte tokens too
    for (int i = 0; i < 30; ++i) {
      const auto any = [&] { return tokens[first + random() % (tokens.size() - first)]; };
      const std::string left = any(), right = any();
      if (std::ranges::count(tokens, left + right) > 0 || left.size() + right.size() > 40) continue;
      merges.push_back({left, right});
      tokens.push_back(left + right);
    }
    const Tokenizer tokenizer = small(tokens, merges);
    const auto id_of = [&](const std::string& token) {
      return static_cast<int32_t>(std::ranges::find(tokens, token) - tokens.begin());
    };
    for (int i = 0; i < 60; ++i) {
      std::string text;
      std::vector<std::string> parts;
      for (size_t left = 1 + random() % (i % 10 == 0 ? 100 : 14); left > 0; --left) {
        const std::string& character = characters[random() % characters.size()];
        text += character;
        if (std::ranges::count(tokens, character) > 0)
          parts.push_back(character);
        else
          for (const char byte : character)
            parts.push_back(fmt::format("<0x{:02X}>", static_cast<uint8_t>(byte)));
      }
      for (size_t merge = 0;
           merge < merges.size();) {  // the first of the list that is possible, leftmost first
        bool merged = false;
        for (size_t at = 0; !merged && at + 1 < parts.size(); ++at)
          if (parts[at] == merges[merge][0] && parts[at + 1] == merges[merge][1]) {
            parts[at] += parts[at + 1];
            parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
            merged = true;
          }
        merge = merged ? 0 : merge + 1;
      }
      std::vector<int32_t> expected;
      for (const std::string& part : parts) expected.push_back(id_of(part));
      ASSERT_EQ(tokenizer.encode(text, false), expected) << Json(text).dump() << ", round " << round;
    }
  }
}

TEST(Task2_5_Characters, WithoutATokenAreTheirBytesElseUnknownElseNothing) {
  const std::vector<std::string> tokens = {"?", "a", "<0xC3>", "<0xA9>", "<0x0A>"};
  const auto ids = [&](bool fallback, const char* unknown, bool fuse) {
    Json changes = {{"byte_fallback", fallback}, {"fuse_unk", fuse}, {"unk_token", nullptr}};
    if (unknown != nullptr) changes["unk_token"] = unknown;
    return small(tokens, {}, changes).encode("a\u00e9\nxya\u00ea", false);
  };
  EXPECT_THAT(ids(true, "?", false), ElementsAre(1, 2, 3, 4, 0, 0, 1, 0));
  EXPECT_THAT(ids(true, "?", true), ElementsAre(1, 2, 3, 4, 0, 1, 0));
  EXPECT_THAT(ids(true, nullptr, true), ElementsAre(1, 2, 3, 4, 1));
  EXPECT_THAT(ids(false, "?", true), ElementsAre(1, 0, 1, 0));
}

TEST(Task2_5_Characters, AMegabyteInOnePieceTakesLessThanASecond) {
  const Tokenizer letters =
      small({"a", "aa", "aaaa", "b"}, {{"a", "a"}, {"aa", "aa"}}, {{"byte_fallback", false}});
  const Tokenizer llama = tokenizer_of("llama2_new");
  const auto seconds = [](const Tokenizer& tokenizer, const std::string& text) {
    const std::clock_t begin = std::clock();  // processor time: other work on the machine does not count
    const std::vector<int32_t> ids = tokenizer.encode(text, false);
    const std::clock_t end = std::clock();
    EXPECT_TRUE(tokenizer.decode(ids) == text);
    return static_cast<double>(end - begin) / CLOCKS_PER_SEC;
  };
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const double most = 1;
#else
  const double most = 20;  // quadratic time would be minutes
#endif
  std::string words;
  while (words.size() < 1 << 20) words += "the old mill stands\n";
  EXPECT_LT(seconds(letters, std::string((1 << 20) + 2, 'a')), most);
  EXPECT_LT(seconds(llama, std::string(1 << 20, 'a')), most);
  EXPECT_LT(seconds(llama, "x" + std::string(1 << 20, ' ')), most);
  EXPECT_LT(seconds(llama, words), most);
}

TEST(Task2_5_Fallback, ARunOfBytesLeavesAtItsEnd) {
  const Tokenizer tokenizer = tokenizer_of("mistral");
  const auto pieces = [&](const std::vector<std::string>& tokens) {
    IncrementalDecoder decoder(tokenizer);
    std::vector<std::string> pieces;
    for (const std::string& token : tokens)
      pieces.push_back(decoder.push(tokenizer.token_to_id(token).value()));
    pieces.push_back(decoder.finish());
    EXPECT_EQ(decoder.finish(), "");
    return pieces;
  };
  EXPECT_THAT(pieces({"\u2581the", "<0xE4>", "<0xBB>", "<0x8A>", "\u2581the"}),
              ElementsAre("the", "", "", "", "\u4eca the", ""));
  // One byte that is no part of a character makes all of its run U+FFFD, one for each byte.
  EXPECT_THAT(pieces({"<0x41>", "<0xE4>", "e", "<0x41>"}), ElementsAre("", "", "\ufffd\ufffde", "", "A"));
}

TEST(Task2_5_Fallback, TheFirstSpaceOfATextIsLeftOutOnce) {
  const Tokenizer tokenizer = tokenizer_of("mistral");
  const int32_t space = tokenizer.token_to_id("\u2581").value(),
                the = tokenizer.token_to_id("\u2581the").value();
  const int32_t begin = tokenizer.token_to_id("<s>").value();
  EXPECT_EQ(tokenizer.decode(std::vector{the, the}), "the the");
  EXPECT_EQ(tokenizer.decode(std::vector{space, the}), " the");
  EXPECT_EQ(tokenizer.decode(std::vector{begin, the}), "<s> the");
  EXPECT_EQ(tokenizer.decode(std::vector{begin, the}, true), "the");
  EXPECT_EQ(tokenizer.token_bytes(the), " the");
  EXPECT_EQ(tokenizer.token_bytes(tokenizer.token_to_id("<0xE4>").value()), "\xe4");
}

// Metaspace in the place where a file has its decoder: the first token has no spaces, and no stage sees two tokens at once.
TEST(Task2_5_Fallback, DecodersWithoutFuseSeeTokenByToken) {
  Json file = file_of("mistral");
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "ByteFallback"}},
                       {{"type", "Strip"}, {"content", "\u2581"}, {"start", 1}, {"stop", 0}},
                       {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "never"}}}}};
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "t");
  const int32_t the = tokenizer.token_to_id("\u2581the").value(),
                spaces = tokenizer.token_to_id("\u2581\u2581").value();
  EXPECT_EQ(tokenizer.decode(std::vector{the, spaces, the}), "the the");
}

TEST(Task2_5_Fallback, ATextOfWhichNothingIsLeftGetsNoSpace) {
  Json file = file_of("words");
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "\n"}}}, {"content", ""}};
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "t");
  EXPECT_THAT(tokenizer.encode("\n", false), ElementsAre());
  EXPECT_EQ(tokenizer.encode("<s>\n</s>", false), tokenizer.encode("<s></s>", false));
}

TEST(Task2_5_Fallback, UntrustedSegmentsHideSpecialTokensAndGetOneSpace) {
  for (const char* kind : {"llama2_old", "mistral"}) {
    const Tokenizer tokenizer = tokenizer_of(kind);
    const int32_t end = tokenizer.token_to_id("</s>").value();
    const TextSegment segments[] = {{"the ", true}, {"</s>", false}, {"old mill", true}};
    const std::vector<int32_t> ids = tokenizer.encode(segments, false);
    EXPECT_EQ(std::ranges::count(ids, end), 0) << kind;
    EXPECT_EQ(tokenizer.decode(ids), "the </s>old mill") << kind;
  }
}

TEST(Task2_5_Tokenizer, OptHasItsEndTokenInFront) {
  Json file = load_json(kGoldens / "../tokenizer/gpt2/tokenizer.json");
  const Tokenizer bare = Tokenizer::parse(file.dump(), "gpt2");
  const auto id = static_cast<int32_t>(bare.vocab_size());
  file["added_tokens"].push_back({{"id", id}, {"content", "</s>"}, {"special", true}, {"normalized", true}});
  file["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", Json::array()},
      {"special_tokens", {{"</s>", {{"id", "</s>"}, {"ids", {id}}, {"tokens", {"</s>"}}}}}}};
  const testing::TemporaryFolder temporary;
  testing::write_file(temporary.path() / "tokenizer.json", file.dump());
  const auto first_two = [&](const Json& config) {
    testing::write_file(temporary.path() / "tokenizer_config.json", config.dump());
    const std::vector<int32_t> ids = Tokenizer::load(temporary.path()).encode("a b", true);
    return std::pair(ids[0], ids[1]);
  };
  const int32_t a = bare.token_to_id("a").value();
  Json config = {{"bos_token", "</s>"}, {"eos_token", "</s>"}};
  EXPECT_EQ(first_two(config), std::pair(id, a));
  config["add_bos_token"] = true;  // as its tokenizer_config.json has it: one of them, not two
  EXPECT_EQ(first_two(config), std::pair(id, a));
}

TEST(Task2_5_Errors, OfTheSentencePieceKindNameTheField) {
  const auto expect = [](const std::function<void(Json&)>& change, const char* part) {
    Json file = file_of("mistral");
    change(file);
    try {
      Tokenizer::parse(file.dump(), "t.json");
      ADD_FAILURE() << "no error about " << part;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("t.json"));
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"})
    expect([&](Json& j) { j["model"] = {{"type", type}, {"unk_id", 0}, {"vocab", Json::array()}}; }, type);
  expect([](Json& j) { j["model"]["unk_token"] = "<none>"; }, "model.unk_token");
  expect([](Json& j) { j["decoder"] = nullptr; }, "decoder");
  expect([](Json& j) { j["decoder"] = {{"type", "ByteLevel"}}; }, "decoder.type");
  expect([](Json& j) { j["decoder"]["decoders"][1]["type"] = "CTC"; }, "decoder.decoders[1].type");
  expect([](Json& j) { j["decoder"]["decoders"][3]["stop"] = 1; }, "decoder.decoders[3].stop");
  expect([](Json& j) { j["decoder"]["decoders"][3]["content"] = "ab"; }, "decoder.decoders[3].content");
  expect([](Json& j) { std::swap(j["decoder"]["decoders"][0], j["decoder"]["decoders"][2]); },
         "decoders[1].type");
  expect(
      [](Json& j) {
        j["normalizer"]["normalizers"][1]["pattern"] = {{"Regex", " "}};
      },
      "normalizer.normalizers[1].pattern");
  expect([](Json& j) { j["normalizer"]["normalizers"][1]["pattern"]["String"] = ""; },
         "normalizer.normalizers[1].pattern");
  // A text of one byte would become one of 10^19.
  const Json longer = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaa"}};
  expect([&](Json& j) { j["normalizer"]["normalizers"] = std::vector<Json>(21, longer); }, "times as long");
  expect([&](Json& j) { j["decoder"]["decoders"] = std::vector<Json>(21, longer); }, "times as long");
  const Json metaspace = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
  const auto with = [&](const char* key, const Json& value) {
    Json changed = metaspace;
    changed[key] = value;
    return changed;
  };
  expect([&](Json& j) { j["pre_tokenizer"] = with("replacement", "__"); }, "pre_tokenizer.replacement");
  expect([&](Json& j) { j["pre_tokenizer"] = with("prepend_scheme", "last"); },
         "pre_tokenizer.prepend_scheme");
  expect([&](Json& j) { j["pre_tokenizer"] = with("add_prefix_space", false); },
         "pre_tokenizer.add_prefix_space");
  expect(
      [&](Json& j) {
        j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {metaspace, metaspace}}};
      },
      "pretokenizers[1]");
  expect([](Json& j) { j["pre_tokenizer"] = {{"type", "WhitespaceSplit"}}; }, "pre_tokenizer.type");
  for (const char* pattern : {"a", "  "})
    expect(
        [&](Json& j) {
          j["pre_tokenizer"] = with("prepend_scheme", "first");
          j["normalizer"] = {{"type", "Replace"},
                             {"pattern", {{"String", pattern}}},
                             {"content", *pattern == 'a' ? "" : "b"}};
        },
        "pre_tokenizer.prepend_scheme");
}

}  // namespace
}  // namespace ladder
