// Input: a byte that says which message, and its bytes; all of it is also what came over a socket. Whatever they are, the
// answer is a message or an Error, and memory is taken for what is there alone.
#include <sys/socket.h>

#include <cstdint>
#include <string_view>

#include "step6_engine/process/message_socket.h"
#include "step6_engine/remote/engine_wire_forms.h"

namespace {

// What could be read can be written and read again.
template <class T>
void read_as(std::string_view bytes) {
  ladder::from_bytes<T>(ladder::to_bytes(ladder::from_bytes<T>(bytes)));
}

void read_as_stream(std::string_view bytes) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  ladder::FileDescriptor writer(ends[0]);
  ladder::MessageSocket reader(ladder::FileDescriptor(ends[1]), 1 << 16);
  if (::send(writer.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
  writer.close();
  while (reader.read()) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    read_as_stream(bytes);
  } catch (const ladder::Error&) {
  }
  if (size == 0) return 0;
  try {
    switch (data[0]) {
      case 't':
        read_as<ladder::TurnMessage>(bytes.substr(1));
        break;
      case 's':
        read_as<ladder::SubmitMessage>(bytes.substr(1));
        break;
      case 'c':
        read_as<ladder::CallMessage>(bytes.substr(1));
        break;
      case 'r':
        read_as<ladder::SchedulerConfig>(bytes.substr(1));
        break;
      case 'f':
        read_as<ladder::FailedMessage>(bytes.substr(1));
        break;
      default:
        read_as<ladder::ProgressMessage>(bytes.substr(1));
    }
  } catch (const ladder::Error&) {
  }
  return 0;
}
