// Engines with a prefix store: the answers are those without, in f32 bit by bit, and what a folder has is not computed again.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <thread>

#include "step1_layers/attention/kv_codes.h"
#include "step8_advanced/disaggregation/store/kv_store.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step7_parallel/workers/worker_program.h"
#include "tests/step8_advanced/disaggregation/connector/handoff_requests.h"
#include "tests/support/model_devices.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::expect_same;
using testing::Grid;
using testing::random_requests;
using testing::TemporaryFolder;
using testing::tiny_options;
using testing::with_ranks;
namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{60};

struct StoringEngine {
  std::shared_ptr<KvStoreConnector> store;
  std::unique_ptr<Engine> engine;

  StoringEngine(EngineOptions options, const KvStoreConfig& config) {
    options.makers.kv_connector = [&](const ExecutorOptions& parts) {
      store =
          std::make_shared<KvStoreConnector>(config, model_fingerprint(parts.model, parts.config.load_format),
                                             kv_layout_of(parts.spec, parts.config));
      return MadeKvConnector{store, store};
    };
    engine = engine_with(options);
  }

  KvTransferStats stats() const { return store->stats(); }

  // Until all blocks that were kept for it are copied, and no load that was cancelled writes any more.
  void expect_all_given_back() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (engine->scheduler().waits_for_kv() && std::chrono::steady_clock::now() < deadline) {
      store->wait(std::chrono::milliseconds(20));
      engine->take_kv_events();
    }
    testing::expect_books_closed(engine->scheduler());
  }
};

class KvStore : public ::testing::Test {
 protected:
  KvStore() { config.folder = place / "store"; }

  std::vector<RequestOutput> answers_of(const EngineOptions& options, const std::vector<Request>& of) {
    return engine_with(options)->generate(of);
  }
  // By an engine that ends, so that all is on disk then.
  KvTransferStats expect_stored(const EngineOptions& options, const std::vector<Request>& of,
                                const std::vector<RequestOutput>& expected) {
    StoringEngine engine(options, config);
    expect_same(engine.engine->generate(of), expected);
    engine.expect_all_given_back();
    return engine.stats();
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(config.folder))
      if (entry.path().extension() == ".kv") found.push_back(entry.path());
    std::ranges::sort(found);
    return found;
  }
  int64_t num_bytes() const {
    int64_t bytes = 0;
    for (const fs::path& file : files()) bytes += static_cast<int64_t>(fs::file_size(file));
    return bytes;
  }
  // Whole blocks of the prompts, but for each one's last token.
  static int64_t num_tokens_to_load(const std::vector<Request>& of, int64_t block_size = 4) {
    int64_t count = 0;
    for (const Request& request : of)
      count += (std::ssize(request.prompt_token_ids) - 1) / block_size * block_size;
    return count;
  }

  testing::Random random;
  const TemporaryFolder place;
  KvStoreConfig config;
  const std::vector<Request> requests = random_requests(random, 12);
};

TEST_F(KvStore, ARestartGoesOnFromTheFolder) {
  SCOPED_TRACE(random.describe());
  const auto expected = answers_of(tiny_options(), requests);
  EXPECT_EQ(expect_stored(tiny_options(), requests, expected).num_loads, 0);
  {
    StoringEngine again(tiny_options(), config);
    const auto outputs = again.engine->generate(requests);
    expect_same(outputs, expected);
    EXPECT_EQ(again.stats().num_loaded_tokens, num_tokens_to_load(requests));
    EXPECT_EQ(again.engine->scheduler().stats().num_external_tokens, num_tokens_to_load(requests));
    EXPECT_EQ(again.stats().num_failed_loads, 0);
    EXPECT_EQ(again.stats().num_store_bytes, num_bytes());
    for (size_t i = 0; i < requests.size(); ++i) {  // usage says so, and nobody is told of a transfer
      EXPECT_EQ(outputs[i].metrics.num_cached_tokens, (std::ssize(requests[i].prompt_token_ids) - 1) / 4 * 4);
      EXPECT_FALSE(outputs[i].kv_transfer.has_value());
    }
    again.expect_all_given_back();
    // What is in the engine's own blocks is not read once more.
    expect_same(again.engine->generate(requests), expected);
    EXPECT_EQ(again.stats().num_loaded_tokens, num_tokens_to_load(requests));
  }
}

// Blocks on a GPU are packed and unpacked there, and go through the host's memory.
TEST_F(KvStore, AGpuGoesOnFromTheFolder) {
  testing::need_device(DeviceType::cuda);
  if (IsSkipped()) return;
  EngineOptions options = tiny_options();
  options.runner.device = {DeviceType::cuda, 0};
  for (const KvCacheDType kept_as : {KvCacheDType::automatic, KvCacheDType::fp8, KvCacheDType::int4}) {
    options.runner.kv_cache_dtype = kept_as;
    const auto expected = answers_of(options, requests);
    for (const int64_t loaded : {int64_t{0}, num_tokens_to_load(requests)}) {
      StoringEngine engine(options, config);
      expect_same(engine.engine->generate(requests), expected);
      EXPECT_EQ(engine.stats().num_loaded_tokens, loaded) << kv_cache_dtype_name(kept_as);
      engine.expect_all_given_back();
    }
  }
}

// Of an answer, too: who comes back with it as a part of his prompt.
TEST_F(KvStore, AnswersAreStored) {
  Request request = requests[0];
  request.prompt_token_ids.assign(10, 700);
  request.sampling = {};
  request.sampling.temperature = 0;
  request.sampling.logprobs = 3;  // compared
  request.sampling.max_tokens = 31;
  request.sampling.ignore_eos = true;
  const auto expected = answers_of(tiny_options(), {request});
  expect_stored(tiny_options(), {request}, expected);
  EXPECT_EQ(std::ssize(files()), (10 + 30) / 4);  // the last token was never computed
  const std::vector<int32_t>& answer = expected[0].completions[0].token_ids;
  request.prompt_token_ids.insert(request.prompt_token_ids.end(), answer.begin(), answer.end());
  request.sampling.max_tokens = 5;
  const auto next = answers_of(tiny_options(), {request});
  EXPECT_EQ(expect_stored(tiny_options(), {request}, next).num_loaded_tokens, 40);
}

TEST_F(KvStore, TwoEnginesShareAFolder) {
  const auto expected = answers_of(tiny_options(), requests);
  StoringEngine a(tiny_options(), config), b(tiny_options(), config);
  expect_same(a.engine->generate(requests), expected);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto num_written = [&] { return a.stats().num_stored_blocks; };
  for (int64_t before = -1; before != num_written() || before == 0;
       std::this_thread::sleep_for(std::chrono::milliseconds(300))) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    before = num_written();
  }
  expect_same(b.engine->generate(requests), expected);
  EXPECT_GT(b.stats().num_loaded_tokens, 0);
  a.expect_all_given_back();
  b.expect_all_given_back();
  // Both at once, over prompts that neither knows.
  const std::vector<Request> more = random_requests(random, 12);
  const auto more_expected = answers_of(tiny_options(), more);
  std::thread other([&] { expect_same(a.engine->generate(more), more_expected); });
  expect_same(b.engine->generate(more), more_expected);
  other.join();
}

TEST_F(KvStore, ChunksAndPreemptionsInASmallPool) {
  SCOPED_TRACE(random.describe());
  std::vector<Request> of = random_requests(random, 10);
  for (Request& request : of) {
    request.sampling.max_tokens = 30;
    request.sampling.stop.clear();
  }
  EngineOptions options = tiny_options();
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 33;
  options.runner.batch.max_num_batched_tokens = 16;
  const auto expected = answers_of(options, of);
  StoringEngine first(options, config);
  expect_same(first.engine->generate(of), expected);
  EXPECT_GT(first.engine->scheduler().stats().num_preemptions, 0);
  first.expect_all_given_back();
  first.engine = nullptr;
  first.store = nullptr;
  StoringEngine again(options, config);
  expect_same(again.engine->generate(of), expected);
  EXPECT_GT(again.stats().num_loaded_tokens, 0);
  EXPECT_EQ(again.stats().num_failed_loads, 0);
  again.expect_all_given_back();
}

// Bit by bit in f32, where a prompt's answer does not depend on how it is cut into steps; else up to a near tie.
void expect_alike(const std::vector<RequestOutput>& outputs, const std::vector<RequestOutput>& expected,
                  DType dtype, const std::string& what) {
  for (size_t i = 0; i < outputs.size(); ++i)
    EXPECT_TRUE(testing::answers_as_one_rank(expected[i], outputs[i], {dtype == DType::f32 ? 1 : 2, 1, 1},
                                             fmt::format("{}, prompt {}", what, i)));
}

TEST_F(KvStore, EveryKindOfKeys) {
  EngineOptions options = tiny_options();
  for (const KvCacheDType kept_as :
       {KvCacheDType::automatic, KvCacheDType::fp8, KvCacheDType::int8, KvCacheDType::int4})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      options.dtype = dtype;
      options.runner.kv_cache_dtype = kept_as;
      const auto expected = answers_of(options, requests);
      for (const int64_t loaded :
           {int64_t{0}, num_tokens_to_load(requests)}) {  // another kind is another key
        const std::string what = fmt::format("{} {}", dtype_name(dtype), kv_cache_dtype_name(kept_as));
        StoringEngine engine(options, config);
        expect_alike(engine.engine->generate(requests), expected, dtype, what);
        EXPECT_EQ(engine.stats().num_loaded_tokens, loaded) << what;
        engine.expect_all_given_back();
      }
    }
}

TEST_F(KvStore, EveryGridOfRanks) {
  for (const Grid grid : {Grid{2, 1}, Grid{4, 1}, Grid{1, 2}, Grid{2, 2}}) {  // 4 ranks share 2 heads
    const EngineOptions options = with_ranks(tiny_options(), grid);
    const auto expected = answers_of(options, requests);
    const auto expect_loaded = [&](const EngineOptions& mine, int64_t loaded, const char* ranks) {
      SCOPED_TRACE(fmt::format("TP {} x {} stages, {}", grid.tp, grid.pp, ranks));
      StoringEngine engine(mine, config);
      expect_same(engine.engine->generate(requests), expected);
      EXPECT_EQ(engine.stats().num_loaded_tokens, loaded);
      engine.expect_all_given_back();
    };
    expect_loaded(options, 0, "threads");
    expect_loaded(options, num_tokens_to_load(requests), "threads");
    if (grid.tp == 2 && grid.pp == 1)  // the layout is the same
      expect_loaded(testing::on_workers(options), num_tokens_to_load(requests), "processes");
  }
}

// Each kind of damage to every file: it is noticed, nothing of it is decoded, and the block is stored anew.
TEST_F(KvStore, DamageIsNoticedAndRecomputed) {
  std::vector<Request> of = {requests.begin(), requests.begin() + 3};
  for (Request& request : of) request.prompt_token_ids.resize(14, 400);
  const auto expected = answers_of(tiny_options(), of);
  expect_stored(tiny_options(), of, expected);
  const std::vector<fs::path> stored = files();
  ASSERT_GT(stored.size(), 8u);
  fs::copy(config.folder, place / "whole", fs::copy_options::recursive);
  const auto damaged_by = [&](const char* what, auto damage) {
    SCOPED_TRACE(what);
    fs::remove_all(config.folder);
    fs::copy(place / "whole", config.folder, fs::copy_options::recursive);
    for (const fs::path& file : stored) damage(file);
    const KvTransferStats stats = expect_stored(tiny_options(), of, expected);
    EXPECT_EQ(stats.num_loaded_tokens, 0);
    EXPECT_EQ(stats.num_failed_loads, 3);
    EXPECT_EQ(stats.num_missed_tokens, num_tokens_to_load(of));
    EXPECT_EQ(files(), stored);
    // The first block of each was looked at, removed, and stored again; the damage behind it is found the next time.
    EXPECT_GE(expect_stored(tiny_options(), of, expected).num_loaded_tokens, 3 * 4);
  };
  const auto flip = [](int64_t at) {
    return [at](const fs::path& file) {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      const int64_t size = static_cast<int64_t>(fs::file_size(file));
      bytes.seekg(at < 0 ? size + at : at);
      const char byte = static_cast<char>(bytes.get() ^ 4);
      bytes.seekp(at < 0 ? size + at : at);
      bytes.put(byte);
    };
  };
  damaged_by("magic", flip(0));
  damaged_by("version", flip(8));
  damaged_by("size of the head", flip(12));
  damaged_by("checksum of the head", flip(16));
  damaged_by("space", flip(20));
  damaged_by("name", flip(20 + 32 + 32));
  damaged_by("tokens", flip(20 + 96 + 4));
  damaged_by("last byte of the body", flip(-1));
  damaged_by("a byte in the body", flip(-1000));
  damaged_by("truncation", [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 1); });
  damaged_by("nothing but the head", [](const fs::path& file) { fs::resize_file(file, 64); });
  damaged_by("nothing", [](const fs::path& file) { fs::resize_file(file, 0); });
  damaged_by("more", [](const fs::path& file) { std::ofstream(file, std::ios::app) << "more"; });
  damaged_by("a link of this name", [](const fs::path& file) {
    fs::remove(file);
    fs::create_symlink("/dev/zero", file);
  });
  damaged_by("a pipe of this name, which nobody writes to", [](const fs::path& file) {
    fs::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  });
}

// All blocks have one name: what is found under it is never another prompt's.
TEST_F(KvStore, ACollisionIsNotDecoded) {
  class OneName final : public BlockHasher {
   public:
    BlockHash root(std::string_view, std::string_view) override { return {{1, 1, 1, 1}}; }
    BlockHash block(const BlockHash&, std::span<const int32_t>) override { return {{2, 2, 2, 2}}; }
  };
  config.make_hasher = [] { return std::make_unique<OneName>(); };
  const auto expected = answers_of(tiny_options(), requests);
  for (int round = 0; round < 3; ++round) {
    std::vector<Request> of = requests;
    if (round == 1) std::ranges::reverse(of);
    const auto in_order = round == 1 ? answers_of(tiny_options(), of) : expected;
    const KvTransferStats stats = expect_stored(tiny_options(), of, in_order);
    EXPECT_LE(files().size(), 1u);
    if (round > 0) {
      EXPECT_GT(stats.num_failed_loads, 0);
    }
  }
}

TEST_F(KvStore, ASaltIsAnotherKey) {
  std::vector<Request> of = requests;
  const auto expected = answers_of(tiny_options(), of);
  for (Request& request : of) request.sampling.cache_salt = "mine";
  expect_stored(tiny_options(), of, expected);
  EXPECT_EQ(expect_stored(tiny_options(), requests, expected).num_loads, 0);
  EXPECT_EQ(expect_stored(tiny_options(), of, expected).num_loaded_tokens, num_tokens_to_load(of));
}

TEST_F(KvStore, LogprobsOfAPromptAreComputed) {
  std::vector<Request> of = {requests[0]};
  of[0].prompt_token_ids.resize(30, 500);
  expect_stored(tiny_options(), of, answers_of(tiny_options(), of));
  of[0].sampling.prompt_logprobs = 2;
  EXPECT_EQ(expect_stored(tiny_options(), of, answers_of(tiny_options(), of)).num_loads, 0);
}

// A request says kv_transfer_params to a store: it is no other engine.
TEST_F(KvStore, TakesNoTransfers) {
  StoringEngine engine(tiny_options(), config);
  Request request = requests[0];
  request.kv_transfer.emplace().do_remote_prefill = true;
  try {
    engine.engine->generate({request});
    ADD_FAILURE() << "it was taken";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "kv_transfer_params: this engine is connected with no other engine");
  }
}

// Everything is aborted after so many steps, in the middle of loads, saves and steps in flight.
TEST_F(KvStore, AbortsAtEveryPoint) {
  const auto expected = answers_of(tiny_options(), requests);
  for (int aborted_after = 0; aborted_after < 12; ++aborted_after) {
    SCOPED_TRACE(aborted_after);
    if (aborted_after % 3 == 0) fs::remove_all(config.folder);  // else some of it is there to be loaded
    StoringEngine engine(tiny_options(), config);
    std::vector<RequestId> ids;
    for (const Request& request : requests)
      ids.push_back(engine.engine->add_request(engine.engine->prepare(request)));
    for (int step = 0; step < aborted_after; ++step) engine.engine->step();
    for (const RequestId& id : ids) engine.engine->abort(id);
    while (engine.engine->has_unfinished()) engine.engine->step();
    engine.expect_all_given_back();
    expect_same(engine.engine->generate(requests), expected);
    engine.expect_all_given_back();
  }
  expect_stored(tiny_options(), requests, expected);
}

// Room for one block in the queue: what has no room is not stored, nobody waits for it, and what there is is right.
TEST_F(KvStore, AFullQueueStoresLess) {
  const auto expected = answers_of(tiny_options(), requests);
  expect_stored(tiny_options(), requests, expected);
  const std::vector<fs::path> all = files();
  fs::remove_all(config.folder);
  config.queue_bytes = 1;
  for (int round = 0; round < 3; ++round) {
    expect_stored(tiny_options(), requests, expected);
    const std::vector<fs::path> some = files();
    EXPECT_TRUE(std::ranges::includes(all, some));
  }
}

TEST_F(KvStore, KeepsItsBound) {
  const auto expected = answers_of(tiny_options(), requests);
  expect_stored(tiny_options(), requests, expected);
  config.max_bytes = num_bytes() / 3;
  for (int round = 0; round < 3; ++round) {
    const KvTransferStats stats = expect_stored(tiny_options(), requests, expected);
    EXPECT_LE(stats.num_store_bytes, config.max_bytes);
    EXPECT_LE(num_bytes(), config.max_bytes);
  }
  const std::vector<fs::path> kept = files();
  EXPECT_FALSE(kept.empty());
  config.max_bytes = 100;
  EXPECT_THROW(StoringEngine(tiny_options(), config), Error);
  EXPECT_EQ(files(), kept) << "it removes before it refuses";
}

// The folder becomes a file while the engine runs: it says so, once, and goes on.
TEST_F(KvStore, AFolderThatGoesIsDoneWithout) {
  const auto expected = answers_of(tiny_options(), requests);
  std::atomic<int> num_warnings = 0;
  config.warn = [&](const std::string& why) {
    EXPECT_NE(why.find(config.folder.string()), std::string::npos) << why;
    ++num_warnings;
  };
  StoringEngine engine(tiny_options(), config);
  fs::remove_all(config.folder);
  testing::write_file(config.folder, "a file");
  expect_same(engine.engine->generate(requests), expected);
  engine.expect_all_given_back();
  engine.engine = nullptr;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (engine.stats().num_unstored_blocks < 20 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(engine.stats().num_unstored_blocks, 20);
  EXPECT_EQ(engine.stats().num_stored_blocks, 0);
  EXPECT_EQ(num_warnings, 1);
}

// Blocks of one layout, a saver, and what it says before it looks for a block's file.
class SavedBlocks {
  class Watched final : public BlockHasher {
   public:
    explicit Watched(std::function<void()>& on_block) : on_block_(on_block) {}
    BlockHash root(std::string_view salt, std::string_view adapter) override {
      return hasher_.root(salt, adapter);
    }
    BlockHash block(const BlockHash& parent, std::span<const int32_t> tokens) override {
      on_block_();
      return hasher_.block(parent, tokens);
    }

   private:
    std::function<void()>& on_block_;
    Sha256BlockHasher hasher_{0};
  };

 public:
  SavedBlocks(int64_t num_layers, int64_t dim, int64_t num_blocks, int64_t num_queued)
      : layout_(layout_of(num_layers, dim)), elements_(4 * 2 * dim), ranks(layout_) {
    RankKvCaches caches;
    caches.layers = {0, num_layers};
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      KvCacheView& cache = caches.caches.emplace_back();
      cache.k = Tensor::empty({num_blocks, 4, 2, dim}, DType::f32, Device());
      cache.v = Tensor::empty({num_blocks, 4, 2, dim}, DType::f32, Device());
    }
    ranks.add(caches);
    config.make_hasher = [this] { return std::make_unique<Watched>(on_block); };
    config.warn = [this](const std::string&) { on_warning(); };
    config.queue_bytes = num_queued * static_cast<int64_t>(shape.body_size);
    saver = std::make_unique<KvBlockSaver>(config, folder, ranks, shape, space);
  }

  void fill(int32_t block, float value) {
    const auto& caches = ranks.ranks[0].caches;
    for (auto cache = caches.rbegin(); cache != caches.rend(); ++cache)  // what is copied last first
      for (const Tensor& tensor : {cache->v, cache->k})
        std::fill_n(tensor.data<float>() + block * elements_, elements_, value);
  }
  // Blocks full of the number that its tokens are, too.
  Sequence sequence(SequenceId id, std::vector<int32_t> blocks) {
    Sequence made;
    made.id = id;
    auto prompt = std::make_shared<std::vector<int32_t>>();
    for (const int32_t block : blocks) {
      fill(block, static_cast<float>(next_));
      prompt->insert(prompt->end(), 4, next_);
      told_[next_++] = *prompt;
    }
    made.block_table = std::move(blocks);
    made.num_prompt_tokens = std::ssize(*prompt);
    made.prompt_token_ids = prompt;
    return made;
  }
  // Nothing can be written any more, nor found.
  void break_folder() {
    const fs::path space_folder = folder.file_of({}).parent_path();
    fs::remove_all(space_folder);
    testing::write_file(space_folder, "a file");
  }
  KvTransferStats stats() const {
    KvTransferStats stats;
    saver->add_to(stats);
    return stats;
  }
  // Whatever is stored is what was computed under its name; how many blocks that are. All is on disk when this returns.
  int expect_right() {
    saver = nullptr;
    Sha256BlockHasher hasher(0);
    int num_stored = 0;
    for (const auto& [first, tokens] : told_) {
      KvBlockKey key{space, hasher.root("", ""), {}, tokens};
      key.name = key.root;
      for (size_t begin = 0; begin < tokens.size(); begin += 4)
        key.name = hasher.block(key.name, std::span(tokens).subspan(begin, 4));
      if (!folder.has(key.name)) continue;
      ++num_stored;
      const size_t head = kv_block_head_size(tokens.size(), shape.num_parts);
      std::vector<std::byte> bytes(head + shape.body_size);
      EXPECT_TRUE(folder.read(key.name, bytes));
      check_kv_block_head(key, shape.num_parts, std::span(bytes).first(head));
      const auto* const values = reinterpret_cast<const float*>(bytes.data() + head);
      EXPECT_TRUE(std::all_of(values, values + shape.body_size / sizeof(float),
                              [first = first](float value) { return value == static_cast<float>(first); }))
          << "block of token " << first;
    }
    return num_stored;
  }

 private:
  static KvLayout layout_of(int64_t num_layers, int64_t dim) {
    KvLayout layout;
    layout.num_layers = num_layers;
    layout.num_kv_heads = 2;
    layout.k_dim = layout.v_dim = dim;
    layout.stage_ends = {num_layers};
    layout.block_size = 4;
    return layout;
  }

  const TemporaryFolder place_;
  const KvLayout layout_;
  const int64_t elements_;
  int32_t next_ = 1;
  std::map<int32_t, std::vector<int32_t>> told_;  // by the first token of a block

 public:
  KvRanks ranks;
  const Sha256Digest space = kv_store_space({}, layout_);
  const KvBlockShape shape = kv_block_shape(layout_);
  KvStoreFolder folder{place_.path(), int64_t{1} << 30, space};
  std::function<void()> on_block = [] {}, on_warning = [] {};
  KvStoreConfig config;
  std::unique_ptr<KvBlockSaver> saver;
};

// Until it is so. False: it takes too long.
bool eventually(const std::function<bool()>& is_so) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!is_so() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  return is_so();
}

std::vector<SequenceId> next_released(KvBlockSaver& saver) {
  std::vector<SequenceId> released;
  EXPECT_TRUE(eventually([&] {
    for (const SequenceId id : saver.take_released()) released.push_back(id);
    return !released.empty();
  }));
  return released;
}

class KvBlockSaverQueues : public ::testing::TestWithParam<int> {};

// vLLM 52360: a sequence is preempted, or ends, and its blocks are given to others while they are being saved.
TEST_P(KvBlockSaverQueues, StoredBytesEqualTheirKeys) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  constexpr int64_t kBlocks = 9;
  SavedBlocks blocks(12, 256, kBlocks, GetParam());
  std::vector<int32_t> free;
  const auto give_away = [&](const std::vector<int32_t>& table) {
    for (const int32_t block : table) {
      blocks.fill(block, -1);  // somebody else's
      free.push_back(block);
    }
  };
  for (int32_t block = 0; block < kBlocks; ++block) free.push_back(block);
  std::vector<Sequence> running;  // two at most
  std::map<SequenceId, std::vector<int32_t>> held;
  const auto has_room = [&] {
    for (const SequenceId id : blocks.saver->take_released()) give_away(held.extract(id).mapped());
    return free.size() >= 3;
  };
  for (SequenceId id = 0; id < 150; ++id) {
    ASSERT_TRUE(eventually(has_room));
    const Sequence& sequence = running.emplace_back(blocks.sequence(id, {free.end() - 3, free.end()}));
    free.resize(free.size() - 3);
    for (const int64_t computed : {3, 8, 12}) blocks.saver->computed(sequence, computed);
    if (random.integer(0, 2) > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 300)));
    while (running.size() == 2 || (running.size() == 1 && id % 7 == 0)) {  // one of them, or both, leaves
      const auto leaves = running.begin() + random.integer(0, std::ssize(running) - 1);
      if (random.integer(0, 1) == 0) {
        blocks.saver->forget(leaves->id);  // preempted
        give_away(leaves->block_table);
      } else if (blocks.saver->end(leaves->id)) {
        held[leaves->id] = leaves->block_table;
      } else {
        give_away(leaves->block_table);
      }
      running.erase(leaves);
    }
  }
  EXPECT_GT(blocks.expect_right(), 0);
}

INSTANTIATE_TEST_SUITE_P(Blocks, KvBlockSaverQueues, ::testing::Values(1, 2, 100));

// Blocks of 16 MB, which are given away at some point of their copy, unless that is waited for.
TEST(KvBlockSaver, ACopyThatIsUnderWayIsWaitedFor) {
  SavedBlocks blocks(64, 4096, 1, 100);
  std::atomic<int> num_looked_for = 0;
  blocks.on_block = [&] { ++num_looked_for; };
  for (int round = 0; round < 8; ++round) {
    const Sequence sequence = blocks.sequence(round, {0});
    blocks.saver->computed(sequence, 4);
    ASSERT_TRUE(eventually([&] { return num_looked_for > round; }));
    std::this_thread::sleep_for(std::chrono::microseconds(100 << round));
    if (round == 7) {
      EXPECT_TRUE(eventually([&] { return blocks.stats().num_stored_blocks > 0; }));
    }
    blocks.saver->forget(round);
    blocks.fill(0, -1);
  }
  EXPECT_GT(blocks.expect_right(), 0);
}

// The same with a load that is cancelled: its blocks come back when nothing writes to them any more.
TEST(KvBlockLoader, ACancelledLoadWritesNothingAfterItsEnd) {
  SavedBlocks blocks(64, 4096, 1, 100);
  const Sequence sequence = blocks.sequence(0, {0});
  blocks.saver->computed(sequence, 4);
  EXPECT_TRUE(blocks.saver->end(0));
  EXPECT_EQ(blocks.expect_right(), 1);
  Sha256BlockHasher hasher(0);
  KvBlockNames names{hasher.root("", ""), {}};
  names.add(hasher, *sequence.prompt_token_ids);
  for (int round = 0; round < 8; ++round) {
    std::vector<FinishedKvLoad> finished;
    {
      KvBlockLoader loader(blocks.config, blocks.folder, blocks.ranks, blocks.shape, blocks.space);
      loader.start_load({0, {0}, 0, 4, nullptr}, names, sequence.prompt_token_ids);
      std::this_thread::sleep_for(std::chrono::microseconds(100 << round));
      loader.cancel_load(0);
      ASSERT_TRUE(eventually([&] {
        for (const FinishedKvLoad& one : loader.take_finished()) finished.push_back(one);
        return !finished.empty();
      }));
      blocks.fill(0, -1);
    }
    EXPECT_EQ(finished.size(), 1u);
    for (const KvCacheView& cache : blocks.ranks.ranks[0].caches)
      EXPECT_TRUE(std::all_of(cache.k.data<float>(), cache.k.data<float>() + cache.k.numel(),
                              [](float value) { return value == -1; }));
  }
}

// No memory for a file: the load ends, nothing is wrong with the file, and the thread goes on.
TEST(KvBlockLoader, WithoutMemoryALoadEndsAndItsFilesStay) {
  SavedBlocks blocks(2, 64, 6, 3);
  const Sequence sequence = blocks.sequence(1, {0, 1, 2});
  blocks.saver->computed(sequence, 12);
  blocks.saver->end(1);  // whether blocks are left by then or not
  EXPECT_EQ(blocks.expect_right(), 3);
  Sha256BlockHasher hasher(0);
  KvBlockNames names{hasher.root("", ""), {}};
  for (size_t begin = 0; begin < 12; begin += 4)
    names.add(hasher, std::span(*sequence.prompt_token_ids).subspan(begin, 4));
  KvBlockShape shape = blocks.shape;
  blocks.config.num_loaders = 1;
  KvBlockLoader loader(blocks.config, blocks.folder, blocks.ranks, shape, blocks.space);
  const auto load = [&](SequenceId id) {
    loader.start_load({id, {3, 4, 5}, 0, 12, nullptr}, names, sequence.prompt_token_ids);
    std::vector<FinishedKvLoad> finished;
    EXPECT_TRUE(eventually([&] {
      for (const FinishedKvLoad& one : loader.take_finished()) finished.push_back(one);
      return !finished.empty();
    }));
    return finished.at(0);
  };
  for (const SequenceId id : {1, 3}) {  // before the thread has room for any file, and when it has
    shape.body_size = size_t{1} << 60;
    const FinishedKvLoad failed = load(id);
    EXPECT_EQ(failed.num_tokens, 0);
    EXPECT_NE(failed.error.find("out of memory"), std::string::npos) << failed.error;
    for (const BlockHash& name : names.names) EXPECT_TRUE(blocks.folder.has(name));
    shape = blocks.shape;
    for (int32_t block = 3; block < 6; ++block) blocks.fill(block, -1);
    const FinishedKvLoad loaded = load(id + 1);
    EXPECT_EQ(loaded.num_tokens, 12) << loaded.error;
    for (const KvCacheView& cache : blocks.ranks.ranks[0].caches)
      for (const Tensor& tensor : {cache.k, cache.v}) {
        const float* const values = tensor.data<float>();
        EXPECT_TRUE(std::equal(values, values + tensor.numel() / 2, values + tensor.numel() / 2));
      }
  }
  KvTransferStats stats;
  loader.add_to(stats);
  EXPECT_EQ(stats.num_loads, 4);
  EXPECT_EQ(stats.num_failed_loads, 2);
  EXPECT_EQ(stats.num_missed_tokens, 24);
  EXPECT_EQ(stats.num_loaded_tokens, 24);
}

// A sequence ends while the store is looked through for its next block, and another one has the only place in the queue.
TEST(KvBlockSaver, WhatHasEndedWithoutAPlaceIsNotCopied) {
  SavedBlocks blocks(2, 64, 6, 1);
  std::atomic<bool> is_looking = false, may_go_on = false;
  blocks.on_block = [&] {
    is_looking = true;
    eventually([&] { return may_go_on.load(); });
  };
  const Sequence first = blocks.sequence(1, {0, 1, 2}), second = blocks.sequence(2, {3, 4, 5});
  blocks.saver->computed(first, 12);
  ASSERT_TRUE(eventually([&] { return is_looking.load(); }));
  blocks.saver->computed(second, 12);
  EXPECT_TRUE(blocks.saver->end(2));   // one of its blocks has the place
  EXPECT_FALSE(blocks.saver->end(1));  // none of these has
  for (const int32_t block : {0, 1, 2}) blocks.fill(block, -1);
  may_go_on = true;
  EXPECT_EQ(next_released(*blocks.saver), std::vector<SequenceId>{2});
  EXPECT_EQ(blocks.stats().num_unstored_blocks, 3 + 2);
  EXPECT_EQ(blocks.expect_right(), 1);
}

// The same with one that goes on: it waits for its turn, whether what has the place is written at once or never.
TEST(KvBlockSaver, WhatGoesOnWithoutAPlaceWaits) {
  for (const bool stalls : {false, true}) {
    SCOPED_TRACE(stalls ? "writes stall" : "writes go on");
    std::atomic<bool> is_looking = false, may_go_on = false, may_write = false;
    SavedBlocks blocks(2, 64, 6, 1);
    blocks.on_block = [&] {
      is_looking = true;
      eventually([&] { return may_go_on.load(); });
    };
    blocks.on_warning = [&] { eventually([&] { return may_write.load(); }); };
    if (stalls) blocks.break_folder();
    const Sequence first = blocks.sequence(1, {0, 1, 2}), second = blocks.sequence(2, {3, 4, 5});
    blocks.saver->computed(first, 12);
    EXPECT_TRUE(eventually([&] { return is_looking.load(); }));
    blocks.saver->computed(second, 12);
    EXPECT_TRUE(blocks.saver->end(2));  // one of its blocks has the place
    may_go_on = true;
    EXPECT_EQ(next_released(*blocks.saver), std::vector<SequenceId>{2});
    if (stalls) {
      EXPECT_FALSE(blocks.saver->end(1));
      EXPECT_EQ(blocks.stats().num_unstored_blocks, 3 + 2) << "a block more than the queue has room for";
    } else {
      EXPECT_TRUE(eventually([&] { return blocks.stats().num_stored_blocks == 1 + 3; }));
    }
    may_write = true;
    EXPECT_EQ(blocks.expect_right(), stalls ? 0 : 1 + 3);
  }
}

// Two requests that begin alike, the second before a block of the first is on disk.
TEST(KvBlockSaver, WhatIsInTheQueueIsNotQueuedAgain) {
  std::atomic<int> num_looked_for = 0;
  std::atomic<bool> may_write = false;
  SavedBlocks blocks(2, 64, 6, 4);
  blocks.on_block = [&] { ++num_looked_for; };
  blocks.on_warning = [&] { eventually([&] { return may_write.load(); }); };
  blocks.break_folder();
  const Sequence first = blocks.sequence(1, {0, 1, 2});
  Sequence second = first;
  second.id = 2;
  blocks.saver->computed(first, 12);
  EXPECT_TRUE(eventually([&] { return num_looked_for == 3; }));
  blocks.saver->computed(second, 12);
  EXPECT_TRUE(eventually([&] { return num_looked_for == 6; })) << "the queue is full, of the same blocks";
  may_write = true;
  EXPECT_TRUE(eventually([&] { return blocks.stats().num_unstored_blocks == 3; }));
  EXPECT_EQ(blocks.expect_right(), 0);
}

// No memory for a name: the sequence is not stored, and gets its blocks back.
TEST(KvBlockSaver, WithoutMemoryASequenceIsNotStored) {
  std::atomic<bool> is_looking = false, may_go_on = false;
  SavedBlocks blocks(2, 64, 6, 3);
  blocks.on_block = [&] {
    if (is_looking.exchange(true)) return;
    eventually([&] { return may_go_on.load(); });
    throw std::bad_alloc();
  };
  const Sequence first = blocks.sequence(1, {0, 1, 2}), second = blocks.sequence(2, {3, 4, 5});
  blocks.saver->computed(first, 12);
  EXPECT_TRUE(eventually([&] { return is_looking.load(); }));
  EXPECT_TRUE(blocks.saver->end(1));
  may_go_on = true;
  EXPECT_EQ(next_released(*blocks.saver), std::vector<SequenceId>{1});
  EXPECT_EQ(blocks.stats().num_unstored_blocks, 3);
  blocks.saver->computed(second, 12);  // the places of the first one are free
  EXPECT_TRUE(eventually([&] { return blocks.stats().num_stored_blocks == 3; }));
  EXPECT_EQ(blocks.expect_right(), 3);
}

}  // namespace
}  // namespace ladder
