#include "step8_advanced/disaggregation/connector/connections.h"

#include <utility>

#include "step8_advanced/disaggregation/connector/messages.h"

namespace ladder {

KvConnection KvConnections::take(const std::string& address, KvDeadline deadline, KvListening listening) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<KvConnection>& idle = idle_[address];
    if (!idle.empty()) {
      KvConnection connection = std::move(idle.back());
      idle.pop_back();
      return connection;
    }
  }
  return connect(address, deadline, listening);
}

KvConnection KvConnections::connect(const std::string& address, KvDeadline deadline,
                                    KvListening listening) const {
  KvConnection connection;
  connection.address = address;
  connection.channel = connect_for_kv(address, deadline, read_host_secret({}), listening);
  const std::string mine = handshake_bytes(mine_);
  connection.channel->send(std::as_bytes(std::span(mine)), {}, deadline);
  const KvMessageHead first = connection.channel->receive_head(deadline);
  if (first.body_size != 0) throw KvChannelError("a handshake with a body");
  connection.peer = check_peer(mine_, {reinterpret_cast<const char*>(first.head.data()), first.head.size()});
  connection.reads = kv_reads(connection.peer.layout, mine_.layout);
  connection.lease =
      std::chrono::milliseconds(receive_kv_message_of<KvWelcome>(*connection.channel, deadline).lease_ms);
  return connection;
}

void KvConnections::give_back(KvConnection connection) {
  connection.was_used = true;
  const std::lock_guard lock(mutex_);
  idle_[connection.address].push_back(std::move(connection));
}

void KvConnections::forget(const std::string& address) {
  const std::lock_guard lock(mutex_);
  idle_.erase(address);
}

}  // namespace ladder
