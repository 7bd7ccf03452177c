// A safetensors file, or an index of shards, made to do harm: read or refused, never a crash and
// never a byte outside of the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"

namespace {

volatile char sink;

void read_file(const char* path) {
  const ladder::SafetensorsFile file(path);
  for (const ladder::SafetensorsInfo& info : file.tensors()) {
    const ladder::Tensor tensor = file.tensor(info);
    if (tensor.nbytes() != info.nbytes()) std::abort();
    if (tensor.nbytes() == 0) continue;
    sink = static_cast<const char*>(tensor.raw())[0];
    sink = static_cast<const char*>(tensor.raw())[tensor.nbytes() - 1];
    file.release(info);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    ladder::parse_safetensors_index(text, "index");
  } catch (const ladder::Error&) {
  }
  const int fd = memfd_create("fuzz", 0);
  if (fd < 0 || write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    read_file(("/proc/self/fd/" + std::to_string(fd)).c_str());
  } catch (const ladder::Error&) {
  }
  close(fd);
  return 0;
}
