#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

constexpr KvTransport kTransports[] = {
    {"file", "each message a file in a folder that both see, looked for again and again", &listen_in_folder,
     &connect_in_folder},
    {"tcp", "a connection between machines, straight into the reader's memory", &listen_by_tcp,
     &connect_by_tcp},
    {"shm", "a ring in memory that both processes see: no system call where nobody sleeps", &listen_in_memory,
     &connect_in_memory},
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
  fail("{}: no address of a transport, expected one of {}", address, forms);
}

}  // namespace

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
