// Task 8.7.layout: two engines meet, and what differs is named.
#include "step8_advanced/disaggregation/layout/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step6_engine/process/wire.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"
#include "tests/step8_advanced/disaggregation/layout/played_engine.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::layout_of;
using testing::Random;
using testing::TemporaryFolder;
using testing::write_file;

constexpr size_t kBeforeRest = 8 + 4 + 4 * 32 + 4 + 4;

KvHandshake reader() {
  KvHandshake handshake;
  handshake.layout = layout_of(8, 2, {2, 4});
  handshake.engine_id = "decode-1";
  return handshake;
}
KvHandshake giver() {
  KvHandshake handshake = reader();
  handshake.layout = layout_of(8, 4);
  handshake.layout.dtype = DType::bf16;
  handshake.engine_id = "prefill-7";
  handshake.role = KvRole::gives;
  return handshake;
}
std::string refusal(const std::string& bytes) {
  return error_of([&] { check_peer(reader(), bytes); });
}

// The bytes with another rest, rightly signed: of a peer that means harm.
std::string with_rest(const std::string& rest) {
  std::string bytes = handshake_bytes(giver()).substr(0, kBeforeRest - 8);
  WireWriter{bytes}(kv_checksum(std::as_bytes(std::span(rest))), rest);
  return bytes;
}

TEST(Task8_7_Layout_Handshake, TellsWhoTheOtherIs) {
  EXPECT_EQ(check_peer(reader(), handshake_bytes(giver())), giver());
  EXPECT_EQ(check_peer(giver(), handshake_bytes(reader())), reader());
}

TEST(Task8_7_Layout_Handshake, NamesWhatDiffers) {
  const auto refused = [](auto change) {
    KvHandshake theirs = giver();
    change(theirs);
    return refusal(handshake_bytes(theirs));
  };
  EXPECT_THAT(refused([](KvHandshake& of) { of.model.model[31] ^= 1; }), HasSubstr("config.json"));
  EXPECT_THAT(refused([](KvHandshake& of) { of.model.weights[0] ^= 1; }), HasSubstr("weights"));
  EXPECT_THAT(refused([](KvHandshake& of) { of.layout.num_kv_heads = 4; }), HasSubstr("heads"));
  EXPECT_THAT(refused([](KvHandshake& of) { of.layout.k_dim = 5; }), HasSubstr("sizes"));
  EXPECT_THAT(refused([](KvHandshake& of) { of.layout.kept_as = KvCacheDType::fp8; }),
              HasSubstr("--kv-cache-dtype"));
  EXPECT_THAT(refused([](KvHandshake& of) { of.role = KvRole::wants; }), HasSubstr("both engines want"));
  EXPECT_THAT(refused([](KvHandshake& of) { of.layout.tensor_parallel_size = 3; }), HasSubstr("3"));
}

TEST(Task8_7_Layout_Handshake, ComparesTheVersionBeforeAllElse) {
  std::string bytes = handshake_bytes(giver());
  bytes[8] = 9;
  bytes.resize(12);  // whatever a later version says after it
  EXPECT_THAT(refusal(bytes), HasSubstr("version 9"));
  EXPECT_THAT(refusal("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), HasSubstr("no engine"));
}

TEST(Task8_7_Layout_Handshake, ComparesDigestsBeforeTheRestIsDecoded) {
  KvHandshake other = giver();
  other.model.weights[5] ^= 1;
  EXPECT_THAT(refusal(handshake_bytes(other).substr(0, kBeforeRest) + "rubbish"), HasSubstr("weights"));
}

TEST(Task8_7_Layout_Handshake, RefusesEveryPrefixAndEveryFlippedBit) {
  const std::string bytes = handshake_bytes(giver());
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_NE(refusal(bytes.substr(0, size)), "no error");
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    EXPECT_NE(refusal(flipped), "no error") << "bit " << bit;
  }
  EXPECT_NE(refusal(bytes + '\0'), "no error");
}

// Of a rest with any bits: an Error, or a layout that is one and that can be read from.
TEST(Task8_7_Layout_Handshake, BelievesNoNumber) {
  Random random;
  SCOPED_TRACE(random.describe());
  const std::string rest = handshake_bytes(giver()).substr(kBeforeRest);
  int accepted = 0;
  const auto try_rest = [&](const std::string& changed) {
    try {
      const KvHandshake theirs = check_peer(reader(), with_rest(changed));
      ++accepted;
      kv_reads(theirs.layout, reader().layout);
    } catch (const Error&) {
    }
  };
  for (size_t bit = 0; bit < 8 * rest.size(); ++bit) {
    std::string flipped = rest;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    try_rest(flipped);
  }
  for (size_t size = 0; size < rest.size(); ++size) try_rest(rest.substr(0, size));
  for (int repeat = 0; repeat < 5'000; ++repeat) {
    std::string changed = rest;
    for (int64_t i = random.integer(1, 12); i > 0; --i)
      changed[static_cast<size_t>(random.integer(0, std::ssize(changed) - 1))] =
          static_cast<char>(random.integer(0, 255));
    try_rest(changed);
  }
  EXPECT_GT(accepted, 0) << "another engine id, say, is none to be refused";
}

TEST(Task8_7_Layout_Handshake, RefusesAnIdThatALogCannotShow) {
  KvHandshake unnamed = giver();
  for (const std::string& id :
       {std::string(), std::string(129, 'x'), std::string("a\nb"), std::string("\xff")}) {
    unnamed.engine_id = id;
    EXPECT_THAT(error_of([&] { handshake_bytes(unnamed); }), HasSubstr("id"));
  }
  // ... and one that somebody else has written.
  std::string rest = handshake_bytes(giver()).substr(kBeforeRest);
  rest[4] = '\n';
  EXPECT_THAT(refusal(with_rest(rest)), HasSubstr("id"));
}

// Of a folder with a configuration and 40 MiB of weights, after `change`.
template <class Change>
ModelFingerprint fingerprint_after(Change change) {
  const TemporaryFolder folder;
  write_file(folder / "config.json", R"({"hidden_size": 8, "layers": 2, "transformers_version": "4.1"})");
  write_file(folder / "tokenizer.json", "{}");
  std::string weights(size_t{40} << 20, 'w');
  const uint64_t header = (size_t{3} << 20) + 8;  // longer than a sample
  std::memcpy(weights.data(), &header, sizeof header);
  change(folder, weights);
  write_file(folder / "model.safetensors", weights);
  return model_fingerprint(folder.path());
}

TEST(KvModelFingerprint, TellsConfigurationsApart) {
  const auto with_config = [](std::string_view text) {
    return fingerprint_after(
        [&](const TemporaryFolder& folder, std::string&) { write_file(folder / "config.json", text); });
  };
  const ModelFingerprint same = with_config(R"({"hidden_size": 8, "layers": 2})");
  EXPECT_EQ(with_config(R"({"layers":2,"transformers_version":"5","hidden_size":8})"), same);
  EXPECT_NE(with_config(R"({"hidden_size": 8, "layers": 3})").model, same.model);
  EXPECT_EQ(with_config(R"({"hidden_size": 8, "layers": 3})").weights, same.weights);
  const auto with_file = [](std::string_view name) {
    return fingerprint_after(
        [&](const TemporaryFolder& folder, std::string&) { write_file(folder / name, "{ }"); });
  };
  EXPECT_EQ(with_file("notes.txt"), fingerprint_after([](auto&, auto&) {}));
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"})
    EXPECT_NE(with_file(name).model, same.model) << name;
}

TEST(KvModelFingerprint, TellsWeightsApart) {
  const ModelFingerprint same = fingerprint_after([](auto&, auto&) {});
  const auto with_byte = [](size_t at) {
    return fingerprint_after([at](auto&, std::string& weights) { weights[at] = 'x'; });
  };
  EXPECT_NE(with_byte(8).weights, same.weights);
  EXPECT_NE(with_byte((size_t{2} << 20) + 9).weights, same.weights) << "in the header, in no sample";
  EXPECT_NE(with_byte((size_t{40} << 20) / 16 * 15).weights, same.weights) << "the last sample";
  EXPECT_EQ(with_byte(8).model, same.model);
  EXPECT_NE(fingerprint_after([](auto&, std::string& weights) { weights += 'w'; }).weights, same.weights);
  EXPECT_NE(fingerprint_after([](const TemporaryFolder& folder, std::string& weights) {
              write_file(folder / "model2.safetensors", weights);
            }).weights,
            same.weights);
}

TEST(KvModelFingerprint, ReadsSmallFilesWhole) {
  const auto with_byte = [](size_t at) {
    return fingerprint_after([at](auto&, std::string& weights) {
             weights.resize(size_t{10} << 20);
             weights[at] = 'x';
           })
        .weights;
  };
  EXPECT_NE(with_byte((size_t{10} << 20) - 1), with_byte((size_t{10} << 20) - 2));
}

TEST(KvModelFingerprint, RandomWeightsAreNoWeights) {
  const TemporaryFolder folder;
  write_file(folder / "config.json", "{}");
  EXPECT_NE(model_fingerprint(folder.path(), LoadFormat::dummy), model_fingerprint(folder.path()));
  write_file(folder / "model.safetensors", "short");
  EXPECT_EQ(error_of([&] { model_fingerprint(folder.path(), LoadFormat::dummy); }), "no error");
  EXPECT_THAT(error_of([&] { model_fingerprint(folder.path()); }), HasSubstr("model.safetensors"));
  write_file(folder / "model.safetensors", std::string(64, '\xff'));
  EXPECT_THAT(error_of([&] { model_fingerprint(folder.path()); }), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace ladder
