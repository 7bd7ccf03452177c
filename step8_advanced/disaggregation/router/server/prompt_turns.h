#pragma once
// The prompts of this router at one prefill server, in the order in which it was asked.
//
// It computes them in about that order. A decode server that is told of a prompt holds blocks for it from then on, and one of its
// few loads, so it is told when all that were asked before have ended: earlier there is nothing to be read. Used on the router's
// thread alone.
#include <functional>
#include <list>
#include <utility>

namespace ladder {

class PromptTurns {
  using Waiting = std::list<std::function<void()>>;

 public:
  // One prompt's, as long as it lives; movable. The turns outlive it.
  class Place {
   public:
    Place() = default;
    // `on_turn`: called once, when it gets to be the first; not where it is that already.
    Place(PromptTurns& turns, std::function<void()> on_turn)
        : turns_(&turns), self_(turns.waiting_.insert(turns.waiting_.end(), std::move(on_turn))) {}
    Place(Place&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)), self_(other.self_) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(turns_, other.turns_);
      std::swap(self_, other.self_);
      return *this;
    }
    ~Place() {
      if (turns_ == nullptr) return;
      const bool was_first = is_first();
      turns_->waiting_.erase(self_);
      if (was_first && !turns_->waiting_.empty()) turns_->waiting_.front()();
    }
    bool is_first() const { return self_ == turns_->waiting_.begin(); }

   private:
    PromptTurns* turns_ = nullptr;
    Waiting::iterator self_{};
  };

 private:
  Waiting waiting_;
};

}  // namespace ladder
