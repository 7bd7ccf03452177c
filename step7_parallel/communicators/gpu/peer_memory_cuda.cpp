#include <cstring>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/gpu/gpu_memory_handle.h"
#include "step7_parallel/communicators/gpu/peer_memory.h"

namespace ladder {

namespace {

static_assert(sizeof(GpuMemoryHandle) < kMaxTextBytes);

// The first text that says something, and whose it is.
void fail_if_any(Communicator& host, const std::string& mine) {
  const std::vector<std::string> texts = exchange_texts(host, mine);
  for (size_t rank = 0; rank < texts.size(); ++rank)
    LADDER_CHECK(texts[rank].empty(), "no peer memory: rank {}: {}", rank, texts[rank]);
}

template <class Work>
std::string error_of(Work&& work) {
  try {
    work();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

PeerMemory::PeerMemory(int device_index, Communicator& host, PeerBytes bytes, const PeerMemory* stopped_with)
    : device_(device_index), host_(host) {
  LADDER_CHECK(host.size() <= kMaxPeers, "no peer memory: {} ranks, expected at most {}", host.size(),
               kMaxPeers);
  view_.rank = host.rank();
  GpuMemoryHandle mine;
  const std::string problem = error_of([&] {
    LADDER_CUDA_CHECK(cudaSetDevice(device_));
    const int64_t blocks = (bytes.total + kGpuMemoryBlock - 1) / kGpuMemoryBlock;
    LADDER_CUDA_CHECK(cudaMalloc(&own_, static_cast<size_t>(blocks * kGpuMemoryBlock)));
    view_.memory[view_.rank] = static_cast<char*>(own_);
    stop_ = stopped_with != nullptr ? stopped_with->stop_ : cuda::allocate_pinned(sizeof(int));
    if (stopped_with == nullptr) *static_cast<int*>(stop_.get()) = 0;
    view_.stop = static_cast<const int*>(stop_.get());
    mine = handle_of_gpu_memory(device_, own_);
  });
  try {
    fail_if_any(host_, problem);
    const std::vector<std::string> handles =
        exchange_texts(host_, std::string(reinterpret_cast<const char*>(&mine), sizeof mine));
    std::string unreachable;
    for (int rank = 0; rank < host_.size() && unreachable.empty(); ++rank)
      if (rank != view_.rank) unreachable = open(rank, handles[static_cast<size_t>(rank)]);
    fail_if_any(host_, unreachable);
    fail_if_any(host_, copy_problem());
    fail_if_any(host_, error_of([&] { clear_peer_memory(view_, bytes); }));
  } catch (...) {
    close();
    throw;
  }
}

std::string PeerMemory::open(int rank, const std::string& text) {
  GpuMemoryHandle handle;
  std::memcpy(static_cast<void*>(&handle), text.data(), sizeof handle);
  return error_of([&] {
    LADDER_CHECK(device_of(handle) != device_, "the GPU of rank {} is its own: expected one GPU a rank",
                 rank);
    OpenedGpuMemory opened = open_gpu_memory(handle, device_, fmt::format("rank {}", rank));
    view_.memory[rank] = static_cast<char*>(opened.address);
    if (opened.is_ipc) opened_[rank] = opened.address;
  });
}

// Every rank writes into every other's memory, and each looks at its own.
std::string PeerMemory::copy_problem() {
  std::string problem = error_of([&] {
    for (int rank = 0; rank < host_.size(); ++rank)
      if (rank != view_.rank) write_peer_pattern(view_, rank);
  });
  host_.barrier({});
  if (!problem.empty()) return problem;
  std::vector<int> words(static_cast<size_t>(host_.size() * kPatternWords));
  problem = error_of([&] {
    LADDER_CUDA_CHECK(cudaMemcpy(words.data(), own_, words.size() * sizeof(int), cudaMemcpyDeviceToHost));
  });
  for (int from = 0; from < host_.size() && problem.empty(); ++from)
    for (int i = 0; i < kPatternWords && from != view_.rank && problem.empty(); ++i)
      if (words[static_cast<size_t>(from * kPatternWords + i)] != pattern_word(from, view_.rank, i))
        problem = fmt::format(
            "what rank {} wrote into its memory did not arrive, though the driver reports access", from);
  return problem;
}

void PeerMemory::stop() const {
  *static_cast<volatile int*>(stop_.get()) = 1;
}

// Nobody's memory is freed while another has it open.
void PeerMemory::close() {
  cudaSetDevice(device_);
  for (void* const memory : opened_)
    if (memory != nullptr) cudaIpcCloseMemHandle(memory);
  try {
    host_.barrier({});
  } catch (const std::exception&) {  // a rank that is no more has nothing open
  }
  if (own_ != nullptr) cudaFree(own_);
}

PeerMemory::~PeerMemory() {
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  close();
}

}  // namespace ladder
