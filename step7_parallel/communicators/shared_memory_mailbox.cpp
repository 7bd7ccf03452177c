// send and recv of a SharedMemoryGroup: a ring of slots per pair of ranks, whose two words say how many slots were
// ever written and taken. A message begins in a slot of its own, which also says its shape and dtype; one of no bytes
// takes a slot too. A tensor with gaps is sent as if it had none, and received into its places.
//
// send. Error: `to` is this rank or none; the tensor is not on the CPU; `to` has left; as wait(), missing "rank 1
// (process 4711) has taken nothing of rank 0's send".
// recv. Error: as send; the message has another shape or dtype ("recv of f32[4] from rank 0, which sent f32[3]"), of
// which the sender learns by the group's closing, "rank 1 failed: recv of ..."; missing "rank 0 (process 4711) has sent
// nothing that rank 1 receives". What was sent before a rank left is received.
#include <cstring>

#include "step7_parallel/communicators/shared_memory_rank.h"

namespace ladder {

// >>> task 7.2: a message into the slots of a mailbox, and out of them
void SharedMemoryRank::send(const OpContext&, const Tensor& tensor, int to) {
  check_peer("send", to);
  LADDER_CHECK(tensor.device().is_cpu(), "send: {} is not on the CPU", tensor.str());
  const InCall in_call(*this, "send");
  const Tensor message = tensor.is_contiguous() ? tensor : tensor.clone();
  GroupMemory::Mailbox& box = memory_->mailbox(rank_, to);
  uint64_t number = box.written.load();
  int64_t done = 0;
  do {
    if (is_obstructed(to)) fail("{}", obstacle(to));  // nobody will take it
    wait([&] { return number < box.taken.load() + static_cast<uint64_t>(memory_->shape().slots); }, to,
         [&] { return fmt::format("{} has taken nothing of rank {}'s send", memory_->name_of(to), rank_); });
    const int64_t count = std::min(message.nbytes() - done, memory_->shape().slot_bytes);
    if (done == 0) memory_->slot(rank_, to, number).form = TensorForm::of(message);
    if (count > 0)
      std::memcpy(memory_->slot_bytes(rank_, to, number), static_cast<const char*>(message.raw()) + done,
                  static_cast<size_t>(count));
    box.written.store(++number);
    memory_->place(to).bell.ring();
    done += count;
  } while (done < message.nbytes());
}

void SharedMemoryRank::recv(const OpContext&, const Tensor& tensor, int from) {
  check_peer("recv", from);
  LADDER_CHECK(tensor.device().is_cpu(), "recv: {} is not on the CPU", tensor.str());
  const InCall in_call(*this, "recv");
  const Tensor message = tensor.is_contiguous() ? tensor : Tensor::empty(tensor.shape(), tensor.dtype());
  GroupMemory::Mailbox& box = memory_->mailbox(from, rank_);
  uint64_t number = box.taken.load();
  int64_t done = 0;
  do {
    wait([&] { return box.written.load() > number; }, from,
         [&] {
           return fmt::format("{} has sent nothing that rank {} receives", memory_->name_of(from), rank_);
         });
    const TensorForm& sent = memory_->slot(from, rank_, number).form;
    if (done == 0 && (sent.shape() != tensor.shape() || sent.dtype != tensor.dtype())) {
      const std::string problem =
          fmt::format("recv of {} from rank {}, which sent {}", tensor.str(), from, sent.str());
      memory_->close(
          fmt::format("rank {} failed: {}", rank_, problem));  // or the sender would not learn of it
      fail("{}", problem);
    }
    const int64_t count = std::min(message.nbytes() - done, memory_->shape().slot_bytes);
    if (count > 0)
      std::memcpy(static_cast<char*>(message.raw()) + done, memory_->slot_bytes(from, rank_, number),
                  static_cast<size_t>(count));
    box.taken.store(++number);
    memory_->place(from).bell.ring();
    done += count;
  } while (done < message.nbytes());
  if (message.raw() != tensor.raw()) tensor.copy_from(message);
}
// <<< task 7.2

}  // namespace ladder
