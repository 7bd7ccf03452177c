// Tasks 3.2 to 3.4: a pool against a list, a block manager against a table of what each block really holds.
#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "bench/course_counts/judges.h"

namespace ladder::course {
namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw WorkerError(what);
}

// What a block manager may do, whatever its policy: a block that is handed out to be written is nobody's, and one that is
// shared holds these tokens after those before them. A prefix that is found counts only if it is there.
class BlockTruth {
 public:
  BlockTruth(Worker& worker, int64_t num_blocks, int64_t block_size)
      : worker_(worker), block_size_(block_size), blocks_(static_cast<size_t>(num_blocks)) {
    worker.ask({{"do", "make"}, {"worker", "blocks"}, {"blocks", num_blocks}, {"block_size", block_size}});
    counts_ = {{"tokens_hit", 0}, {"allocations", 0}, {"names", 0}};
  }

  // False: too few blocks.
  bool start(int64_t id, const std::vector<int32_t>& tokens) {
    const json answer = ask("start", id, tokens);
    if (!answer.at("ok").get<bool>()) {
      // A cached prefix may be free: at most all blocks of the prompt are needed.
      expect(num_free() < blocks_for(std::ssize(tokens)),
             "allocate() refuses although enough blocks are free");
      return false;
    }
    const int64_t shared = answer.at("shared");
    Table& table = tables_[id];
    table.tokens = tokens;
    const auto ids = answer.at("added").get<std::vector<int32_t>>();
    expect(shared * block_size_ < std::ssize(tokens),
           "a prefix of all tokens is shared: the last must be computed");
    expect(std::ssize(ids) == blocks_for(std::ssize(tokens)),
           "a table of " + std::to_string(ids.size()) + " blocks");
    for (int64_t i = 0; i < std::ssize(ids); ++i) {
      Block& block = at(ids[static_cast<size_t>(i)]);
      if (i < shared)
        expect(block.content == content(tokens, i + 1), "a shared block does not hold the prompt's tokens");
      hold(table, ids[static_cast<size_t>(i)], i < shared);
    }
    counts_["tokens_hit"] += shared * block_size_;
    return true;
  }

  bool grow(int64_t id, const std::vector<int32_t>& tokens) {
    Table& table = tables_.at(id);
    const int64_t size = std::ssize(table.tokens) + std::ssize(tokens);
    const int64_t missing = blocks_for(size) - std::ssize(table.ids);
    const json answer = ask("grow", id, tokens);
    if (!answer.at("ok").get<bool>()) {
      expect(num_free() < missing, "append() refuses although enough blocks are free");
      return false;
    }
    const auto added = answer.at("added").get<std::vector<int32_t>>();
    expect(std::ssize(added) == missing, "append() adds " + std::to_string(added.size()) + " blocks");
    for (const int32_t block : added) hold(table, block, false);
    table.tokens.insert(table.tokens.end(), tokens.begin(), tokens.end());
    return true;
  }

  void computed(int64_t id) {
    Table& table = tables_.at(id);
    for (int64_t i = 0; i < std::ssize(table.tokens) / block_size_; ++i)
      at(table.ids[static_cast<size_t>(i)]).content = content(table.tokens, i + 1);
    ask("computed", id, {});
  }

  void end(int64_t id) {
    for (const int32_t block : tables_.at(id).ids) --at(block).holders;
    tables_.erase(id);
    ask("end", id, {});
  }

  const std::vector<int32_t>& tokens(int64_t id) const { return tables_.at(id).tokens; }
  const Counts& counts() const { return counts_; }

 private:
  struct Block {
    int64_t holders = 0;
    std::vector<int32_t> content;  // this block's tokens and all before them
  };
  struct Table {
    std::vector<int32_t> tokens, ids;
  };

  int64_t blocks_for(int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }
  int64_t num_free() const {
    return std::ranges::count_if(blocks_, [](const Block& block) { return block.holders == 0; });
  }
  std::vector<int32_t> content(const std::vector<int32_t>& tokens, int64_t num_blocks) const {
    return {tokens.begin(), tokens.begin() + num_blocks * block_size_};
  }
  Block& at(int32_t id) {
    expect(id >= 0 && id < std::ssize(blocks_), "block " + std::to_string(id) + " is none");
    return blocks_[static_cast<size_t>(id)];
  }
  void hold(Table& table, int32_t id, bool shared) {
    Block& block = at(id);
    if (!shared) {
      expect(block.holders == 0, "block " + std::to_string(id) + " is handed out while a table holds it");
      block.content.clear();
    }
    ++block.holders;
    table.ids.push_back(id);
  }
  json ask(const std::string& what, int64_t id, const std::vector<int32_t>& tokens) {
    json answer = worker_.ask({{"do", what}, {"table", id}, {"tokens", tokens}});
    counts_["allocations"] += answer.at("allocations").get<int64_t>();
    counts_["names"] += answer.at("hashes").get<int64_t>();
    return answer;
  }

  Worker& worker_;
  int64_t block_size_;
  std::vector<Block> blocks_;
  std::map<int64_t, Table> tables_;
  Counts counts_;
};

std::vector<int32_t> random_tokens(Random& random, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(integer(random, 0, 50000));
  return tokens;
}

// Conversations over a few system prompts: a turn is what was said so far and something new. Some tables live for a few
// turns of others; there are fewer blocks than all conversations would fill.
Counts converse(Worker& worker, Random& random, int64_t num_blocks, int64_t num_turns) {
  constexpr int64_t kBlockSize = 8;
  BlockTruth truth(worker, num_blocks, kBlockSize);
  std::vector<std::vector<int32_t>> systems, conversations;
  for (int i = 0; i < 4; ++i) systems.push_back(random_tokens(random, integer(random, 30, 90)));
  for (int i = 0; i < 24; ++i) conversations.push_back(systems[static_cast<size_t>(integer(random, 0, 3))]);
  std::deque<std::pair<int64_t, size_t>> live;
  const auto end_oldest = [&] {
    const auto [id, conversation] = live.front();
    live.pop_front();
    conversations[conversation] = truth.tokens(id);
    if (conversations[conversation].size() > 400)
      conversations[conversation] = systems[static_cast<size_t>(integer(random, 0, 3))];
    truth.end(id);
  };
  for (int64_t turn = 0; turn < num_turns; ++turn) {
    // Some conversations go on more often than others.
    const auto which = static_cast<size_t>(std::min(integer(random, 0, 23), integer(random, 0, 23)));
    std::vector<int32_t> prompt = conversations[which];
    const std::vector<int32_t> said = random_tokens(random, integer(random, 5, 40));
    prompt.insert(prompt.end(), said.begin(), said.end());
    while (!truth.start(turn, prompt)) {
      expect(!live.empty(), "a prompt is refused although no table is held");
      end_oldest();
    }
    truth.computed(turn);
    live.emplace_back(turn, which);
    for (int64_t step = integer(random, 2, 30); step-- > 0;) {
      // One token for each live table, as a step of decodes.
      for (size_t i = 0; i < live.size(); ++i)
        if (truth.grow(live[i].first, random_tokens(random, 1))) truth.computed(live[i].first);
    }
    while (std::ssize(live) > 3) end_oldest();
  }
  while (!live.empty()) end_oldest();
  return truth.counts();
}

}  // namespace

Counts judge_pool(Worker& worker, Random& random) {
  constexpr int64_t kBlocks = 2000;
  worker.ask({{"do", "make"}, {"worker", "pool"}, {"blocks", kBlocks}});
  std::deque<int32_t> free(kBlocks);
  for (int32_t id = 0; id < kBlocks; ++id) free[static_cast<size_t>(id)] = id;
  std::vector<int32_t> held;
  Counts counts = {{"allocations", 0}};
  for (int round = 0; round < 40; ++round) {
    std::vector<std::pair<std::string, int32_t>> operations;
    std::vector<int32_t> taken;
    for (int i = 0; i < 200; ++i) {
      const int64_t what = integer(random, 0, 5);
      if (what < 2 && !free.empty()) {
        operations.emplace_back("front", 0);
        taken.push_back(free.front());
        held.push_back(free.front());
        free.pop_front();
      } else if (what == 2 && !free.empty()) {
        const auto at = free.begin() + integer(random, 0, std::ssize(free) - 1);
        operations.emplace_back("take", *at);
        held.push_back(*at);
        free.erase(at);
      } else if (!held.empty()) {
        std::swap(held[static_cast<size_t>(integer(random, 0, std::ssize(held) - 1))], held.back());
        operations.emplace_back(what == 3 ? "push_front" : "push_back", held.back());
        if (what == 3)
          free.push_front(held.back());
        else
          free.push_back(held.back());
        held.pop_back();
      }
    }
    const json answer = worker.ask({{"do", "operate"}, {"operations", operations}});
    expect(answer.at("taken").get<std::vector<int32_t>>() == taken,
           "take_front() takes other blocks than a list");
    expect(answer.at("free").get<std::vector<int32_t>>() == std::vector<int32_t>(free.begin(), free.end()),
           "the free list is not what a list would be");
    counts["allocations"] += answer.at("allocations").get<int64_t>();
  }
  return counts;
}

Counts judge_blocks(Worker& worker, Random& random) {
  return converse(worker, random, 260 + integer(random, 0, 40), 220);
}

Counts judge_prefix(Worker& worker, Random& random) {
  return converse(worker, random, 600 + integer(random, 0, 60), 220);
}

}  // namespace ladder::course
