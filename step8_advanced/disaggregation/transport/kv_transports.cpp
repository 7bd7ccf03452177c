#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

constexpr KvTransport kTransports[] = {
    {"file", "each message a file in a folder that both see, looked for again and again", &listen_in_folder,
     &connect_in_folder},
    {"tcp", "a connection between machines, straight into the reader's memory", &listen_by_tcp,
     &connect_by_tcp},
#ifdef LADDER_HAS_UCX
    {"ucx", "whatever UCX finds between two processes: RDMA, shared memory or TCP, in pieces that it copies",
     &listen_by_ucx, &connect_by_ucx},
#endif
    {"shm", "a ring in memory that both processes see: no system call where nobody sleeps", &listen_in_memory,
     &connect_in_memory},
#ifdef LADDER_HAS_CUDA
    {"nccl", "from GPU to GPU by NCCL's kernels, between machines too; what is no body goes as with tcp",
     &listen_by_nccl, &connect_by_nccl},
    {"cuda", "copies from one GPU of this machine to another; what is no body goes as with shm",
     &listen_on_gpu, &connect_to_gpu},
#endif
};

struct Address {
  const KvTransport& transport;
  std::string_view place;
};

Address parse(std::string_view address) {
  const size_t colon = address.find("://");
  if (colon != std::string_view::npos)
    for (const KvTransport& transport : kTransports)
      if (transport.name == address.substr(0, colon)) return {transport, address.substr(colon + 3)};
  std::string forms;
  for (const KvTransport& transport : kTransports)
    forms += fmt::format("{}{}://PLACE", forms.empty() ? "" : ", ", transport.name);
#ifndef LADDER_HAS_UCX
  LADDER_CHECK(!address.starts_with("ucx://"),
               "{}: this build has no UCX: install libucx-dev, configure again and build", address);
#endif
#ifndef LADDER_HAS_CUDA
  LADDER_CHECK(!address.starts_with("cuda://") && !address.starts_with("nccl://"),
               "{}: this build has no CUDA", address);
#endif
  fail("{}: no address of a transport, expected one of {}", address, forms);
}

}  // namespace

HostAddress parse_host_place(std::string_view place, std::string_view transport, int least_port) {
  const bool has_host = place.find(':') != std::string_view::npos;
  return parse_host_address(has_host ? std::string(place) : fmt::format("127.0.0.1:{}", place), transport,
                            least_port);
}

std::span<const KvTransport> kv_transports() {
  return kTransports;
}

std::unique_ptr<KvListener> listen_for_kv(std::string_view address, const HostSecret& secret) {
  const auto [transport, place] = parse(address);
  return transport.listen(place, secret);
}

std::unique_ptr<KvChannel> connect_for_kv(std::string_view address, KvDeadline deadline,
                                          const HostSecret& secret, KvListening listening) {
  const auto [transport, place] = parse(address);
  return transport.connect(place, deadline, secret, listening);
}

}  // namespace ladder
