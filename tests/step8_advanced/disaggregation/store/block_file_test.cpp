// The files of a prefix store, and the folder they lie in.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <numeric>
#include <thread>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/store/store_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::TemporaryFolder;
namespace fs = std::filesystem;

KvLayout layout_of(int tensor_parallel_size, std::vector<int64_t> stage_ends, int64_t num_kv_heads = 4) {
  KvLayout layout;
  layout.num_layers = 6;
  layout.num_kv_heads = num_kv_heads;
  layout.k_dim = 8;
  layout.v_dim = 4;
  layout.tensor_parallel_size = tensor_parallel_size;
  layout.stage_ends = std::move(stage_ends);
  layout.block_size = 4;
  return layout;
}

KvBlockKey key_of(int32_t number, int64_t num_tokens = 12) {
  KvBlockKey key;
  key.space[0] = 7;
  key.root.words = {1, 2, 3, 4};
  key.name.words = {static_cast<uint64_t>(number), 6, 7, 8};
  key.tokens.resize(static_cast<size_t>(num_tokens));
  std::iota(key.tokens.begin(), key.tokens.end(), number);
  return key;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(KvBlockFile, AHeadSaysWhoseItIs) {
  const KvBlockKey key = key_of(1);
  const std::vector<uint32_t> checksums = {11, 22, 33};
  const std::string head = kv_block_head(key, checksums);
  EXPECT_EQ(head.size(), kv_block_head_size(12, 3));
  EXPECT_EQ(head.size() % 64, 0u);
  EXPECT_EQ(check_kv_block_head(key, 3, bytes_of(head)), checksums);

  const auto refused = [&](const KvBlockKey& other, const char* why) {
    try {
      check_kv_block_head(other, 3, bytes_of(head));
      ADD_FAILURE() << why;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  KvBlockKey other = key;
  ++other.space[31];
  refused(other, "another model's");
  other = key;
  ++other.root.words[3];
  refused(other, "another salt's");
  other = key;
  ++other.name.words[0];
  refused(other, "another block's name");
  for (const size_t token : {size_t{0}, size_t{11}}) {  // of a block before, or its own
    other = key;
    ++other.tokens[token];
    refused(other, "other tokens");
  }
}

TEST(KvBlockFile, EveryByteOfAHeadCounts) {
  const KvBlockKey key = key_of(1);
  const std::string head = kv_block_head(key, std::vector<uint32_t>{11, 22, 33});
  for (size_t i = 0; i < head.size(); ++i)
    for (const char flip : {char{1}, char(-128)}) {
      std::string damaged = head;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      EXPECT_THROW(check_kv_block_head(key, 3, bytes_of(damaged)), Error) << "byte " << i;
    }
  for (size_t size = 0; size < head.size(); ++size)
    EXPECT_THROW(check_kv_block_head(key, 3, bytes_of(std::string_view(head).substr(0, size))), Error)
        << size;
}

// A block's parts lie one behind the other, and every rank finds all of its layers and heads among them.
TEST(KvBlockFile, ABodyHasEveryLayerAndHeadOnce) {
  for (const KvLayout& layout :
       {layout_of(1, {6}), layout_of(2, {6}), layout_of(2, {2, 6}), layout_of(4, {6}, 2)}) {
    SCOPED_TRACE(layout_text(layout));
    const KvBlockShape shape = kv_block_shape(layout);
    std::vector<int> kept(static_cast<size_t>(6 * layout.num_kv_heads));
    size_t offset = 0;
    int64_t parts = 0;
    for (const KvBlockPiece& piece : shape.saved) {
      EXPECT_EQ(piece.offset, offset);
      EXPECT_EQ(piece.first_part, parts);
      offset += piece.size;
      parts += piece.num_layers;
      for (int64_t layer = piece.part.layer; layer < piece.part.layer + piece.num_layers; ++layer)
        for (int64_t head = piece.part.first_head; head < piece.part.first_head + piece.part.num_heads;
             ++head)
          ++kept[static_cast<size_t>(layer * layout.num_kv_heads + head)];
    }
    EXPECT_EQ(kept, std::vector<int>(kept.size(), 1));
    EXPECT_EQ(shape.body_size, offset);
    EXPECT_EQ(shape.num_parts, parts);
    EXPECT_EQ(shape.body_size, static_cast<size_t>(6 * layout.num_kv_heads * (8 + 4) * 4 * 4));
    int64_t loaded = 0;
    for (const KvBlockPiece& piece : shape.loaded) loaded += piece.num_layers * piece.part.num_heads;
    EXPECT_EQ(loaded, 6 * std::max<int64_t>(layout.num_kv_heads, layout.tensor_parallel_size));
  }
}

TEST(KvBlockFile, AnotherModelOrLayoutIsAnotherSpace) {
  ModelFingerprint model;
  std::vector<Sha256Digest> spaces = {kv_store_space(model, layout_of(1, {6}))};
  const auto differs = [&](const ModelFingerprint& of, const KvLayout& layout) {
    const Sha256Digest space = kv_store_space(of, layout);
    EXPECT_EQ(std::ranges::count(spaces, space), 0) << layout_text(layout);
    spaces.push_back(space);
  };
  differs(model, layout_of(2, {6}));
  differs(model, layout_of(1, {3, 6}));
  differs(model, layout_of(1, {6}, 2));
  const auto with = [&](auto change) {
    KvLayout layout = layout_of(1, {6});
    change(layout);
    differs(model, layout);
  };
  with([](KvLayout& layout) { layout.block_size = 8; });
  with([](KvLayout& layout) { layout.k_dim = 16; });
  with([](KvLayout& layout) { layout.v_dim = 16; });
  with([](KvLayout& layout) { layout.dtype = DType::bf16; });
  with([](KvLayout& layout) { layout.kept_as = KvCacheDType::int8; });
  with([](KvLayout& layout) { layout.kept_as = KvCacheDType::fp8; });
  with([](KvLayout& layout) { layout.num_layers = 5, layout.stage_ends = {5}; });
  model.weights[0] = 1;
  differs(model, layout_of(1, {6}));
  model.model[0] = 1;
  differs(model, layout_of(1, {6}));
}

// --- the folder

constexpr KvStoreFolder::Time kNow{std::chrono::hours(480'000)};

class KvStoreFolderTest : public ::testing::Test {
 protected:
  void write(KvStoreFolder& folder, int32_t number, KvStoreFolder::Time used = kNow) {
    const KvBlockKey key = key_of(number);
    folder.write(key.name, kv_block_head(key, std::vector<uint32_t>{1}), bytes_of(body), used);
  }
  bool has(const KvStoreFolder& folder, int32_t number) { return folder.has(key_of(number).name); }
  // All that lies there under a block's name, whatever the folder believes.
  int64_t num_bytes_of(const fs::path& path) {
    int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.path().extension() == ".kv") bytes += static_cast<int64_t>(entry.file_size());
    return bytes;
  }

  const TemporaryFolder place;
  const std::string body = std::string(1000, 'b');
  const int64_t block_bytes = static_cast<int64_t>(kv_block_head_size(12, 1)) + 1000;
};

TEST_F(KvStoreFolderTest, GivesBackWhatWasWritten) {
  KvStoreFolder folder(place / "made" / "on demand", 1 << 20, key_of(0).space);
  EXPECT_FALSE(has(folder, 1));
  write(folder, 1);
  EXPECT_TRUE(has(folder, 1));
  EXPECT_EQ(folder.num_bytes(), block_bytes);
  write(folder, 1);
  EXPECT_EQ(folder.num_bytes(), block_bytes) << "it has replaced the first one";
  std::vector<std::byte> bytes(static_cast<size_t>(block_bytes));
  EXPECT_TRUE(folder.read(key_of(1).name, bytes));
  EXPECT_EQ(std::to_integer<char>(bytes.back()), 'b');
  EXPECT_FALSE(folder.read(key_of(2).name, bytes));
  bytes.pop_back();
  EXPECT_THROW(folder.read(key_of(1).name, bytes), Error);
  folder.remove(key_of(1).name);
  EXPECT_FALSE(has(folder, 1));
  EXPECT_EQ(folder.num_bytes(), 0);
  Sha256Digest other = key_of(0).space;
  ++other[0];
  write(folder, 1);
  KvStoreFolder others(place / "made" / "on demand", 1 << 20, other);
  EXPECT_FALSE(has(others, 1));
  EXPECT_EQ(others.num_bytes(), block_bytes) << "the bound is the whole folder's";
}

TEST_F(KvStoreFolderTest, RemovesWhatWasNotUsedForTheLongestTime) {
  const int64_t bound = 16 * block_bytes;
  KvStoreFolder folder(place.path(), bound, key_of(0).space);
  testing::write_file(place / "notes.txt", "somebody's");
  fs::create_directory(place / "somebody's");
  for (int32_t number = 1; number <= 40; ++number) {
    write(folder, number, kNow + std::chrono::seconds(number));
    ASSERT_LE(num_bytes_of(place.path()), bound);
    ASSERT_EQ(folder.num_bytes(), num_bytes_of(place.path()));
    // The first one is used again and again.
    EXPECT_TRUE(folder.touch(key_of(1).name, kNow + std::chrono::seconds(number)));
    EXPECT_TRUE(has(folder, number));
  }
  EXPECT_TRUE(has(folder, 1));
  EXPECT_FALSE(has(folder, 2));
  EXPECT_FALSE(folder.touch(key_of(2).name, kNow));
  EXPECT_GE(num_bytes_of(place.path()), bound * 3 / 4)
      << "no more than an eighth, and one, is removed at a time";
  EXPECT_TRUE(fs::exists(place / "notes.txt") && fs::exists(place / "somebody's"));
  // A smaller bound is kept from the start.
  const KvStoreFolder smaller(place.path(), 4 * block_bytes, key_of(0).space);
  EXPECT_LE(num_bytes_of(place.path()), 4 * block_bytes);
  EXPECT_TRUE(has(smaller, 40) && has(smaller, 1));
}

TEST_F(KvStoreFolderTest, OfOnePrefixTheTailGoesFirst) {
  KvStoreFolder folder(place.path(), 4 * block_bytes, key_of(0).space);
  for (int32_t number = 1; number <= 4; ++number)
    write(folder, number, kNow - std::chrono::nanoseconds(number));
  write(folder, 5);
  EXPECT_TRUE(has(folder, 1) && has(folder, 5));
  EXPECT_FALSE(has(folder, 4));
}

TEST_F(KvStoreFolderTest, ABlockLargerThanTheBoundIsRefused) {
  KvStoreFolder folder(place.path(), block_bytes - 1, key_of(0).space);
  EXPECT_THROW(write(folder, 1), Error);
  EXPECT_EQ(num_bytes_of(place.path()), 0);
}

TEST_F(KvStoreFolderTest, SeveralWritersKeepTheBoundTogether) {
  const int64_t bound = 64 * block_bytes;
  KvStoreFolder a(place.path(), bound, key_of(0).space), b(place.path(), bound, key_of(0).space);
  for (int32_t number = 1; number <= 400; ++number) {
    write(number % 2 == 0 ? a : b, number, kNow + std::chrono::seconds(number));
    ASSERT_LE(num_bytes_of(place.path()), bound + bound / 16 + block_bytes) << number;
  }
  EXPECT_TRUE(has(a, 400) && has(b, 400) && has(a, 399));
}

// Replicas of one process, which write the same blocks at the same moment.
TEST_F(KvStoreFolderTest, TwoWritersOfOneBlockLeaveItWhole) {
  KvStoreFolder a(place.path(), 1 << 26, key_of(0).space), b(place.path(), 1 << 26, key_of(0).space);
  const std::string large(300'000, 'l');
  const size_t head = kv_block_head_size(12, 1);
  constexpr int32_t kBlocks = 60;
  std::atomic<int> num_whole = 0;
  std::barrier at_once(2);
  const auto write_all = [&](KvStoreFolder& folder) {
    for (int32_t number = 1; number <= kBlocks; ++number) {
      const KvBlockKey key = key_of(number);
      at_once.arrive_and_wait();
      try {
        folder.write(key.name, kv_block_head(key, std::vector<uint32_t>{1}), bytes_of(large), kNow);
        std::vector<std::byte> bytes(head + large.size());
        num_whole += folder.read(key.name, bytes) &&
                     std::ranges::all_of(std::span(bytes).subspan(head),
                                         [](std::byte byte) { return byte == std::byte{'l'}; });
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  };
  std::thread other([&] { write_all(b); });
  write_all(a);
  other.join();
  EXPECT_EQ(num_whole, 2 * kBlocks);
}

TEST_F(KvStoreFolderTest, WhatIsNoFolderIsRefused) {
  const auto refused = [&](const fs::path& path) {
    try {
      const KvStoreFolder folder(path, 1 << 20, key_of(0).space);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("expected a folder"), std::string::npos) << error.what();
    }
  };
  testing::write_file(place / "file", "x");
  refused(place / "file");
  refused(place / "file" / "below");
  refused("/proc/nothing is made here");
}

// Writers are killed in the middle of it, again and again.
TEST_F(KvStoreFolderTest, AWriterThatIsKilledLeavesNoHalfBlock) {
  const std::string large(300'000, 'l');
  const size_t head = kv_block_head_size(12, 1);
  KvStoreFolder folder(place.path(), 1 << 26, key_of(0).space);
  int num_read = 0;
  for (int round = 0; round < 12; ++round) {
    for (int32_t number = 1; number <= 50; ++number) folder.remove(key_of(number).name);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        KvStoreFolder writer(place.path(), 1 << 26, key_of(0).space);
        for (int32_t number = 0;; ++number) {
          const KvBlockKey key = key_of(1 + number % 50);
          writer.write(key.name, kv_block_head(key, std::vector<uint32_t>{1}), bytes_of(large), kNow);
        }
      } catch (...) {
      }
      ::_exit(3);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!has(folder, 1) && std::chrono::steady_clock::now() < deadline) ::usleep(100);
    ::usleep(static_cast<useconds_t>(2'000 + 1'700 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it could not write";
    for (int32_t number = 1; number <= 50; ++number) {
      const KvBlockKey key = key_of(number);
      if (!folder.has(key.name)) continue;
      std::vector<std::byte> bytes(head + large.size());
      ASSERT_TRUE(folder.read(key.name, bytes));
      ++num_read;
      EXPECT_EQ(check_kv_block_head(key, 1, std::span(bytes).first(head)), std::vector<uint32_t>{1});
      EXPECT_TRUE(std::ranges::all_of(std::span(bytes).subspan(head),
                                      [](std::byte byte) { return byte == std::byte{'l'}; }));
    }
  }
  EXPECT_GE(num_read, 12) << "each one has written a block";
}

// What such a one leaves is removed when nobody can be writing it any more.
TEST_F(KvStoreFolderTest, WhatWasBegunLongAgoIsRemoved) {
  KvStoreFolder folder(place.path(), 1 << 20, key_of(0).space);
  const fs::path file = folder.file_of(key_of(1).name);
  const fs::path now = file.parent_path() / ("." + file.filename().string() + "-4711-0"),
                 long_ago = file.parent_path() / ("." + file.filename().string() + "-4711-1");
  testing::write_file(now, "half");
  testing::write_file(long_ago, "half");
  fs::last_write_time(long_ago, fs::file_time_type::clock::now() - std::chrono::hours(1));
  const KvStoreFolder next(place.path(), 1 << 20, key_of(0).space);
  EXPECT_TRUE(fs::exists(now));
  EXPECT_FALSE(fs::exists(long_ago));
  EXPECT_EQ(next.num_bytes(), 0);
}

}  // namespace
}  // namespace ladder
