#pragma once
// The functions of the table's rows, each in the file of its transport. Internal to this folder.
#include <memory>
#include <string_view>

#include "step7_parallel/hosts/tcp_socket.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

std::unique_ptr<KvListener> listen_in_folder(std::string_view place, const HostSecret& secret);
std::unique_ptr<KvChannel> connect_in_folder(std::string_view place, KvDeadline deadline,
                                             const HostSecret& secret, KvListening listening);
std::unique_ptr<KvListener> listen_by_tcp(std::string_view place, const HostSecret& secret);
std::unique_ptr<KvChannel> connect_by_tcp(std::string_view place, KvDeadline deadline,
                                          const HostSecret& secret, KvListening listening);
// Where the build has UCX (LADDER_HAS_UCX).
std::unique_ptr<KvListener> listen_by_ucx(std::string_view place, const HostSecret& secret);
std::unique_ptr<KvChannel> connect_by_ucx(std::string_view place, KvDeadline deadline,
                                          const HostSecret& secret, KvListening listening);
std::unique_ptr<KvListener> listen_in_memory(std::string_view place, const HostSecret& secret);
std::unique_ptr<KvChannel> connect_in_memory(std::string_view place, KvDeadline deadline,
                                             const HostSecret& secret, KvListening listening);
// Where the build has CUDA (LADDER_HAS_CUDA).
std::unique_ptr<KvListener> listen_on_gpu(std::string_view place, const HostSecret& secret);
std::unique_ptr<KvChannel> connect_to_gpu(std::string_view place, KvDeadline deadline,
                                          const HostSecret& secret, KvListening listening);
std::unique_ptr<KvListener> listen_by_nccl(std::string_view place, const HostSecret& secret);
std::unique_ptr<KvChannel> connect_by_nccl(std::string_view place, KvDeadline deadline,
                                           const HostSecret& secret, KvListening listening);

// HOST:PORT, or a port of 127.0.0.1. Error naming the transport ("tcp://").
HostAddress parse_host_place(std::string_view place, std::string_view transport, int least_port);

}  // namespace ladder
