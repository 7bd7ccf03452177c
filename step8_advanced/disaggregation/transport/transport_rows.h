#pragma once
// The functions of the table's rows, each in the file of its transport. Internal to this folder.
#include <memory>
#include <string_view>

#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

std::unique_ptr<KvListener> listen_in_folder(std::string_view place, const HostSecret& secret);
std::unique_ptr<KvChannel> connect_in_folder(std::string_view place, KvDeadline deadline,
                                             const HostSecret& secret, KvListening listening);
std::unique_ptr<KvListener> listen_by_tcp(std::string_view place, const HostSecret& secret);
std::unique_ptr<KvChannel> connect_by_tcp(std::string_view place, KvDeadline deadline,
                                          const HostSecret& secret, KvListening listening);
std::unique_ptr<KvListener> listen_in_memory(std::string_view place, const HostSecret& secret);
std::unique_ptr<KvChannel> connect_in_memory(std::string_view place, KvDeadline deadline,
                                             const HostSecret& secret, KvListening listening);

}  // namespace ladder
